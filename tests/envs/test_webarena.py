"""WebArena-v0 with published tasks, on a stand-in for the benchmark's shop."""

import functools
import importlib.resources
import json
import re
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from rllm_gym.cli.web_check import _origin
from rllm_gym.envs.web.browser import Browser
from rllm_gym.envs.webarena import judge, login, tasks
from rllm_gym.envs.webarena.env import WebArenaEnv
from rllm_gym.envs.webarena.evaluators import Outcome, is_solved
from rllm_gym.envs.webarena.functions import functions
from rllm_gym.envs.webarena.judge import Judge
from rllm_gym.envs.webarena.verified import is_verified
from rllm_gym.errors import ConfigError, EnvError

sys.path.insert(0, str(Path(__file__).parent))
from webarena_oracle import load_evaluators
from webarena_shop import Shop

app = make_rllm_gym_app()

pytestmark = pytest.mark.slow

VARIABLES = [f"{prefix}{site.upper()}" for prefix in ("WA_", "") for site in (*tasks.SITES, "homepage")]
OPEN_CASE, REORDER, REVIEWERS, CANDLES = 158, 436, 22, 431  # url_match, program_html with a function, fuzzy, three tabs
HEADPHONES, BRUXISM = 21, 118  # Verified: an answer, an address


@pytest.fixture(autouse=True)
def no_sites(monkeypatch):
    """No site is set and no judge is known, whatever the machine's environment."""
    for variable in (*VARIABLES, "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    judge._load.cache_clear()
    login._session.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def browser(needs_browser):
    """Keep the browser from one test to the next."""
    browser = Browser.shared()
    yield
    browser.release()


@pytest.fixture(scope="module")
def server():
    shop = Shop()
    yield shop
    shop.close()


@pytest.fixture
def shop(server, monkeypatch):
    server.requests, server.judged, server.cart, server.verdicts, server.pages = [], [], [], ["correct"], {}
    server.lets_in = True
    monkeypatch.setenv("WA_SHOPPING", server.url)
    return server


@pytest.fixture
def make(shop):
    """Return a function that makes environments on the stand-in, which are closed in the end."""
    made = []

    def make(task_set="webarena", **kwargs):
        kwargs = {"sites": "shopping", "judge_url": f"{shop.url}/v1", **kwargs}
        made.append(WebArenaEnv(task_set=task_set, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


def begin(env, item):
    return env.reset(seed=0, options={"item_id": item})[0]


def reference(item, shop):
    return tasks.render(tasks.load_configs("webarena")[item], {"shopping": shop.url})


# Tasks.


def test_the_published_configs_are_libwebarenas():
    theirs = json.loads((importlib.resources.files("webarena") / "test.raw.json").read_text())
    ours = tasks.load_configs("webarena")
    assert list(ours) == theirs
    assert [config["task_id"] for config in ours] == list(range(812))
    assert [config["task_id"] for config in tasks.load_configs("verified")] == list(range(812))


@pytest.mark.parametrize("task_set", ["webarena", "verified"])
def test_published_splits_are_agentgym_rls(task_set):
    train, evaluation = (set(tasks.split_indices(task_set, split)) for split in ("train", "eval"))
    assert (len(train), len(evaluation), len(train & evaluation)) == (372, 50, 0)
    assert {0, 3, 388, 424, 430, 676, 788} <= train
    assert not {8, 57, 346, 389, 429, 431, 789} & train
    assert {4, 24, 387, 526, 763} <= evaluation


@pytest.mark.parametrize(
    ("set_variables", "expected"),
    [({}, "embedded"), ({"SHOPPING": "http://x"}, "embedded"), ({"WA_REDDIT": "http://x"}, "webarena")],
)
def test_a_wa_variable_chooses_the_published_tasks(monkeypatch, set_variables, expected):
    for name, value in set_variables.items():
        monkeypatch.setenv(name, value)
    assert tasks.resolve_task_set(None) == expected
    assert tasks.resolve_task_set("verified") == "verified"


def test_addresses_come_from_the_wa_variables_before_the_plain_ones(monkeypatch):
    monkeypatch.setenv("WA_SHOPPING", "http://a:7770/")
    monkeypatch.setenv("SHOPPING", "http://b:7770")
    monkeypatch.setenv("GITLAB", "https://c")
    assert tasks.site_urls() == {"shopping": "http://a:7770", "gitlab": "https://c"}


def test_addresses_replace_their_placeholders_everywhere_in_a_config():
    config = {
        "start_url": "__SHOPPING_ADMIN__/x |AND| __SHOPPING__",
        "eval": [{"url": "^__SHOPPING__/y"}],
        "task_id": 5,
    }
    urls = {"shopping": "http://s", "shopping_admin": "http://s/admin"}
    assert tasks.render(config, urls) == {
        "start_url": "http://s/admin/x |AND| http://s",
        "eval": [{"url": "^http://s/y"}],
        "task_id": 5,
    }


def test_log_ins_and_categories_follow_the_sites_of_a_task():
    ours, verified = tasks.load_configs("webarena"), tasks.load_configs("verified")
    two = next(c for c in ours if c["storage_state"] == "./.auth/gitlab.reddit_state.json")
    assert tasks.login_sites(two) == ("gitlab", "reddit")
    assert tasks.login_sites(verified[two["task_id"]]) == ("gitlab", "reddit")
    assert tasks.category(two) == "gitlab_reddit"
    assert tasks.login_sites(ours[7]) == tasks.login_sites(verified[7]) == ()  # the map has no log-in
    assert len(tasks.start_urls(ours[CANDLES])) == len(tasks.start_urls(verified[CANDLES])) == 3


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"task_set": "webarnea"}, r"task_set must be one of .*; got 'webarnea'\. Did you mean 'webarena'\?"),
        ({"sites": ["shoping"]}, r"sites must be some of .*; got 'shoping'\. Did you mean 'shopping'\?"),
        ({"sites": None}, r"got none of gitlab, map, reddit, shopping_admin, wikipedia\. Set WA_GITLAB, "),
        ({"judge_url": None}, r"got none for \d+ of \d+ tasks\. Set judge_url or OPENAI_API_KEY, or .* fuzzy=False\."),
        ({"auth_folder": "/nowhere"}, r"got no /nowhere/shopping_state\.json\."),
    ],
)
def test_a_wrong_option_is_one_clear_line(make, kwargs, says):
    with pytest.raises(ConfigError, match=f"^WebArenaEnv: .*{says}") as error:
        begin(make(**kwargs), OPEN_CASE)
    assert "\n" not in str(error.value)


def test_fuzzy_false_leaves_out_just_the_tasks_that_need_a_judge(make):
    every = set(make().item_ids)
    exact = set(make(judge_url=None, fuzzy=False).item_ids)
    configs = tasks.load_configs("webarena")
    assert exact < every
    assert all("fuzzy_match" in configs[int(item[9:])]["eval"]["reference_answers"] for item in every - exact)


def test_an_item_of_a_site_without_an_address_is_refused_when_asked_for(make):
    with pytest.raises(ConfigError, match="got none of gitlab"):
        begin(make(), 44)


# Episodes.


def test_an_episode_begins_logged_in_at_the_start_page_and_ends_with_the_right_address(make, shop):
    env = make()
    observation = begin(env, f"webarena_{OPEN_CASE}")
    assert observation.startswith(f"OBJECTIVE: {reference(OPEN_CASE, shop)['intent']}\n")
    assert "Hello emma" in observation
    right = reference(OPEN_CASE, shop)["eval"]["reference_url"]
    assert env.step(f"goto [{right}]")[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step("Thought: there.\nAction: stop []")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["item_id"], info["category"], info["is_success"]) == (f"webarena_{OPEN_CASE}", "shopping", True)
    assert env.step("stop []")[1:3] == (0.0, True)


def test_a_stop_at_another_address_is_worth_nothing(make):
    env = make()
    begin(env, OPEN_CASE)
    _, reward, terminated, _, info = env.step("stop []")
    assert (reward, terminated, info["is_success"]) == (0.0, True, False)


def test_all_episodes_share_one_log_in_until_it_is_old(make, shop, monkeypatch):
    env = make()
    begin(env, OPEN_CASE)
    begin(make(), OPEN_CASE)
    assert shop.requests.count("POST /customer/account/login/") == 1
    monkeypatch.setattr(login, "SESSION_S", 0.0)
    assert "Hello emma" in begin(env, OPEN_CASE)
    assert shop.requests.count("POST /customer/account/login/") == 2


def test_a_site_that_refuses_the_log_in_is_a_failed_episode(make, shop):
    shop.lets_in = False
    with pytest.raises(EnvError, match=r"shopping at http://.* must let emma\.lopez@gmail\.com in; got the form again"):
        begin(make(), OPEN_CASE)


def test_a_given_storage_state_is_used_in_place_of_a_log_in(make, shop, tmp_path):
    cookie = {"name": "session", "value": "emma", "domain": "127.0.0.1", "path": "/", "expires": -1}
    state = {"cookies": [{**cookie, "httpOnly": False, "secure": False, "sameSite": "Lax"}], "origins": []}
    (tmp_path / "shopping_state.json").write_text(json.dumps(state))
    assert "Hello emma" in begin(make(auth_folder=tmp_path), OPEN_CASE)
    assert "POST /customer/account/login/" not in shop.requests


def test_several_start_pages_are_tabs_and_a_page_is_judged_behind_the_agents_back(make, shop):
    env = make()
    observation = begin(env, CANDLES)
    assert [url for url, _ in env.page.tabs] == tasks.start_urls(reference(CANDLES, shop))
    assert "Tab 0 (current)" in observation
    env.step("tab_focus [1]")
    [button] = [node.id for node in env.nodes if node.name == "Add to Cart"]
    env.step(f"click [{button}]")
    assert env.step("stop []")[1] == 1.0
    assert len(env.page.tabs) == 3  # the evaluator's tab is gone


def test_the_newest_order_is_asked_of_the_shop_and_read_as_the_user(make):
    env = make()
    begin(env, REORDER)
    assert env.step("stop []")[1] == 1.0


def test_the_functions_of_the_configs_ask_the_shop(shop):
    ours = functions({"shopping": shop.url})
    assert ours["shopping_get_latest_order_url"]() == f"{shop.url}/sales/order/view/order_id/7/"
    assert ours["shopping_get_sku_latest_review_author"]("sold") == "Bob"
    assert ours["shopping_get_sku_latest_review_rating"]("sold") == "80"
    assert ours["shopping_get_sku_latest_review_author"]("new") == ""
    theirs = load_evaluators().reddit_get_post_url
    for path in ("/f/books/17/a-post/-/comment/3", "/f/books/17", "/f/books", "/user/x/y/z", "", "/f/books/17/"):
        assert ours["reddit_get_post_url"](f"http://reddit.test{path}") == theirs(f"http://reddit.test{path}")
    with pytest.raises(EnvError, match=r"the shop's REST interface must answer; got ConnectionError"):
        functions({"shopping": "http://127.0.0.1:9"})["shopping_get_latest_order_url"]()


def test_a_start_page_that_does_not_open_is_a_failed_episode(make, shop, monkeypatch):
    monkeypatch.setattr(login, "storage_state", lambda sites, urls: None)
    monkeypatch.setenv("WA_SHOPPING", "http://127.0.0.1:9")
    with pytest.raises(EnvError, match="a task's start page must open; got "):
        begin(make(), OPEN_CASE)


def test_a_judged_page_that_does_not_open_is_a_failed_episode_and_not_a_reward_of_0(make):
    env = make()
    begin(env, CANDLES)
    env._config = json.loads(json.dumps(env._config).replace("/checkout/cart", ":0/checkout/cart"))
    with pytest.raises(EnvError, match="a page that is evaluated must open"):
        env.step("stop []")


# The page's own scripts, against libwebarena's evaluator in the same browser.

PAGE = """<h1 title='A &amp; B'>Caf&eacute; &amp; Tea</h1><input id=q value=' 12.50 '><ul><li>one<li>two</ul>
<select id=s><option>red<option selected>blue</select><p hidden>secret</p><a href='#x' onclick="this.id='did'">go</a>"""
LOCATORS = [
    ("", ["caf\u00e9 & tea"]),
    ("", ["nothing of it |OR| <li>two"]),
    ("document.querySelector('h1').outerText", ["Caf\u00e9 & Tea"]),
    ("document.querySelector('h1').outerText", "'caf\u00e9 & tea'"),
    ("document.querySelector('h1').title", "a & b"),
    ("document.querySelector('h2').outerText", ["caf"]),
    ("document.querySelector('h2')?.outerText", "None"),
    ("document.querySelector('#q').value", "12.50"),
    ("document.querySelector('#q').value", ["12.5", "50"]),
    ("document.querySelectorAll('li').length", "2"),
    ("document.querySelectorAll('li').length > 1", "True"),
    ("[...document.querySelectorAll('li')].map((li) => li.outerText).join('|')", "one|two"),
    ("[...document.querySelectorAll('li')].map((li) => li.outerText)", ["'one', 'two'"]),
    ("document.querySelector('#s').selectedOptions[0].text", ["blue |OR| green", "b"]),
    ("document.querySelector('p').outerText", ["secret"]),
    ("document.title", ""),
    ("document.querySelector('h1').innerHTML", "Caf\u00e9 &amp; Tea"),
    ("document.querySelector('#q').value", "12.5"),
    ("document.querySelectorAll('li').length", "3"),
]


def test_locators_find_what_they_find_for_libwebarena_in_the_same_browser(make, shop, monkeypatch):
    from rllm_gym.envs.web.page import PageError
    from rllm_gym.envs.webarena.env import _Judged

    theirs = load_evaluators()
    shop.pages = {"/here": PAGE, "/there": PAGE.replace("two", "<b>two</b> three").replace("12.50", "x")}
    env = make()
    begin(env, OPEN_CASE)
    env.step(f"goto [{shop.url}/here]")
    page = env.page

    class NewPage:
        def goto(self, url):
            self.url = url

        def content(self):
            return page.look_up(self.url)

        def evaluate(self, script):
            return page.look_up(self.url, script)

        def close(self):
            pass

    here = types.SimpleNamespace(
        url=page.url,
        content=lambda: page.evaluate("document.documentElement.outerHTML"),
        evaluate=page.evaluate,
        context=types.SimpleNamespace(new_page=NewPage),
    )
    verdicts = []
    for url, locators in (("last", LOCATORS), (f"{shop.url}/there", LOCATORS[:4])):
        for locator, contents in locators:
            required = {"exact_match": contents} if isinstance(contents, str) else {"must_include": contents}
            prepare = ["document.querySelector('a').click()", "document.nothing.fails()"]
            target = {"url": url, "locator": locator, "required_contents": required, "prep_actions": prepare}
            config = {"task_id": 0, "intent": "", "eval": {"eval_types": ["program_html"], "program_html": [target]}}
            monkeypatch.setattr(theirs, "json", types.SimpleNamespace(load=lambda _, config=config: config))
            pseudo = theirs.PseudoPage(here, page.url)
            expected = theirs.HTMLContentEvaluator()([{}, {"answer": ""}], str(Path(__file__)), pseudo, None)
            verdicts.append(is_solved(Outcome(config, "", _Judged(page))))
            assert verdicts[-1] == (expected == 1.0), (url, locator, contents)
    assert verdicts.count(True) > 12 and verdicts.count(False) > 3
    with pytest.raises(PageError):  # what the evaluators above have turned into an empty text
        page.evaluate("document.querySelector('h2').outerText")


# The judge.


@pytest.mark.parametrize(
    ("method", "said", "expected"),
    [
        ("is_correct", "The answer is Correct.", True),
        ("is_correct", "incorrect", False),
        ("is_correct", "Verdict: partially correct", False),
        ("is_same_reason", "Same", True),
        ("is_same_reason", "different", False),
    ],
)
def test_a_verdict_is_read_as_webarena_reads_it(shop, method, said, expected):
    shop.verdicts = [said]
    assert getattr(Judge(f"{shop.url}/v1", model="m"), method)("Who?", "Ada", "It was Ada") is expected
    [body] = shop.judged
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 768)
    assert all(text in body["messages"][0]["content"] for text in ("Who?", "Ada", "It was Ada"))


def test_a_busy_endpoint_is_asked_again_and_one_that_refuses_is_not(shop):
    shop.verdicts = [503, 429, "correct"]
    assert Judge(f"{shop.url}/v1", first_wait_s=0.0).is_correct("", "a", "a")
    assert len(shop.judged) == 3
    shop.verdicts = [401]
    with pytest.raises(EnvError, match=r"the judge must answer; got HTTPError: .*401"):
        Judge(f"{shop.url}/v1", first_wait_s=0.0).is_correct("", "a", "a")
    assert len(shop.judged) == 4


@pytest.mark.parametrize(("said", "says"), [("who knows", "got 'who knows'"), ({"choices": []}, "not in OpenAI")])
def test_an_endpoint_without_a_verdict_is_a_failed_episode(shop, said, says):
    shop.verdicts = [said]
    with pytest.raises(EnvError, match=says):
        Judge(f"{shop.url}/v1").is_correct("", "a", "a")


def test_the_key_of_the_endpoint_is_sent(shop, monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{shop.url}/v1/")
    assert Judge().is_correct("", "a", "a") and shop.keys[-1] is None
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    assert Judge().is_correct("", "a", "a") and shop.keys[-1] == "Bearer a-key"


@pytest.mark.parametrize(("verdict", "answer", "reward"), [("same", "no such review", 1.0), ("different", "Ann", 0.0)])
def test_an_answer_is_compared_by_meaning(make, shop, verdict, answer, reward):
    shop.verdicts = [verdict]
    env = make()
    begin(env, REVIEWERS)
    assert env.step(f"Action: stop [{answer}]")[1] == reward
    assert answer.lower() in shop.judged[0]["messages"][0]["content"]


def test_a_judge_that_cannot_be_reached_is_a_failed_episode_and_not_a_reward_of_0(make, monkeypatch):
    monkeypatch.setattr(judge, "Judge", functools.partial(Judge, num_attempts=2, first_wait_s=0.0))
    env = make(judge_url="http://127.0.0.1:9/v1")
    begin(env, REVIEWERS)
    with pytest.raises(EnvError, match=r"the judge must answer; got ConnectionError"):
        env.step("stop [no such review]")


# WebArena-Verified.

REPLY = {"task_type": "RETRIEVE", "status": "SUCCESS", "retrieved_data": None, "error_details": None}
NAMES = ["Catso", "Dibbins", "Anglebert", "Michelle Davis"]
OPENED = [{"request": {"url": "http://s/", "method": "GET", "headers": []}, "response": {"status": 200, "headers": []}}]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (json.dumps({**REPLY, "retrieved_data": NAMES}), True),
        (json.dumps({**REPLY, "retrieved_data": NAMES[::-1], "task_type": "retrieve"}), True),
        (json.dumps({**REPLY, "retrieved_data": NAMES[:3]}), False),
        (json.dumps({**REPLY, "retrieved_data": NAMES, "task_type": "MUTATE"}), False),
        (json.dumps({**REPLY, "retrieved_data": NAMES, "status": 7}), False),
        (json.dumps({**REPLY, "retrieved_data": [{"a": []}]}), False),
        (json.dumps(NAMES), False),
        ("Catso", False),
        ("{", False),
        ("", False),
    ],
)
def test_a_reply_is_judged_by_the_verified_evaluators_and_a_strange_one_is_just_wrong(answer, expected):
    assert is_verified(HEADPHONES, answer, OPENED, {"shopping": "http://s"}) is expected


def test_an_episode_without_any_request_cannot_be_judged():
    with pytest.raises(EnvError, match="task 21 must be evaluated; got "):
        is_verified(HEADPHONES, json.dumps(REPLY), [], {"shopping": "http://s"})


@pytest.mark.parametrize(("page", "reward"), [("night-mouth-guard.html", 1.0), ("candles.html", 0.0)])
def test_a_verified_task_looks_at_the_last_address_that_the_browser_has_asked_for(make, shop, page, reward):
    env = make("verified")
    assert "RETRIEVE" in env.system_prompt and "Hello emma" in begin(env, BRUXISM)
    env.step(f"goto [{shop.url}/{page}]")
    assert env.step(f"stop [{json.dumps({**REPLY, 'task_type': 'NAVIGATE'})}]")[1] == reward


def test_a_verified_task_looks_at_the_form_that_was_sent(make, shop):
    for clicks, reward in ((0, 0.0), (1, 1.0)):
        env = make("verified")
        begin(env, CANDLES)
        [button] = [node.id for node in env.nodes if node.name == "Add to Cart"]
        for _ in range(clicks):
            env.step(f"click [{button}]")
        assert env.step(f"stop [{json.dumps({**REPLY, 'task_type': 'MUTATE'})}]")[1] == reward


# rllm-gym web-check.


def check(*options):
    done = CliRunner().invoke(app, ["web-check", *options])
    return done.exit_code, done.output


def test_an_address_with_the_schemes_own_port_is_the_same_one():
    assert _origin("http://shop.test:80/a?b") == _origin("http://Shop.test") == "http://shop.test"
    assert _origin("https://shop.test:80") == "https://shop.test:80" != _origin("http://shop.test:80")


def test_web_check_says_which_sites_do_not_answer(shop, monkeypatch):
    monkeypatch.setenv("GITLAB", "http://127.0.0.1:9")
    code, output = check()
    assert code == 1
    assert re.search(rf"^shopping +{shop.url} +answers: 200 in ", output, re.MULTILINE)
    assert re.search(r"^gitlab +http://127\.0\.0\.1:9 +does not answer: ConnectionError", output, re.MULTILINE)
    assert re.search(r"^map +- +not set \(WA_MAP\)$", output, re.MULTILINE)
    assert output.endswith("web-check: 1 of 2 sites do not answer: gitlab\n")


def test_web_check_passes_where_all_sites_that_are_set_answer_and_let_the_user_in(shop):
    assert check()[0] == 0
    code, output = check("--login")
    assert code == 0 and "lets emma.lopez@gmail.com in" in output
    shop.lets_in = False
    code, output = check("--login")
    assert code == 1 and "got the form again" in output


def test_web_check_without_any_site_says_what_to_set():
    code, output = check()
    assert code == 2 and output.startswith("web-check: a site must be set; got none")
