"""MiniWoB, beyond what every environment promises (test_contract.py)."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import pytest

from rllm_gym.envs.miniwob import tasks
from rllm_gym.envs.miniwob.env import MiniWoBEnv
from rllm_gym.envs.miniwob.expert import EXPERTS, advise
from rllm_gym.envs.miniwob.expert_pointer import box, is_inside
from rllm_gym.envs.miniwob.tasks import EVAL_TASKS, TASKS
from rllm_gym.envs.miniwob.view import POINTER_EXPERTS
from rllm_gym.envs.web import window
from rllm_gym.envs.web.page import WebPage
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.memory import process_tree_bytes

pytestmark = pytest.mark.slow
MAX_TURNS = 30


@pytest.fixture(autouse=True, scope="module")
def keeper(needs_browser):
    """A window that keeps the browser from one test to the next."""
    window = WebPage([])
    yield
    window.close()


@pytest.fixture
def env():
    env = MiniWoBEnv(split="all")
    yield env
    env.close()


def begin(env, task, seed=0):
    return env.reset(seed=seed, options={"item_id": f"miniwob_{task}"})[0]


def follow_expert(env):
    """Return the rewards of the expert's episode."""
    rewards = []
    for _ in range(MAX_TURNS):
        _, reward, terminated, _, info = env.step(env.expert_action())
        rewards.append(reward)
        if terminated:
            break
    return rewards, info["is_success"]


def id_of(env, name):
    return next(node.id for node in env.nodes if node.name == name)


# Tasks.


def test_the_tasks_are_the_packages():
    source = Path(find_spec("miniwob").origin).parent / "envs" / "miniwob_envs.py"
    assert sorted(re.findall(r'subdomain = "(.*)"', source.read_text())) == list(TASKS)
    assert len(TASKS) == 125 and len(EVAL_TASKS) == 25
    assert set(TASKS) > EVAL_TASKS and len([task for task in EXPERTS if task in EVAL_TASKS]) > 5
    assert set(EXPERTS) <= set(TASKS) and len(EXPERTS) >= 60


def test_an_item_is_named_or_numbered(env):
    assert env.item_ids[11] == "miniwob_click-button"
    for item_id in ("miniwob_click-button", "click-button", 11, "11", "miniwob_11"):
        assert env._parse_item_id(item_id) == 11
    for wrong in ("miniwob_click-buton", "textcraft_3", 125, -1, None, ""):
        with pytest.raises(ConfigError, match="an item id is a task like"):
            env._parse_item_id(wrong)
    with pytest.raises(ConfigError, match="Did you mean miniwob_click-button"):
        env._parse_item_id("miniwob_click-buton")
    assert MiniWoBEnv(item_ids=["miniwob_click-button"]).item_ids == ["miniwob_click-button"]


@pytest.mark.parametrize("task", sorted(EXPERTS))
def test_the_expert_solves_its_task(env, task):
    begin(env, task, seed=3)
    rewards, is_success = follow_expert(env)
    assert is_success and rewards == [0.0] * (len(rewards) - 1) + [1.0]


@pytest.fixture
def pointing():
    env = MiniWoBEnv(pointer=True, split="all")
    yield env
    env.close()


@pytest.mark.parametrize("task", sorted(POINTER_EXPERTS))
def test_the_mouse_solves_what_needs_a_place_or_a_drag(pointing, task):
    for seed in (3, 4, 5):
        begin(pointing, task, seed=seed)
        rewards, is_success = follow_expert(pointing)
        # Where a page measures how near a click is, a pixel costs a part of the reward.
        assert is_success or (rewards[-1] > 0.9 and not task.startswith("drag")), (seed, rewards)
        assert pointing.index == TASKS.index(task)


def test_the_experts_of_the_mouse_are_for_tasks_that_have_no_other():
    assert len(POINTER_EXPERTS) >= 13 and not set(POINTER_EXPERTS) & set(EXPERTS)
    assert set(POINTER_EXPERTS) <= set(TASKS)


def test_places_are_shown_and_taken_only_where_they_are_asked_for(env, pointing):
    plain, placed = begin(env, "drag-circle"), begin(pointing, "drag-circle")
    assert "box:" not in plain and "mouse_click" not in env.system_prompt
    assert (
        "graphics-symbol '' clickable: True box: " in placed and "mouse_drag [x] [y] [x] [y]" in pointing.system_prompt
    )
    said, _, _, _, info = env.step("mouse_click [10] [60]")
    assert "'mouse_click [10] [60]' is not an action" in said and info["is_invalid_action"]
    for action, error in [
        ("mouse_click [500] [60]", "The place 500, 60 is outside of the page's 500 x 320 pixels."),
        ("mouse_drag [10] [60] [10] [320]", "The place 10, 320 is outside of"),
        ("drag [2] [99]", "There is no element [99] on this page."),
        ("drag [99] [2]", "There is no element [99] on this page."),
    ]:
        said, _, _, _, info = pointing.step(action)
        assert f"ERROR: {error}" in said and info["is_invalid_action"]
    with pytest.raises(ConfigError, match="pointer must be true or false; got 'yes'"):
        MiniWoBEnv(pointer="yes")


def test_an_element_is_dragged_onto_another_and_a_click_falls_where_it_is_asked_for(pointing):
    begin(pointing, "drag-box", seed=1)
    small, large = (next(n for n in pointing.nodes if f"draggable{size}" in n.hint) for size in ("Small", "Large"))
    before = box(large)
    said = pointing.step(f"drag [{small.id}] [{large.id}]")[0]
    assert "ERROR" not in said
    small, large = (next(n for n in pointing.nodes if f"draggable{size}" in n.hint) for size in ("Small", "Large"))
    assert box(large) == before and is_inside(small, large)
    submit = next(node for node in pointing.nodes if node.name == "Submit")
    x, y, width, height = box(submit)
    _, reward, terminated, _, _ = pointing.step(f"mouse_click [{x + width // 2}] [{y + height // 2}]")
    assert (reward, terminated) == (1.0, True)


def test_every_task_begins_with_its_instruction_and_says_no_more_than_it_may(env):
    def look(number):
        env = MiniWoBEnv(split="all")
        texts = []
        for task in TASKS[number::4]:
            texts.append((task, begin(env, task), env.instruction))
        env.close()
        return texts

    with ThreadPoolExecutor(4) as pool:
        texts = [text for part in pool.map(look, range(4)) for text in part]
    assert sorted(task for task, _, _ in texts) == list(TASKS)
    for task, text, instruction in texts:
        assert instruction and text.startswith(f"OBJECTIVE: {instruction}\n[1] RootWebArea "), task
        assert f"\nURL: http://miniwob.test/miniwob/{task}.html\nTABS: Tab 0 (current): " in text
        assert "Last reward" not in text and "START" not in text and "ERROR" not in text


# Episodes.


def test_a_wrong_answer_ends_the_episode_with_nothing(env):
    begin(env, "click-test-2")
    text, reward, terminated, _, info = env.step(f"click [{id_of(env, 'TWO')}]")
    assert (reward, terminated, info["is_success"]) == (0.0, True, False)
    text, reward, terminated, _, _ = env.step(f"click [{id_of(env, 'ONE')}]")
    assert (reward, terminated) == (0.0, True) and "ERROR: The task is over." in text


def test_an_action_is_invalid_where_it_asks_for_what_is_not_there(env):
    begin(env, "click-test-2")
    button = id_of(env, "TWO")
    asked = ["click [999]", "type [999] [x]", "press [Nokey]", "tab_focus [3]", "goto [http://example.com]"]
    possible = [f"hover [{button}]", "scroll [down]", "click [999]", f"click [{button}]", "click [999]"]
    assert [env.step(text)[4]["is_invalid_action"] for text in asked] == [True] * 5
    # The last one comes after the end.
    assert [env.step(text)[4]["is_invalid_action"] for text in possible] == [False, False, True, False, False]


def test_partial_rewards_are_the_pages(env):
    begin(env, "phone-book")
    wrong = {"email": "phone", "phone": "address", "address": "email"}
    name, what = re.search(r"Find (\w+) in the contact book and click on their (\w+)", env.instruction).groups()
    while not any(node.role == "heading" and node.name == name for node in env.nodes):
        env.step(f"click [{id_of(env, '>')}]")
    label = next(i for i, node in enumerate(env.nodes) if node.name == f"{wrong[what].capitalize()}:")
    _, reward, terminated, _, info = env.step(f"click [{env.nodes[label + 1].id}]")
    assert (reward, terminated, info["is_success"]) == (0.4, True, False)  # 0.7 for the person, -0.3 for the detail


def test_stopping_ends_an_episode_without_reward(env):
    begin(env, "click-test")
    _, reward, terminated, _, info = env.step("Thought: no.\nAction: stop []")
    assert (reward, terminated, info["is_success"]) == (0.0, True, False)


def test_another_tasks_page_gives_no_reward(env):
    begin(env, "book-flight")
    env.step("goto [http://miniwob.test/miniwob/click-test.html]")
    env._page.evaluate("core.startEpisodeReal()")
    env.step("scroll [down]")
    _, reward, terminated, _, _ = env.step(f"click [{id_of(env, 'Click Me!')}]")
    assert env._page.evaluate("WOB_RAW_REWARD_GLOBAL") == 1
    assert (reward, terminated) == (0.0, False)


def test_the_pages_time_does_not_run_out(env):
    begin(env, "click-test")
    for _ in range(15):  # the page gives 10 seconds, and an action takes one
        _, reward, terminated, _, _ = env.step("scroll [down]")
        assert (reward, terminated) == (0.0, False)
    assert follow_expert(env) == ([1.0], True)


def test_animations_repeat(env):
    def play():
        begin(env, "click-collapsible-2", seed=4)
        return [env.step(f"click [{id_of(env, name)}]")[0] for name in ("Section #2", "Section #1", "Section #2")]

    assert play() == play()


def test_icons_are_there_however_late_they_come(env, monkeypatch):
    async def serve_late(folder, sites, route):
        if route.request.resource_type == "image":
            await asyncio.sleep(0.5)
        await serve(folder, sites, route)

    serve = window._serve
    monkeypatch.setattr(window, "_serve", serve_late)
    begin(env, "email-inbox-delete", seed=3)  # its icons are images of the style sheet, and as wide as these
    assert any("trash" in node.hint.split() for node in env.nodes)
    rewards, is_success = follow_expert(env)
    assert is_success and rewards[-1] == 1.0


def test_the_seed_decides_what_a_task_asks_for(env):
    assert begin(env, "enter-text", seed=1) == begin(env, "enter-text", seed=1)
    assert len({begin(env, "enter-text", seed=seed) for seed in range(5)}) > 2


def test_the_expert_gives_up_where_it_knows_nothing(env):
    begin(env, "draw-circle")
    assert env.expert_action() == "Thought: I do not know what to do here.\nAction: stop []"
    assert advise("click-link", 'Click on the link "a".', ()).endswith("Action: stop []")
    assert advise("phone-book", "Do something else.", ()).endswith("Action: stop []")


def test_a_screenshot_is_rendered():
    env = MiniWoBEnv(render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.render()
    begin(env, "click-color")
    picture = env.render()
    assert picture.shape == (320, 500, 3) and len({tuple(color) for color in picture.reshape(-1, 3).tolist()}) > 5
    env.close()
    for mode in ("human", "rgb_array_list"):
        with pytest.raises(ConfigError, match="render_mode"):
            MiniWoBEnv(render_mode=mode)


# Size.


@pytest.mark.parametrize("budget", [256, 400])
def test_an_observation_keeps_to_its_budget(budget):
    env = gymnasium.make("rllm_gym:rllm_gym/MiniWoB-v0", max_observation_tokens=budget, system_prompt="")
    count = env.unwrapped.count_tokens
    env.reset(seed=0, options={"item_id": "miniwob_order-food"})
    ids = env.step(env.get_wrapper_attr("encode_action")("Action: fly"))[0]
    text = env.step(env.get_wrapper_attr("encode_action")("Action: scroll [down]"))[4]["messages"][-1]["content"]
    assert text.startswith(f"OBJECTIVE: {env.unwrapped.instruction}\n") and "more lines below" in text
    assert "URL: http://miniwob.test/miniwob/order-food.html" in text
    overhead = len(env.get_wrapper_attr("chat").encode_reply("", add_generation_prompt=True))
    assert 0.8 * budget < len(ids) <= budget + overhead
    assert 0.8 * budget < count(text) <= budget
    env.close()
    with pytest.raises(ConfigError, match="max_observation_tokens must be an integer of at least 256"):
        MiniWoBEnv(max_observation_tokens=10)


def test_a_budget_of_any_size_keeps_to_the_text_space():
    env = MiniWoBEnv(max_observation_tokens=10**6)
    longest = "a" * (env.observation_space.max_length + 1)
    assert env.count_tokens(longest) < 10**6 < env._cost(longest)


def test_resets_leave_no_windows_behind(env):
    begin(env, "click-test")
    contexts = env._page._browser._chromium.contexts
    for seed in range(5):
        begin(env, "click-test", seed)
    assert len(env._page._browser._chromium.contexts) <= len(contexts) + 1


def test_sixteen_environments_play_at_once(env):
    def play(number):
        env = MiniWoBEnv(split="all")
        begin(env, "click-checkboxes", seed=number)
        text = env.instruction
        result = follow_expert(env)
        return env, text, result

    with ThreadPoolExecutor(16) as pool:
        played = list(pool.map(play, range(16)))
    used = process_tree_bytes(with_root=False)
    for other, text, (_, is_success) in played:
        assert is_success and text == other.instruction
        other.close()
    assert used < 2e9


# What is missing.


def test_a_missing_package_is_said_in_one_line(monkeypatch, env):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install --no-deps miniwob==1.1.0")):
        begin(env, "click-test")


def test_a_dead_browser_fails_the_episode_and_the_next_reset_starts_anew(env):
    begin(env, "click-test")
    process = env._page._browser._process
    process.kill()
    process.wait()
    with pytest.raises(EnvError):
        env.step("scroll [down]")
    begin(env, "click-test")
    assert follow_expert(env) == ([1.0], True)
