"""The embedded sites by HTTP: every form works, copies stay apart, and every task is solved by its script."""

import hashlib
import pickle
import re
import threading
from urllib.parse import urlencode, urljoin

import bs4
import pytest
import requests

from rllm_gym.envs.web.actions import parse
from rllm_gym.envs.webarena import tasks
from rllm_gym.envs.webarena.embedded import SITE_URLS, Expert, Sites, expert_steps, load_tasks
from rllm_gym.envs.webarena.embedded_tasks import map, reddit_widgets, shopping_widgets
from rllm_gym.envs.webarena.evaluators import Outcome, is_solved
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed import seeded_image
from rllm_gym.envs.webarena.sites.seed.common import PASSWORD
from rllm_gym.errors import EnvError

pytestmark = pytest.mark.slow

MAX_STEPS = 30
JUNK = ("", "-1", "99999999999999999999", "' OR 1=1 --", "<b>\u00e9\u6728\U0001f332</b>\x00")
SHOP, FORUM, CODE, ADMIN, MAP = (SITE_URLS[name] for name in ("shopping", "reddit", "gitlab", "shopping_admin", "map"))

# Tasks on pages with scripts are in test_webarena_map.py and test_webarena_widgets.py, in a browser.
SCRIPTED = {each.sentence for module in (map, shopping_widgets, reddit_widgets) for each in module.templates}
PLAIN = [task for task in load_tasks() if task["intent_template"] not in SCRIPTED]
FIRST_INTENTS = "29b7f45d31497c97"  # of the tasks that the sites began with


def client_of(sites):
    client = requests.Session()
    client.trust_env = False  # NO_PROXY
    client.proxies = dict.fromkeys(("http", "https"), f"http://{sites.server}")
    return client


class TextBrowser:
    """Reads the sites' pages as a tree and fills in their forms, without a browser."""

    def __init__(self, sites, names=tuple(SITE_URLS)):
        self.client = client_of(sites)
        for cookie in sites.storage_state(names)["cookies"]:
            self.client.cookies.set(cookie["name"], cookie["value"], domain=cookie["domain"])

    def goto(self, url):
        return self._show(self.client.get(url))

    def _show(self, response):
        self.status, self.url = response.status_code, str(response.url)
        self.soup = bs4.BeautifulSoup(response.text, "html.parser")
        for template in self.soup("template"):
            template.decompose()
        for area in self.soup("textarea"):
            area["value"] = area.get_text().removeprefix("\n")
        return self

    @property
    def text(self):
        return words(self.soup.main or self.soup)

    def nodes(self):
        """Return (element, role, name) in reading order."""
        nodes = []
        for element in self.soup.body.descendants:
            if isinstance(element, bs4.NavigableString):
                if element.strip() and not element.find_parent(["a", "button", "label", "textarea"]):
                    nodes.append((element, "StaticText", " ".join(element.split())))
            elif role := role_of(element):
                nodes.append((element, role, name_of(element, self.soup)))
        return nodes

    def observe(self):
        lines = []
        for i, (element, role, name) in enumerate(self.nodes(), 1):
            state = {"textbox": "value", "searchbox": "value", "radio": "checked", "checkbox": "checked"}.get(role)
            lines.append(f"[{i}] {role} {name!r}{f' {state}: {element.get(state)!r}' if state else ''}")
        return "\n".join([*lines, f"URL: {self.url}", "TABS: Tab 0 (current)"])

    def act(self, text):
        action = parse(text)
        if action.verb == "goto":
            return self.goto(action.text)
        element, role, _ = self.nodes()[action.number - 1]
        if action.verb == "type":
            element["value"] = action.text
            return self.submit(element.find_parent("form")) if action.presses_enter else self
        if role == "link":
            return self.goto(urljoin(self.url, element["href"]))
        if role == "button":
            return self.submit(element.find_parent("form"))
        if role == "radio":
            for other in element.find_parent("form")("input", attrs={"name": element["name"]}):
                other.attrs.pop("checked", None)
        if "checked" in element.attrs:
            del element["checked"]
        else:
            element["checked"] = ""
        return self

    def submit(self, form):
        fields = [
            (field["name"], field.get("value", ""))
            for field in form(["input", "textarea"], attrs={"name": True})
            if field.get("type") not in ("radio", "checkbox") or "checked" in field.attrs
        ]
        url = urljoin(self.url, form.get("action", ""))
        if form.get("method") == "post":
            return self._show(self.client.post(url, data=dict(fields)))
        return self.goto(f"{url}?{urlencode(fields)}")

    def send(self, button, **fields):
        """Fill in the form with this button, and send it."""
        form = next(e for e in self.soup("button") if words(e) == button and covers(e.find_parent("form"), fields))
        form = form.find_parent("form")
        for name, value in fields.items():
            for field in form(["input", "textarea"], attrs={"name": name}):
                if field.get("type") not in ("radio", "checkbox"):
                    field["value"] = value
                elif value is not None and field["value"] == str(value):
                    field["checked"] = ""
                else:
                    field.attrs.pop("checked", None)
        return self.submit(form)

    # What the evaluators ask.

    def elsewhere(self, url):
        other = TextBrowser.__new__(TextBrowser)
        other.client = self.client
        return other.goto(url)

    def evaluate(self, expression):
        if found := re.search(r"document\.querySelectorAll\('(.*)'\)\.length", expression):
            return [len(self.soup.select(checked(found[1])))]
        found = re.search(r"document\.querySelector\('(.*)'\)\.(outerText|value)\]", expression)
        element = self.soup.select_one(checked(found[1]))
        if element is None:
            return []
        return [words(element) if found[2] == "outerText" else element.get("value", "")]


def words(element):
    return " ".join(element.get_text().split())


def checked(selector):
    return selector.replace(":checked", "[checked]")


def covers(form, fields):
    return form is not None and set(fields) <= {field.get("name") for field in form(["input", "textarea"])}


def role_of(element):
    if element.name == "input":
        return {"search": "searchbox", "radio": "radio", "checkbox": "checkbox", "hidden": None}.get(
            element.get("type"), "textbox"
        )
    if element.name == "article" and not element.get("aria-label"):
        return None
    return {"a": "link", "button": "button", "textarea": "textbox", "article": "article"}.get(element.name)


def name_of(element, soup):
    if label := element.get("aria-label"):
        return label
    if element.name in ("input", "textarea"):
        label = element.find_parent("label") or soup.find("label", attrs={"for": element.get("id")})
        return words(label)
    return words(element)


@pytest.fixture(scope="module")
def sites():
    sites = Sites()
    yield sites
    sites.close()


@pytest.fixture
def browser(sites):
    sites.reset()
    yield TextBrowser(sites)
    sites.check()


def outcome(task, browser, answer=""):
    return Outcome(tasks.render(task, SITE_URLS), answer, browser)


def play(task, sites, mistakes=None):
    """Play the expert's episode, with other actions at some turns; return whether it is solved, and the last page."""
    sites.reset()
    browser = TextBrowser(sites, tasks.login_sites(task))
    start = tasks.render(task["start_url"], SITE_URLS)
    browser.goto(start)
    assert not is_solved(outcome(task, browser)), task["intent"]
    expert = Expert(task)
    expert.observe(browser.observe())
    for turn in range(MAX_STEPS):
        action = pickle.loads(pickle.dumps(expert)).action()
        if mistakes and turn in mistakes:
            action = mistakes[turn](browser)
        elif parse(action).verb == "stop":
            sites.check()
            return is_solved(outcome(task, browser, parse(action).text)), browser
        browser.act(action)
        expert.observe(browser.observe(), action)
    return False, browser


def on_the_last(verb, *roles):
    def action(browser):
        numbers = [i for i, (_, role, name) in enumerate(browser.nodes(), 1) if role in roles]
        return {"click": "click [{}]", "type": "type [{}] [wrong] [0]"}[verb].format(numbers[-1])

    return action


follow_a_link, tick_a_box = on_the_last("click", "link"), on_the_last("click", "radio", "checkbox", "link")
write_into_a_field = on_the_last("type", "textbox", "searchbox")


# Tasks.


def test_there_are_at_least_forty_templates_and_no_template_or_sentence_is_in_both_splits():
    configs = load_tasks()
    assert [config["task_id"] for config in configs] == list(range(len(configs)))
    templates = {(config["intent_template_id"], config["intent_template"], config["split"]) for config in configs}
    assert len(templates) >= 40
    assert (
        len({number for number, _, _ in templates}) == len({sentence for _, sentence, _ in templates}) == len(templates)
    )
    assert len({config["intent"] for config in configs}) == len(configs) >= 300
    for split in ("train", "eval"):
        assert {config["sites"][0] for config in configs if config["split"] == split} == set(SITE_URLS)
        kinds = {kind for config in configs if config["split"] == split for kind in config["eval"]["eval_types"]}
        assert kinds == {"string_match", "url_match", "program_html"}


def test_a_number_keeps_its_task_as_the_sites_grow():
    assert [task for task in load_tasks() if task["task_id"] >= 426 and task in PLAIN] == []
    intents = "\n".join(task["intent"] for task in load_tasks()[:426])
    assert hashlib.sha256(intents.encode()).hexdigest()[:16] == FIRST_INTENTS


def test_an_intent_is_its_template_filled_in():
    for config in load_tasks():
        gaps = re.findall(r"{{(\w+)}}", config["intent_template"])
        assert sorted(gaps) == sorted(config["instantiation_dict"])
        assert "{{" not in config["intent"]


def test_configs_have_the_fields_of_webarenas():
    fields = set(tasks.load_configs("webarena")[0])
    for config in load_tasks():
        assert set(config) == {*fields, "split"}


@pytest.mark.parametrize("name", [name for name in SITE_URLS if name != "map"])
def test_the_expert_solves_every_task_none_is_solved_at_the_start_and_answers_can_be_read(name, sites):
    for task in PLAIN:
        if task["sites"] == [name]:
            is_right, browser = play(task, sites)
            assert is_right, task["intent"]
            if task["eval"]["eval_types"] == ["string_match"]:
                assert expert_steps(task)[-1].text in browser.text, task["intent"]  # it is read, not known


@pytest.mark.parametrize(
    "mistakes",
    [{1: follow_a_link, 3: follow_a_link}, {2: write_into_a_field, 4: tick_a_box, 6: write_into_a_field}],
    ids=["links", "fields"],
)
def test_the_expert_finds_its_way_back_after_actions_that_are_not_its_own(mistakes, sites):
    for task in {task["intent_template_id"]: task for task in PLAIN}.values():
        assert play(task, sites, mistakes)[0], task["intent"]


def test_the_expert_goes_on_after_an_action_that_changed_nothing():
    task = next(task for task in load_tasks() if task["intent"].startswith("What does"))
    expert, page = Expert(task), "[4] searchbox 'Search products'\nURL: http://shop.test/\nTABS: Tab 0"
    expert.observe(page)
    before = expert.action()
    expert.observe(f"{page}\nERROR: no such action", "fly")
    assert expert.action() == before
    expert.observe(f"[1] link 'Elsewhere'\n{page}", "click [9]")
    assert parse(expert.action()) == parse("goto [http://shop.test]")


def test_the_expert_scrolls_where_the_tree_is_cut_and_turns_the_page_where_a_list_goes_on():
    task = next(task for task in load_tasks() if task["intent"].startswith("Cancel my order"))
    expert = Expert(task)
    expert.observe("[1] link 'Cart (0)'\n[... 30 more lines below; scroll [down] shows them]\nURL: http://shop.test/")
    assert parse(expert.action()) == parse("scroll [down]")
    expert.observe("[7] link 'My orders'\nURL: http://shop.test/", expert.action())
    assert parse(expert.action()) == parse("click [7]")
    expert.observe("[3] link 'Order 1'\n[8] link 'Next page'\nURL: http://shop.test/orders", expert.action())
    assert parse(expert.action()) == parse("click [8]")


def test_the_expert_gives_a_legal_action_on_pages_it_does_not_know():
    for task in load_tasks()[::20]:
        expert = Expert(task)
        for observation in (
            "",
            "[1] RootWebArea ''\nURL: about:blank",
            "[3] link 'Elsewhere'\nURL: http://x.test\nERROR: no",
        ):
            before = pickle.dumps(expert)
            assert parse(expert.action()).verb in ("goto", "stop", "click")
            assert pickle.dumps(expert) == before
            expert.observe(observation, "click [99]")


# Copies.


def test_the_data_follows_from_the_seed():
    seeded_image.cache_clear()
    first = seeded_image(0)
    seeded_image.cache_clear()
    assert seeded_image(0) == first
    assert seeded_image(1) != first


def test_a_reset_takes_back_everything(sites, browser):
    browser.goto(f"{SHOP}/account").send("Save", name="Somebody Else", street="x", city="y", postcode="z")
    assert "Somebody Else" in str(browser.goto(f"{SHOP}/account").soup)
    sites.reset()
    assert "Somebody Else" not in str(TextBrowser(sites).goto(f"{SHOP}/account").soup)


def test_sixteen_episodes_at_once_do_not_see_each_other():
    copies = [Sites() for _ in range(16)]
    seen = [None] * 16

    def work(i):
        copies[i].reset()
        browser = TextBrowser(copies[i])
        for _ in range(3):
            browser.goto(f"{FORUM}/f/books/submit").send("Submit", title=f"By {i}", body="")
        seen[i] = (browser.url, re.findall(r"By \d+", browser.goto(f"{FORUM}/f/books").text))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({copy.server for copy in copies}) == 16
    for copy in copies:
        copy.close()
    urls = {url for url, _ in seen}
    assert len(urls) == 1  # the same actions give the same addresses
    assert [titles for _, titles in seen] == [[f"By {i}"] * 3 for i in range(16)]


def test_closing_twice_ends_the_server_and_its_thread():
    before = set(threading.enumerate())
    sites = Sites()
    sites.close()
    sites.reset()
    address = sites.server
    sites.close()
    sites.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://{address}", timeout=9)


def test_a_copy_of_sites_has_a_server_of_its_own(sites):
    sites.reset()
    other = pickle.loads(pickle.dumps(sites))
    assert other.server == ""
    other.reset()
    assert other.server != sites.server
    other.close()


def test_other_hosts_are_refused(sites):
    sites.reset()
    assert client_of(sites).get("http://example.com/").status_code == 403
    assert requests.get(f"http://{sites.server}/", timeout=9).status_code == 403
    port = sites.server.partition(":")[2]
    answer = requests.get(f"http://{sites.server}/", headers={"Host": f"shop.localhost:{port}"}, timeout=9)
    assert answer.status_code == 200


def test_a_page_that_fails_is_reported_and_changes_nothing(sites, monkeypatch):
    sites.reset()
    browser = TextBrowser(sites)
    monkeypatch.setattr(Database, "now", lambda self: 1 / 0)
    browser.goto(f"{FORUM}/f/books/submit").send("Submit", title="Lost", body="")
    assert browser.status == 500
    with pytest.raises(EnvError, match="POST /f/books/submit: ZeroDivisionError"):
        sites.check()
    assert "Lost" not in browser.goto(f"{FORUM}/f/books").text
    sites.reset()
    sites.check()


# Pages.


def crawl(browser, start):
    """Go to the pages that links lead to, two of each kind, and yield their addresses."""
    queue, kinds = [start], {}
    for url in queue:
        browser.goto(url)
        yield url
        for link in browser.soup("a", href=True):
            target = urljoin(browser.url, link["href"])
            kind = re.sub(r"(?<=/)[^/?]*[\d_-][^/?]*|=[^&]*", "*", target)
            if target.startswith(start) and target not in queue and kinds.get(kind, 0) < 2:
                kinds[kind] = kinds.get(kind, 0) + 1
                queue.append(target)


@pytest.mark.parametrize("start", [SHOP, FORUM, CODE, ADMIN])
def test_links_lead_to_sound_pages_and_no_form_fails_on_nonsense(start, browser):
    forms = {}
    for url in crawl(browser, start):
        assert browser.status == 200, url
        ids = [element["id"] for element in browser.soup(id=True)]
        assert len(ids) == len(set(ids)), url
        assert browser.soup.title.get_text() and browser.soup.h1, url
        assert not browser.soup(["img", "iframe"]), url  # nothing from elsewhere
        assert {script["src"] for script in browser.soup("script")} <= {"/static/widgets.js"}, url
        assert all(name or role == "StaticText" for _, role, name in browser.nodes()), url
        for form in browser.soup("form"):
            fields = tuple(field.get("name") for field in form(["input", "textarea"]))
            kind = re.sub(r"[\w-]*[\d_-][\w-]*", "*", form.get("action", url))
            if words(form.button) != "Log out":
                forms.setdefault((fields, kind), (url, str(form)))
    assert len(forms) >= 6
    for (fields, _), (url, text) in forms.items():
        for junk in JUNK if fields else JUNK[:1]:
            browser.url = url
            form = bs4.BeautifulSoup(text, "html.parser").form
            for field in form(["input", "textarea"]):
                field["value"] = junk
            browser.submit(form)
            assert browser.status < 500, (url, text, junk)


@pytest.mark.parametrize(
    "path", ["/nowhere", "/orders/999", "/product/nothing", "/f/books/999999999999999999999999", "/x/y/-/issues/1"]
)
def test_what_is_not_there_is_a_page_not_found(path, browser):
    for start in (SHOP, FORUM, CODE, ADMIN):
        browser.goto(start + path)
        assert (browser.status, words(browser.soup.h1)) == (404, "Not Found")


@pytest.mark.parametrize("page", ["0", "-3", "x", "999", "99999999999999999999"])
def test_pages_of_a_list_stay_within_it(page, browser):
    shown = re.search(r"Page (\d+) of (\d+)", browser.goto(f"{FORUM}/?page={page}").text)
    assert shown[1] == (shown[2] if page == "999" else "1")


def test_following_the_pages_of_a_list_shows_every_row_once(browser):
    browser.goto(f"{ADMIN}/products")
    total = int(browser.soup.select_one("#total").get_text().split()[0])
    names = []
    while True:
        names += [link.get_text() for link in browser.soup.select(".rows a")]
        more = browser.soup.find("a", string="Next page")
        if more is None:
            break
        browser.goto(urljoin(browser.url, more["href"]))
    assert len(names) == len(set(names)) == total
    assert names == sorted(names)


def test_a_search_takes_percent_signs_literally(browser):
    assert "0 products" in browser.goto(f"{SHOP}/search?q=%25").text


def test_what_users_write_is_shown_as_text(browser):
    browser.goto(f"{FORUM}/f/books/submit").send("Submit", title="<b id=evil>&amp;", body="<script>alert(1)</script>")
    assert words(browser.soup.h1) == "<b id=evil>&amp;"
    assert not browser.soup("script") and browser.soup.find(id="evil") is None


# What the forms of each site do.


def test_visitors_must_log_in_and_come_back_to_the_page_they_wanted(sites):
    sites.reset()
    browser = TextBrowser(sites, names=())
    browser.goto(f"{SHOP}/orders")
    assert words(browser.soup.h1) == "Log in"
    browser.send("Log in", login="nora.field@example.com", password="wrong")
    assert "Wrong email or password." in browser.text
    browser.send("Log in", login="nora.field@example.com", password=PASSWORD)
    assert browser.url == f"{SHOP}/orders"
    browser.send("Log out")
    assert "You are logged out." in browser.text
    assert words(browser.goto(f"{SHOP}/orders").soup.h1) == "Log in"


@pytest.mark.parametrize("target", ["//example.com/", "http://example.com/", "/\\\\example.com/"])
def test_a_log_in_leads_to_no_other_site(target, sites):
    sites.reset()
    browser = TextBrowser(sites, names=())
    login = {"login": "nora.field@example.com", "password": PASSWORD}
    browser.goto(f"{SHOP}/login?{urlencode({'next': target})}").send("Log in", **login)
    assert browser.url == f"{SHOP}/"


def test_a_log_in_of_one_site_is_none_of_another(sites):
    sites.reset()
    browser = TextBrowser(sites, names=["reddit"])
    assert browser.goto(FORUM).soup.find("a", string="maple_finch")
    for start in (SHOP, CODE):
        assert browser.goto(start).soup.find("a", string="Log in")
    assert words(browser.goto(ADMIN).soup.h1) == "Log in"


def test_a_purchase_goes_from_the_cart_to_the_orders_and_out_of_the_stock(sites, browser):
    rows = sites._server.database.all("SELECT * FROM products WHERE is_enabled AND quantity > 5 ORDER BY id LIMIT 2")
    for row in rows:
        browser.goto(f"{SHOP}/product/{row['slug']}").send("Add to cart", quantity="2")
    assert [words(item) for item in browser.soup.select("#cart a")] == [row["name"] for row in rows]
    browser.send("Update", quantity="3")
    browser.goto(f"{SHOP}/checkout").send("Place order", coupon="NOPE")
    assert 'Coupon "NOPE" is not valid.' in browser.text
    browser.send("Place order", coupon="spring10", shipping="express")
    subtotal = 3 * rows[0]["price"] + 2 * rows[1]["price"]
    total = subtotal - subtotal // 10 + 1495
    assert words(browser.soup.select_one("#total")).replace(",", "") == f"${total // 100}.{total % 100:02}"
    number = words(browser.soup.h1).removeprefix("Order ")
    assert "Your cart is empty." in browser.goto(f"{SHOP}/cart").text
    assert f"{rows[0]['quantity'] - 3} in stock" in browser.goto(f"{SHOP}/product/{rows[0]['slug']}").text
    assert f"Order {number}" in browser.goto(f"{SHOP}/orders").text
    assert "Pending" in browser.goto(f"{ADMIN}/orders/{number}").text


def test_a_quick_order_puts_all_of_its_lines_into_the_cart_or_none(sites, browser):
    rows = sites._server.database.all("SELECT * FROM products WHERE is_enabled AND quantity > 5 ORDER BY id LIMIT 2")
    slugs = [row["slug"] for row in rows]
    for products, quantities, said in (
        ([slugs[0], ""], ["2", "3"], "Please choose each product from the suggestions."),
        ([slugs[0], "nothing"], ["2", "3"], "Please choose each product from the suggestions."),
        (slugs, ["2", "0"], "Quantity must be a whole number from 1 to 99."),
        (slugs, ["2", "99999"], "Quantity must be a whole number from 1 to 99."),
        ([slugs[0], slugs[0]], ["99", "99"], f"Only {rows[0]['quantity']} of {rows[0]['name']} are in stock."),
        ([], [], "Please choose a product."),
    ):
        answer = browser.client.post(f"{SHOP}/quick-order", data={"product": products, "quantity": quantities})
        assert said in answer.text
        assert "Your cart is empty." in browser.goto(f"{SHOP}/cart").text
    answer = browser.client.post(f"{SHOP}/quick-order", data={"product": slugs * 2, "quantity": [1, 2, 1, 1]})
    assert "4 lines are in your cart." in answer.text
    browser.goto(f"{SHOP}/cart")
    assert [field["value"] for field in browser.soup("input", attrs={"name": "quantity"})] == ["2", "3"]


def test_a_list_gives_its_script_the_rows_that_it_asks_for(sites, browser):
    for address, total in ((f"{SHOP}/products", 310), (f"{FORUM}/archive", 315), (f"{MAP}/places", 340)):
        browser.goto(address)
        assert browser.soup.select_one("#list")["data-total"] == str(total)
        names = [words(link) for link in browser.soup.select("#list tbody a")]
        assert len(names) == 25
        while rows := browser.goto(f"{address}?offset={len(names)}").soup("tr"):
            names += [words(row.a) for row in rows]
        assert len(set(names)) == len(names) == total
        rest = browser.goto(f"{address}?offset=25&all=1").soup("tr")
        assert [words(row.a) for row in rest] == names[25:]
        for junk in ("x", "-1", "99999999999999999999"):
            assert browser.goto(f"{address}?offset={junk}").status == 200


def test_suggestions_begin_with_what_was_typed_and_then_hold_it(sites, browser):
    def names(start, typed):
        return [item["name"] for item in browser.client.get(f"{start}/api/suggest", params={"q": typed}).json()]

    assert names(SHOP, "d") == [] and names(SHOP, "100%") == []
    assert names(SHOP, "gra")[0].startswith("Granite ")
    assert all("Music Stand" in name for name in names(SHOP, "music stand")) and len(names(SHOP, "music stand")) == 5
    assert names(FORUM, "maple_finch") == ["maple_finch"] and len(names(FORUM, "an")) == 6
    disabled = sites._server.database.value("SELECT name FROM products WHERE NOT is_enabled")
    assert names(SHOP, disabled) == []


def test_a_message_goes_to_a_member_and_only_its_sender_sees_it(sites, browser):
    browser.client.post(f"{FORUM}/messages", data={"recipient": "7", "body": "<b>Hello</b>"})
    name = sites._server.database.value("SELECT name FROM members WHERE id = 7")
    assert f"To {name}: <b>Hello</b>" in browser.goto(f"{FORUM}/messages").text
    for data in ({"recipient": "", "body": "x"}, {"recipient": "999", "body": "x"}, {"recipient": "7", "body": " "}):
        assert 'class="notice error"' in browser.client.post(f"{FORUM}/messages", data=data).text
    other = TextBrowser(sites, ())
    other.goto(f"{FORUM}/login").send("Log in", login=name, password=PASSWORD)
    assert "Hello" not in other.goto(f"{FORUM}/messages").text


def test_no_more_can_be_ordered_than_there_is(sites, browser):
    row = sites._server.database.first("SELECT * FROM products WHERE is_enabled AND quantity BETWEEN 1 AND 50")
    browser.goto(f"{SHOP}/product/{row['slug']}").send("Add to cart", quantity=str(row["quantity"] + 1))
    assert f"Only {row['quantity']} of {row['name']} are in stock." in browser.text
    assert "Your cart is empty." in browser.goto(f"{SHOP}/cart").text


def test_only_pending_orders_can_be_canceled(sites, browser):
    database = sites._server.database
    for status, after in (("Pending", "Canceled"), ("Complete", "Complete")):
        number = database.value("SELECT number FROM orders WHERE customer_id = 1 AND status = ?", status)
        browser.client.post(f"{SHOP}/orders/{number}/cancel")
        assert words(browser.goto(f"{SHOP}/orders/{number}").soup.select_one("#status")) == after


def test_orders_of_others_are_not_shown(sites, browser):
    number = sites._server.database.value("SELECT number FROM orders WHERE customer_id != 1")
    assert browser.goto(f"{SHOP}/orders/{number}").status == 404


def test_the_content_management_changes_what_the_shop_shows(sites, browser):
    row = sites._server.database.first("SELECT * FROM products WHERE is_enabled")
    browser.goto(f"{ADMIN}/products/{row['id']}").send("Save", name="Renamed", price="1.5", quantity="7")
    page = browser.goto(f"{SHOP}/product/{row['slug']}")
    assert words(page.soup.h1) == "Renamed" and "$1.50" in page.text and "7 in stock" in page.text
    browser.goto(f"{ADMIN}/products/{row['id']}").send("Save", is_enabled=None)
    assert browser.goto(f"{SHOP}/product/{row['slug']}").status == 404
    browser.goto(f"{ADMIN}/pages/returns").send("Save", body="No returns.")
    assert "No returns." in browser.goto(f"{SHOP}/page/returns").text
    browser.goto(f"{SHOP}/contact").send("Send message", subject="Where is it?", body="I wait.")
    assert "Where is it?" in browser.goto(f"{ADMIN}/messages").text


@pytest.mark.parametrize(
    "fields", [{"price": "cheap"}, {"price": "1.234"}, {"quantity": "-1"}, {"name": ""}, {"sku": "g-7001x" * 9}]
)
def test_a_product_with_a_bad_field_is_not_saved(fields, browser):
    before = browser.goto(f"{ADMIN}/products/1").soup.select_one("#price")["value"]
    browser.send("Save", **{"price": "777.00", **fields})
    assert browser.soup.select_one("[role=alert]")
    assert browser.goto(f"{ADMIN}/products/1").soup.select_one("#price")["value"] == before


def test_votes_count_once_and_can_be_taken_back(browser):
    def score():
        return int(words(browser.soup.select_one("#score")).split()[0])

    before = browser.goto(f"{FORUM}/f/books").soup.select_one(".rows a")["href"]
    browser.goto(urljoin(FORUM, before))
    start = score()
    browser.send("Upvote")
    assert score() == start + 1
    browser.send("Downvote")
    assert score() == start - 1
    browser.send("Downvote")
    assert score() == start


def test_members_change_only_what_is_theirs(sites, browser):
    post = sites._server.database.first(
        "SELECT p.id, f.name FROM posts p JOIN forums f ON f.id = forum_id WHERE member_id != 1"
    )
    address = f"{FORUM}/f/{post['name']}/{post['id']}"
    assert browser.goto(f"{address}/edit").status == 403
    assert browser.client.post(f"{address}/delete").status_code == 403
    assert browser.goto(address).status == 200


def test_developers_change_only_projects_they_may_write_to(sites, browser):
    row = sites._server.database.first(
        "SELECT d.username, p.path FROM projects p JOIN developers d ON d.id = owner_id WHERE owner_id != 1"
    )
    address = f"{CODE}/{row['username']}/{row['path']}/-"
    assert browser.goto(f"{address}/edit").status == 403
    assert browser.client.post(f"{address}/merge_requests/1/merge").status_code == 403
    assert (
        browser.client.post(f"{address}/members", data={"username": "ada_brook", "role": "Maintainer"}).status_code
        == 403
    )


def test_private_projects_are_hidden_from_others(sites, browser):
    browser.goto(f"{CODE}/new").send("Create project", path="secret-plan", visibility="private")
    assert browser.goto(f"{CODE}/ada_brook/secret-plan").status == 200
    visitor = TextBrowser(sites, names=())
    assert visitor.goto(f"{CODE}/ada_brook/secret-plan").status == 404
    assert "secret-plan" not in visitor.goto(f"{CODE}/explore?q=secret").text


def test_an_edited_file_is_a_commit(browser):
    browser.goto(f"{CODE}/ada_brook/seedbank/-/edit?file=README.md")
    browser.send("Commit changes", content="New words", message="Say less")
    assert words(browser.soup.select_one("#file")) == "New words"
    assert "Say less by ada_brook" in words(
        browser.goto(f"{CODE}/ada_brook/seedbank/-/commits").soup.select_one("#commits li")
    )
    assert "New words" in browser.goto(f"{CODE}/ada_brook/seedbank").text


def test_an_assignee_must_exist(browser):
    browser.goto(f"{CODE}/ada_brook/seedbank/-/issues/new").send("Create issue", title="Help", assignee="nobody_here")
    assert 'there is no user "nobody_here"' in browser.text
    assert browser.soup.select_one("#title")["value"] == "Help"  # what was filled in is kept
