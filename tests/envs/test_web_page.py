"""What an agent can do in a browser's window, and what it sees."""

import pytest

from rllm_gym.envs.web.actions import execute, parse
from rllm_gym.envs.web.page import PageError, WebPage
from tests.envs.web_site import SITES, Site

TIMEOUT_S = 60.0  # a busy machine is no failure


@pytest.fixture(scope="module")
def site():
    site = Site()
    yield site
    site.stop()


@pytest.fixture(autouse=True, scope="module")
def keeper(needs_browser):
    """A window that keeps the browser from one test to the next."""
    window = WebPage(SITES)
    yield
    window.close()


@pytest.fixture
def page(site):
    page = WebPage(SITES, server=site.address, timeout_s=TIMEOUT_S)
    yield page
    page.close()


def act(page, text, name=None):
    """Carry out an action, on the element with a name where one is given; return the observation."""
    if name is not None:
        text = text.replace("ID", str(id_of(page, name)))
    execute(page, parse(text))
    return page.observe()


def id_of(page, name):
    return next(node.id for node in page.nodes if node.name == name)


def titles(page):
    return [title for _, title in page.tabs]


def test_a_page_is_shown_with_its_url_and_tabs(page):
    assert act(page, "goto [http://shop.test/next]").splitlines() == [
        "[1] RootWebArea '/next' focused: True",
        "\t[2] StaticText 'You came.'",
        "\t[3] link 'home'",
        "URL: http://shop.test/next",
        "TABS: Tab 0 (current): /next",
    ]


def test_an_element_keeps_its_number_as_long_as_its_page_is_shown(page):
    first = act(page, "goto [http://shop.test/]").replace("focused: True", "").split()
    page.evaluate("document.querySelector('h1').insertAdjacentHTML('beforebegin', '<button>new</button>')")
    second = act(page, "click [ID]", "Query").replace("focused: True", "").split()
    new = f"[{len(page.nodes)}]"
    at = second.index(new)
    assert second[at : at + 3] == [new, "button", "'new'"]
    assert second[:at] + second[at + 3 :] == first


def test_links_and_history_lead_from_page_to_page(page):
    act(page, "goto [shop.test]")
    act(page, "click [ID]", "next")
    assert page.url == "http://shop.test/next" and page.error == ""
    act(page, "go_back")
    assert page.url == "http://shop.test/"
    act(page, "go_forward")
    assert page.url == "http://shop.test/next"
    assert "ERROR: There is no page to go forward to." in act(page, "go_forward")
    assert "ERROR" not in act(page, "scroll [down]")  # an error is shown once


def test_forms_are_filled_in_and_sent(page):
    act(page, "goto [http://shop.test/]")
    act(page, "type [ID] [caf\u00e9 & co] [0]", "Query")
    act(page, "type [ID] [price] [0]", "Sort")
    act(page, "type [ID] [2024-02-29] [0]", "Day")
    act(page, "type [ID] [two\nlines] [0]", "Text")
    text = act(page, "click [ID]", "Agree")
    for line in (
        "textbox 'Query' value: 'caf\u00e9 & co'",
        "combobox 'Sort' value: 'price'",
        "Date 'Day' value: '2024-02-29'",
        "textbox 'Text' value: 'two\\nlines'",
        "checkbox 'Agree' focused: True checked: True",
    ):
        assert line in text
    act(page, "click [ID]", "Search")
    assert page.url == "http://shop.test/search?q=caf%C3%A9+%26+co&s=price&d=2024-02-29&t=two%0D%0Alines&c=on"


def test_typing_with_enter_sends_a_form_and_an_option_can_be_clicked(page):
    act(page, "goto [http://shop.test/]")
    act(page, "click [ID]", "price")
    act(page, "type [ID] [bread]", "Query")
    assert page.url.startswith("http://shop.test/search?q=bread&s=price")


def test_keys_are_pressed(page):
    act(page, "goto [http://shop.test/]")
    act(page, "click [ID]", "Query")
    act(page, "press [ctrl+a]")
    assert "textbox 'Query' focused: True" in act(page, "press [Delete]")
    assert "ERROR: There is no key 'Control+Foo'." in act(page, "press [Ctrl+Foo]")


def test_hovering_reaches_the_page(page):
    act(page, "goto [http://shop.test/scripts]")
    assert "RootWebArea 'hovered'" in act(page, "hover [ID]", "hover me")


def test_an_element_out_of_sight_is_scrolled_to_and_clicked(page):
    act(page, "goto [http://shop.test/scripts]")
    assert "RootWebArea 'far'" in act(page, "click [ID]", "far down")


def test_what_a_script_fetches_is_waited_for(page):
    act(page, "goto [http://shop.test/scripts]")
    assert "RootWebArea 'fetched'" in act(page, "click [ID]", "fetch")


def test_a_question_of_the_page_is_answered_with_yes_and_told(page):
    act(page, "goto [http://shop.test/scripts]")
    text = act(page, "click [ID]", "ask")
    assert "RootWebArea 'yes'" in text and "ERROR: The page said 'Sure?' (confirm), which was accepted." in text


def test_elements_in_frames_are_shown_and_clicked(page):
    act(page, "goto [http://shop.test/]")
    assert "RootWebArea 'framed'" in act(page, "click [ID]", "inside")


def test_missing_elements_are_told(page):
    act(page, "goto [http://shop.test/scripts]")
    assert "ERROR: There is no element [9999] on this page." in act(page, "click [9999]")
    assert page.is_impossible
    vanish = id_of(page, "vanish")
    act(page, f"click [{vanish}]")
    assert f"ERROR: There is no element [{vanish}] on this page." in act(page, f"type [{vanish}] [a] [0]")
    vanished = id_of(page, "ask")
    page.evaluate("document.body.innerHTML = ''")
    execute(page, parse(f"click [{vanished}]"))
    assert page.error == f"Element [{vanished}] is no longer on the page."
    assert page.is_impossible
    execute(page, parse("scroll [down]"))
    assert not page.is_impossible
    act(page, "goto [http://shop.test/next]")
    assert "takes no text" in act(page, "type [ID] [a] [0]", "You came.")


def test_tabs_are_opened_chosen_and_closed(page):
    act(page, "goto [http://shop.test/]")
    text = act(page, "click [ID]", "forum")
    assert "TABS: Tab 0: / | Tab 1 (current): /" in text and page.url == "http://forum.test/"
    act(page, "tab_focus [0]")
    assert page.url == "http://shop.test/" and page.current_tab == 0
    act(page, "new_tab")
    assert [url for url, _ in page.tabs] == ["http://shop.test/", "http://forum.test/", "about:blank"]
    assert "ERROR: There is no tab 7; the tabs are 0 to 2." in act(page, "tab_focus [7]")
    for _ in range(3):
        act(page, "close_tab")
    assert page.tabs == [("about:blank", "")]


def test_a_page_may_close_its_tab(page):
    act(page, "goto [http://shop.test/scripts]")
    act(page, "click [ID]", "open")
    act(page, "click [ID]", "leave")
    for _ in range(100):  # the browser closes it when it comes to it
        if len(page.tabs) > 1:
            act(page, "press [Shift]")
    assert titles(page) == ["/scripts"] and "RootWebArea '/scripts'" in page.observe()


def test_a_tab_that_a_page_opens_is_shown_when_it_has_loaded(page):
    act(page, "goto [http://shop.test/scripts]")
    seen = act(page, "click [ID]", "open a slow one")
    assert titles(page) == ["/scripts", "/trickle"] and "first" in seen and "second" in seen


def test_a_page_cannot_open_tabs_without_end(page):
    act(page, "goto [http://shop.test/scripts]")
    act(page, "click [ID]", "open")
    assert titles(page) == ["/scripts", "/popup"]
    act(page, "tab_focus [0]")
    act(page, "click [ID]", "open many")
    assert len(page.tabs) <= 10
    for _ in range(12):
        act(page, "new_tab")
    assert len(page.tabs) == 10 and "no more are allowed" in page.error


@pytest.mark.parametrize(
    "url",
    ["http://other.test/", "https://shop.test/", "http://shop.test:99/", "file:///etc/passwd", "chrome://version",
     "view-source:http://shop.test/", "javascript:document.title=1", "data:text/html,<h1>x</h1>", "about:version",
     "http://shop.test@evil.test/", "http://[", "chrome-extension://abc/x.html"],
)  # fmt: skip
def test_other_addresses_are_refused(page, url):
    act(page, "goto [http://shop.test/next]")
    text = act(page, f"goto [{url}]")
    assert "not on one of the task's sites: http://forum.test, http://shop.test." in text
    assert page.url == "http://shop.test/next"


@pytest.mark.parametrize("link", ["elsewhere", "far away", "passwords", "browser"])
def test_links_lead_to_the_tasks_sites_only(page, link):
    act(page, "goto [http://shop.test/]")
    text = act(page, "click [ID]", link)
    assert "root:" not in text and "Chromium" not in text
    assert page.url == "http://shop.test/" or "not on one of the task's sites" in page.error
    act(page, "goto [http://shop.test/next]")
    assert page.url == "http://shop.test/next" and page.error == ""


def test_nothing_but_the_server_is_asked(site, page):
    other = WebPage(["http://forum.test"])  # without a server: its site does not exist
    assert "ERROR: http://forum.test/ cannot be opened: net::ERR" in act(other, "goto [http://forum.test/]")
    other.close()
    site.requests.clear()
    act(page, "goto [http://shop.test/leak]")
    act(page, "goto [http://shop.test/next]")
    assert "http://other.test/pixel" in site.requests  # the proxy, which refuses it, not the host


def test_sites_under_their_own_names_are_reached_without_a_server(site):
    page = WebPage([f"http://{site.address}"])
    text = act(page, f"goto [http://{site.address}/next]")
    assert "StaticText 'You came.'" in text
    port = int(site.address.rpartition(":")[2])
    page._window.sites = page._window.sites | {f"http://127.0.0.1:{port + 1}"}  # even past our own check
    act(page, f"goto [http://127.0.0.1:{port + 1}/]")
    assert "net::ERR_PROXY_CONNECTION_FAILED" in page.error
    page.close()


def test_downloads_are_off(page):
    act(page, "goto [http://shop.test/]")
    text = act(page, "click [ID]", "file")
    assert "ERROR: Downloads are off: 'file.bin'." in text and page.url == "http://shop.test/"
    assert "downloads are off" in act(page, "goto [http://shop.test/file.bin]").lower()


def test_a_page_that_hangs_is_told_and_left_behind(site):
    page = WebPage(SITES, server=site.address, timeout_s=TIMEOUT_S)
    act(page, "goto [http://shop.test/scripts]")
    page._window.tab._timeout_s = 3.0
    text = act(page, "click [ID]", "hang")
    assert "ERROR: The page has not answered within 3 seconds." in text and "URL: http://shop.test/scripts" in text
    text = act(page, "goto [http://shop.test/next]")
    assert "StaticText 'You came.'" in text and "ERROR" not in text and len(page.tabs) == 1
    page.close()


def test_a_missing_page_is_what_the_site_shows(page):
    text = act(page, "goto [http://shop.test/nowhere]")
    assert "Not Found" in text and "URL: http://shop.test/nowhere" in text and "ERROR" not in text


def test_long_pages_are_cut_and_scrolling_shows_the_rest(page):
    act(page, "goto [http://shop.test/long]")
    seen = set()
    for turn in range(80):
        text = page.observe(max_tokens=600)
        lines = [line for line in text.splitlines() if "StaticText" in line]
        seen |= {line.split("paragraph ")[1] for line in lines}
        assert ("lines below; scroll [down]" in text) == (len(seen) < 300)
        assert ("lines above; scroll [up]" in text) == (turn > 0)
        if len(seen) == 300:
            break
        execute(page, parse("scroll [down]"))
    assert len(seen) == 300 and turn > 5
    for _ in range(80):
        execute(page, parse("scroll [up]"))
    assert "This is paragraph 0'" in page.observe(max_tokens=600)


def test_what_scrolls_inside_a_page_is_scrolled(page):
    act(page, "goto [http://shop.test/inner]")
    execute(page, parse("scroll [down]"))
    assert page.evaluate("document.getElementById('b').scrollTop") > 300
    text = page.observe(max_tokens=600)
    assert "'Line 0'" not in text and "lines above" in text


def test_windows_share_no_cookies_and_no_storage(site, page):
    act(page, "goto [http://shop.test/login]")
    assert "RootWebArea 'user=ann ann'" in act(page, "goto [http://shop.test/who]")
    other = WebPage(SITES, server=site.address, timeout_s=TIMEOUT_S)
    assert "RootWebArea ' null'" in act(other, "goto [http://shop.test/who]") or "null" in other.tabs[0][1]
    other.close()


def test_a_window_can_begin_logged_in(site):
    cookie = {"name": "user", "value": "bob", "domain": "shop.test", "path": "/", "expires": -1, "httpOnly": False,
              "secure": False, "sameSite": "Lax"}  # fmt: skip
    page = WebPage(SITES, server=site.address, storage_state={"cookies": [cookie], "origins": []})
    assert "user=bob" in act(page, "goto [http://shop.test/who]")
    page.close()


def test_a_judge_looks_at_other_pages_without_the_agents_notice(page):
    act(page, "goto [http://shop.test/login]")
    assert page.look_up("http://shop.test/who", "document.title") == "user=ann ann"
    assert titles(page) == ["/login"] and page.current_tab == 0
    assert page.evaluate("(x) => x + 1", 2) == 3
    with pytest.raises(PageError):
        page.evaluate("nothing.at.all")
    with pytest.raises(PageError):
        page.look_up("http://shop.test/who", "nothing.at.all")


def test_a_held_clock_moves_with_actions_only(site):
    page = WebPage(SITES, server=site.address, timeout_s=TIMEOUT_S, holds_clock=True)
    act(page, "goto [http://shop.test/scripts]")
    start = page.evaluate("Date.now()")
    assert page.evaluate("Date.now()") == start
    act(page, "click [ID]", "later")  # in a minute
    assert page.evaluate("Date.now()") == start + 1000
    for _ in range(58):
        execute(page, parse("press [Shift]"))
    assert page.evaluate("document.title") == "/scripts"
    act(page, "press [Shift]")
    assert page.evaluate("document.title") == "late"
    page.close()


def test_a_screenshot_shows_the_page(page):
    act(page, "goto [http://shop.test/next]")
    page.evaluate("document.body.style.background = 'rgb(10, 200, 30)'")
    picture = page.screenshot()
    assert picture.shape == (720, 1280, 3) and picture.dtype == "uint8"
    assert picture[600, 600].tolist() == [10, 200, 30]
