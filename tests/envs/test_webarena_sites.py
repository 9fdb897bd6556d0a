"""The embedded sites by HTTP: every form works, copies stay apart, and every task is solved by its script."""

import pickle
import re
import threading
from urllib.parse import urlencode, urljoin

import bs4
import httpx
import pytest

from rllm_gym.envs.web.actions import parse
from rllm_gym.envs.webarena import tasks
from rllm_gym.envs.webarena.embedded import SITE_URLS, Expert, Sites, expert_steps, load_tasks
from rllm_gym.envs.webarena.evaluators import Outcome, is_solved
from rllm_gym.envs.webarena.sites.database import Database, template
from rllm_gym.errors import WorldError

MAX_STEPS = 30
SHOP, FORUM, CODE, ADMIN = (SITE_URLS[name] for name in ("shopping", "reddit", "gitlab", "shopping_admin"))


class TextBrowser:
    """Reads the sites' pages as a tree and fills in their forms, without a browser."""

    def __init__(self, sites, names=tuple(SITE_URLS)):
        self.client = httpx.Client(proxy=f"http://{sites.server}", follow_redirects=True, verify=False)
        for cookie in sites.storage_state(names)["cookies"]:
            self.client.cookies.set(cookie["name"], cookie["value"], domain=cookie["domain"])

    def goto(self, url):
        return self._show(self.client.get(url))

    def _show(self, response):
        self.status, self.url = response.status_code, str(response.url)
        self.soup = bs4.BeautifulSoup(response.text, "html.parser")
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
        lines = [f"[{i}] {role} {name!r}" for i, (_, role, name) in enumerate(self.nodes(), 1)]
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
            for field in form(["input", "textarea"])
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

    # What the judge asks.

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


def play(task, sites, mistakes=()):
    """Play the expert's episode, with foreign actions at some turns; return whether it is solved, and its length."""
    sites.reset()
    browser = TextBrowser(sites, tasks.login_sites(task))
    browser.goto(tasks.render(task["start_url"], SITE_URLS))
    expert = Expert(task)
    expert.observe(browser.observe())
    for turn in range(MAX_STEPS):
        if turn in mistakes:
            action = f"goto [{tasks.render(task['start_url'], SITE_URLS)}]"
        else:
            action = pickle.loads(pickle.dumps(expert)).action()
        if parse(action).verb == "stop":
            sites.check()
            return is_solved(outcome(task, browser, parse(action).text)), turn
        browser.act(action)
        expert.observe(browser.observe(), action)
    return False, MAX_STEPS


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


def test_an_intent_is_its_template_filled_in():
    for config in load_tasks():
        gaps = re.findall(r"{{(\w+)}}", config["intent_template"])
        assert sorted(gaps) == sorted(config["instantiation_dict"])
        assert "{{" not in config["intent"]


def test_configs_have_the_fields_of_webarenas():
    fields = set(tasks.load_configs("webarena")[0])
    for config in load_tasks():
        assert set(config) == {*fields, "split"}


@pytest.mark.parametrize("name", SITE_URLS)
def test_the_expert_solves_every_task_and_none_is_solved_at_the_start(name, sites):
    for task in load_tasks():
        if task["sites"] == [name]:
            sites.reset()
            browser = TextBrowser(sites, tasks.login_sites(task))
            browser.goto(tasks.render(task["start_url"], SITE_URLS))
            assert not is_solved(outcome(task, browser)), task["intent"]
            is_right, num_turns = play(task, sites)
            assert is_right, task["intent"]
            assert num_turns >= 1


def test_the_expert_finds_its_way_back_after_actions_that_are_not_its_own(sites):
    seen = set()
    for task in load_tasks():
        if task["intent_template_id"] not in seen:
            seen.add(task["intent_template_id"])
            assert play(task, sites, mistakes=(1, 3))[0], task["intent"]


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


def test_a_script_ends_with_the_answer_that_the_page_before_it_shows(sites):
    for task in load_tasks():
        if task["eval"]["eval_types"] == ["string_match"]:
            sites.reset()
            browser = TextBrowser(sites, tasks.login_sites(task))
            browser.goto(tasks.render(task["start_url"], SITE_URLS))
            expert = Expert(task)
            expert.observe(browser.observe())
            while parse(expert.action()).verb != "stop":
                action = expert.action()
                browser.act(action)
                expert.observe(browser.observe(), action)
            assert expert_steps(task)[-1].text in browser.text, task["intent"]


# Copies.


def test_the_data_follows_from_the_seed():
    template.cache_clear()
    first = template(0)
    template.cache_clear()
    assert template(0) == first
    assert template(1) != first


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
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{address}")


def test_a_copy_of_sites_has_a_server_of_its_own(sites):
    sites.reset()
    other = pickle.loads(pickle.dumps(sites))
    assert other.server == ""
    other.reset()
    assert other.server != sites.server
    other.close()


def test_other_hosts_are_refused(sites):
    sites.reset()
    client = httpx.Client(proxy=f"http://{sites.server}")
    assert client.get("http://example.com/").status_code == 403
    assert httpx.get(f"http://{sites.server}/").status_code == 403
    port = sites.server.partition(":")[2]
    assert httpx.get(f"http://{sites.server}/", headers={"Host": f"shop.localhost:{port}"}).status_code == 200


def test_a_page_that_fails_is_reported_and_changes_nothing(sites, monkeypatch):
    sites.reset()
    browser = TextBrowser(sites)
    monkeypatch.setattr(Database, "now", lambda self: 1 / 0)
    browser.goto(f"{FORUM}/f/books/submit").send("Submit", title="Lost", body="")
    assert browser.status == 500
    with pytest.raises(WorldError, match="POST /f/books/submit: ZeroDivisionError"):
        sites.check()
    assert "Lost" not in browser.goto(f"{FORUM}/f/books").text
    sites.reset()
    sites.check()
