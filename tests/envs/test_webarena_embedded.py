"""WebArena-v0 on the embedded sites, beyond what every environment promises (test_contract.py)."""

import subprocess
import sys

import pytest

from rllm_gym.envs.web.browser import Browser
from rllm_gym.envs.webarena import tasks
from rllm_gym.envs.webarena.env import WebArenaEnv
from rllm_gym.errors import EnvError

pytestmark = pytest.mark.slow
CONFIGS = tasks.load_configs("embedded")


@pytest.fixture(autouse=True, scope="module")
def browser():
    """Keep the browser from one test to the next."""
    browser = Browser.shared()
    yield
    browser.release()


@pytest.fixture
def env():
    env = WebArenaEnv(task_set="embedded", render_mode="rgb_array")
    yield env
    env.close()


def number(kind, site="shopping"):
    """Return the first item of a site that only this kind of evaluator looks at."""
    return next(i for i, c in enumerate(CONFIGS) if c["eval"]["eval_types"] == [kind] and c["sites"] == [site])


def begin(env, item):
    return env.reset(seed=0, options={"item_id": item})[0]


def play(env):
    """Play the expert's episode and return its last step."""
    for _ in range(40):
        step = env.step(env.expert_action())
        if step[2]:
            break
    return step


def test_making_it_loads_no_browser_library_and_nothing_heavy():
    code = """
import sys, gymnasium
env = gymnasium.make("rllm_gym:rllm_gym/WebArena-v0", obs_type="text", task_set="embedded")
assert len(env.unwrapped.item_ids) > 100
heavy = {"torch", "ray", "vllm", "deepspeed", "transformers", "playwright", "requests", "webarena_verified"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_template_of_train_occurs_in_eval_and_every_site_is_in_both():
    train, evaluation = ([CONFIGS[i] for i in tasks.split_indices("embedded", split)] for split in ("train", "eval"))
    for field in ("intent_template", "intent_template_id"):
        assert not {c[field] for c in train} & {c[field] for c in evaluation}
    assert {tasks.category(c) for c in train} == {tasks.category(c) for c in evaluation}
    assert len({c["intent_template_id"] for c in CONFIGS}) >= 40
    assert [c["task_id"] for c in CONFIGS] == list(range(len(CONFIGS)))


def test_sites_restricts_the_draws_and_names_the_category():
    env = WebArenaEnv(task_set="embedded", sites="reddit", split="all")
    assert {CONFIGS[int(item[9:])]["sites"][0] for item in env.item_ids} == {"reddit"}
    begin(env, env.item_ids[0])
    assert env.category == "reddit"
    env.close()


@pytest.mark.parametrize("kind", ["string_match", "url_match", "program_html"])
def test_each_kind_of_task_is_worth_1_to_the_expert_and_0_to_one_who_stops_at_once(env, kind):
    item = number(kind)
    begin(env, item)
    assert env.step("stop []")[1:3] == (0.0, True)
    begin(env, item)
    assert play(env)[1:3] == (1.0, True)


def test_what_an_episode_has_changed_is_gone_in_the_next_one(env):
    item = number("program_html")
    before = begin(env, item)
    assert play(env)[1] == 1.0
    assert begin(env, item) == before
    assert env.step("stop []")[1] == 0.0


def test_the_browser_reaches_the_sites_of_the_task_only(env):
    begin(env, number("url_match"))
    for address in ("http://forum.test/", "http://example.com/", f"http://{env._sites.server}/", "file:///etc/passwd"):
        observation = env.step(f"goto [{address}]")[0]
        assert "ERROR: " in observation and "URL: http://shop.test/" in observation
    # Not even where the page itself asks for another site.
    for address in ("http://forum.test/", "http://example.com/"):
        assert "none of the sites" in env.page.look_up(address)
    assert "none of the sites" not in env.page.look_up("http://shop.test/")


def test_a_page_of_a_site_that_fails_is_a_failed_episode(env, monkeypatch):
    begin(env, number("url_match"))
    env._sites._server.database.error = "GET /: RuntimeError: no"
    with pytest.raises(EnvError, match="a page failed; got GET /: RuntimeError: no"):
        env.step("click [1]")
    begin(env, number("url_match"))
    assert env.step("click [1]")[1] == 0.0


def test_render_is_a_screenshot_of_the_page(env):
    begin(env, number("url_match"))
    first = env.render()
    assert first.shape == (720, 1280, 3) and first.dtype == "uint8" and first.std() > 10
    env.step("goto [http://shop.test/search?q=lamp]")
    assert (env.render() != first).any()


def test_a_published_task_has_no_expert_and_gives_up(monkeypatch):
    for site in tasks.SITES:
        monkeypatch.setenv(f"WA_{site.upper()}", "http://127.0.0.1:9")
    env = WebArenaEnv(task_set="webarena", fuzzy=False)
    assert env.expert_action() == "Thought: No expert knows this task.\nAction: stop []"
