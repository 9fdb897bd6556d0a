"""The map among the embedded sites, in a real browser, for all of its pages have scripts."""

import random
import re
import statistics
import time

import pytest

from rllm_gym.envs.webarena.embedded import expert_steps, load_tasks
from rllm_gym.envs.webarena.embedded_tasks import map as map_tasks
from rllm_gym.envs.webarena.env import WebArenaEnv
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.map import KMH, find_route
from rllm_gym.envs.webarena.sites.seed import seeded_image
from tests.envs.webarena_helpers import solve, solve_in_spite_of_clicks

TASKS = [task for task in load_tasks() if task["sites"] == ["map"]]
NUM_PARTS = 6


@pytest.fixture(scope="module")
def env(needs_browser):
    env = WebArenaEnv(task_set="embedded", split="all")
    yield env
    env.close()


@pytest.fixture
def town():
    database = Database(seeded_image())
    yield database
    database.close()


def begin(env, intent):
    task = next(task for task in TASKS if task["intent"].startswith(intent))
    return env.reset(options={"item_id": task["task_id"]})[0]


def number_of(observation, line):
    """Return the number of the first element whose line begins so."""
    found = re.search(rf"\[(\d+)\] {re.escape(line)}", observation)
    assert found, observation
    return found[1]


def click(env, observation, line):
    return env.step(f"click [{number_of(observation, line)}]")[0]


def write(env, observation, line, text):
    return env.step(f"type [{number_of(observation, line)}] [{text}] [0]")[0]


def test_there_are_sixty_tasks_of_eight_steps_and_more():
    lengths = [len(expert_steps(task)) for task in TASKS]
    assert sum(length >= 8 for length in lengths) >= 60 and max(lengths) >= 14
    assert {task["split"] for task in TASKS} == {"train", "eval"}
    assert [task["task_id"] for task in TASKS] == list(range(360, 360 + len(TASKS)))  # the others' numbers stay


def test_the_town_has_three_hundred_places_and_every_one_can_be_reached(town):
    places = town.all("SELECT * FROM places")
    assert len(places) >= 300 and len({row["name"] for row in places}) == len(places)
    rng = random.Random(0)
    for mode in ("walk", "cycle", "drive"):
        for _ in range(20):
            find_route(town, rng.sample(places, 2), mode)


def test_a_route_is_the_quickest(town):
    """Against Bellman and Ford's algorithm, written here: relax every road until nothing changes."""
    places, roads = town.all("SELECT * FROM places"), town.all("SELECT * FROM roads")
    for mode in ("walk", "drive"):
        start, end = random.Random(mode).sample(places, 2)
        seconds = {start["junction_id"]: 0.0}
        while True:
            before = dict(seconds)
            for row in roads:
                spent = row["metres"] * 3.6 / KMH.get(mode, row["kmh"])
                for here, there in ((row["a"], row["b"]), (row["b"], row["a"])):
                    if here in seconds:
                        seconds[there] = min(seconds.get(there, 1e9), seconds[here] + spent)
            if seconds == before:
                break
        way = find_route(town, [start, end], mode)
        assert way.minutes == -(-seconds[end["junction_id"]] // 60)
        assert way.metres == sum(leg.metres for leg in way.legs)
    whole = find_route(town, places[:3], "walk")
    parts = [find_route(town, places[k : k + 2], "walk") for k in range(2)]
    assert whole.metres == sum(part.metres for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_the_expert_solves_every_task_and_none_is_solved_at_the_start(part, env):
    for task in TASKS[part::NUM_PARTS]:
        assert solve(env, task) >= len(expert_steps(task))


@pytest.mark.slow
def test_the_expert_finds_its_way_back_after_clicks_on_anything(env):
    for task in {task["intent_template_id"]: task for task in TASKS}.values():
        solve_in_spite_of_clicks(env, task)


@pytest.mark.slow
def test_fields_suggest_while_one_types_and_a_typed_name_alone_is_not_enough(env):
    observation = begin(env, "Show me the way")
    observation = click(env, observation, "link 'Directions'")
    observation = write(env, observation, "combobox 'From'", "amber")
    assert len(re.findall(r"option 'Amber \w+'", observation)) == 6 and "expanded: True" in observation
    observation = click(env, observation, "option 'Amber Bank'")
    assert "combobox 'From' value: 'Amber Bank'" in observation and "option '" not in observation
    observation = write(env, observation, "combobox 'To'", "Birch Bank")
    observation = click(env, observation, "radio 'By car'")
    observation = click(env, observation, "button 'Get directions'")
    assert "Please choose places from the suggestions" in observation


@pytest.mark.slow
def test_a_list_grows_as_one_scrolls_and_is_sorted_by_its_script(env):
    observation = begin(env, "Open the page of the place at")
    observation = click(env, observation, "link 'Places'")
    assert len(observation) >= 3000 and "340 places" in observation

    def rows():
        return env.page.evaluate("document.querySelectorAll('#list tbody tr').length")

    assert rows() == 25
    grown = []
    for _ in range(8):
        env.step("scroll [down]")
        grown.append(rows())
    assert grown[-1] > 25 and grown == sorted(grown)
    observation = begin(env, "Save the")
    kind = re.search(r"Save the (\w+) with", observation)[1]
    observation = click(env, observation, f"link '{kind}'")
    observation = click(env, observation, "button 'Sort by rating'")
    ratings = [
        float(text)
        for text in env.page.evaluate("[...document.querySelectorAll('td:last-child')].map(e => e.innerText)")
    ]
    assert len(ratings) == 25 and ratings == sorted(ratings, reverse=True)


@pytest.mark.slow
def test_a_dialog_takes_the_page_and_gives_it_back(env):
    begin(env, "Save ")
    for _ in range(4):
        observation = env.step(env.expert_action())[0]
    assert "dialog 'Save this place'" in observation and "link 'Directions from here'" not in observation
    observation = click(env, observation, "button 'Cancel'")
    assert "dialog" not in observation and "link 'Directions from here'" in observation


@pytest.mark.slow
def test_the_same_actions_lead_to_the_same_pages_and_a_step_takes_a_moment(env):
    task = next(task for task in TASKS if task["intent"].startswith("Save ") and "both" in task["intent"])
    seen, times = [], []
    for _ in range(2):
        pages = [env.reset(options={"item_id": task["task_id"]})[0]]
        is_over = False
        while not is_over:
            action = env.expert_action()
            begun = time.process_time(), time.perf_counter()
            page, _, is_over, _, _ = env.step(action)
            times.append(time.perf_counter() - begun[1])
            pages.append(page)
        seen.append(pages)
    assert seen[0] == seen[1]
    assert statistics.median(times) < 1.0  # 0.06 s on a quiet machine


def test_the_templates_say_what_is_on_the_map():
    assert {template.site for template in map_tasks.templates} == {"map"}
    assert len(map_tasks.templates) == 11
