"""The shop's and the forum's pages with scripts, in a real browser."""

import re

import pytest

from rllm_gym.envs.webarena.embedded import expert_steps, load_tasks
from rllm_gym.envs.webarena.embedded_tasks import reddit_widgets, shopping_widgets
from rllm_gym.envs.webarena.env import WebArenaEnv
from tests.envs.webarena_helpers import solve, solve_in_spite_of_clicks

pytestmark = pytest.mark.slow

SENTENCES = {each.sentence for module in (shopping_widgets, reddit_widgets) for each in module.templates}
TASKS = [task for task in load_tasks() if task["intent_template"] in SENTENCES]
PAGES = {"shopping": "http://shop.test/products", "reddit": "http://forum.test/archive"}
NUM_PARTS = 4


@pytest.fixture(scope="module")
def env(needs_browser):
    env = WebArenaEnv(task_set="embedded", split="all")
    yield env
    env.close()


def begin(env, site, page):
    """Begin a task of a site, and go to a page of it."""
    env.reset(options={"item_id": next(task["task_id"] for task in TASKS if task["sites"] == [site])})
    return env.step(f"goto [{page}]")[0]


def act(env, observation, line, action="click [{}]"):
    found = re.search(rf"\[(\d+)\] {re.escape(line)}", observation)
    assert found, observation
    return env.step(action.format(found[1]))[0]


def column(env, number):
    """Return the texts of a column of the list, as far as it has grown."""
    return env.page.evaluate(
        f"[...document.querySelectorAll('#list tbody tr')].map(row => row.cells[{number}].innerText)"
    )


def test_each_site_has_tasks_for_its_scripts_in_both_splits():
    assert len(TASKS) == 66 and [task["task_id"] for task in TASKS] == list(range(426, 492))
    for site in PAGES:
        assert {task["split"] for task in TASKS if task["sites"] == [site]} == {"train", "eval"}
    assert sum(len(expert_steps(task)) >= 8 for task in TASKS) >= 24


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_the_expert_solves_every_task_and_none_is_solved_at_the_start(part, env):
    for task in TASKS[part::NUM_PARTS]:
        solve(env, task)


def test_the_expert_finds_its_way_back_after_clicks_on_anything(env):
    for task in {task["intent_template_id"]: task for task in TASKS}.values():
        solve_in_spite_of_clicks(env, task)


@pytest.mark.parametrize("site", PAGES)
def test_a_list_fills_an_observation_and_grows_as_one_scrolls_alike_each_time(site, env):
    seen = []
    for _ in range(3):
        pages = [begin(env, site, PAGES[site])]
        lengths = [len(column(env, 0))]
        for _ in range(6):
            pages.append(env.step("scroll [down]")[0])
            lengths.append(len(column(env, 0)))
        assert lengths[0] == 25 and lengths[-1] > 50 and lengths == sorted(lengths)
        seen.append((lengths, pages))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0][1][0]) >= 3000


def numbers(env, column_number):
    return [float(text.strip("$ g").replace(",", "")) for text in column(env, column_number)]


def test_a_list_is_sorted_and_filtered_as_a_whole_in_the_page(env):
    category, price, weight = 1, 2, 3
    observation = begin(env, "shopping", PAGES["shopping"])
    observation = act(env, observation, "button 'Sort by weight'")
    heaviest = numbers(env, weight)
    assert len(heaviest) == 25 and heaviest == sorted(heaviest, reverse=True)
    assert heaviest[0] == env._sites._server.database.value("SELECT max(weight_g) FROM products WHERE is_enabled")
    observation = act(env, observation, "button 'Sort by weight'")  # once more turns it round
    lightest = numbers(env, weight)
    assert lightest == sorted(lightest) and lightest[-1] < heaviest[-1]
    observation = act(env, observation, "textbox 'Filter'", "type [{}] [bakeware] [0]")
    assert set(column(env, category)) == {"Bakeware"} and len(column(env, category)) > 20
    assert numbers(env, weight) == sorted(numbers(env, weight))
    observation = act(env, observation, "button 'Sort by price'")  # what is left is sorted
    assert numbers(env, price) == sorted(numbers(env, price), reverse=True)
    assert set(column(env, category)) == {"Bakeware"}
    observation = act(env, observation, "textbox 'Filter'", "type [{}] [no such thing] [0]")
    assert column(env, 0) == [] and "Scroll down for more" not in observation
    act(env, observation, "textbox 'Filter'", "type [{}] [] [0]")
    for _ in range(40):  # without a look, which takes its time where there are so many rows
        env.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        env.page.scroll("down")
    assert len(set(column(env, 0))) == len(column(env, 0)) == 310
    assert numbers(env, price) == sorted(numbers(env, price), reverse=True)


def test_a_dialog_shows_what_its_row_is_about(env):
    observation = begin(env, "shopping", PAGES["shopping"])
    first = column(env, 0)[0]
    observation = act(env, observation, "button 'Details'")
    assert "dialog 'Details'" in observation and f"heading '{first}'" in observation
    assert re.search(r"StaticText 'Made in \w+'", observation)
    observation = act(env, observation, "button 'Close'")
    assert "dialog" not in observation and "Made in" not in observation


def test_fields_suggest_as_one_types_and_a_typed_name_alone_is_not_enough(env):
    observation = begin(env, "shopping", "http://shop.test/quick-order")
    observation = act(env, observation, "combobox 'Product 1'", "type [{}] [Corvo Pil] [0]")
    observation = act(env, observation, "option 'Corvo Pillow'")
    assert "combobox 'Product 1' value: 'Corvo Pillow'" in observation and "option '" not in observation
    observation = act(env, observation, "button 'Add a line'")
    observation = act(env, observation, "button 'Add a line'")
    assert "combobox 'Product 3'" in observation and "textbox 'Quantity 3' value: '1'" in observation
    observation = act(env, observation, "combobox 'Product 2'", "type [{}] [Corvo Tea Kettle] [0]")
    assert "option 'Corvo Tea Kettle'" in observation
    observation = act(env, observation, "button 'Put into cart'")
    assert "Please choose each product from the suggestions." in observation


def test_only_a_member_that_was_chosen_gets_a_message(env):
    observation = begin(env, "reddit", "http://forum.test/messages")
    observation = act(env, observation, "button 'New message'")
    assert "dialog 'A new message'" in observation and "link 'Archive'" not in observation
    observation = act(env, observation, "combobox 'To'", "type [{}] [a] [0]")
    assert "option '" not in observation
    observation = act(env, observation, "combobox 'To'", "type [{}] [an] [0]")
    assert len(re.findall(r"option '\w+'", observation)) == 6
    observation = act(env, observation, "textbox 'Message'", "type [{}] [Hello] [0]")
    observation = act(env, observation, "button 'Send'")
    assert "Please choose a member from the suggestions." in observation
