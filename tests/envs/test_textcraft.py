"""TextCraft: parity with recorded transcripts, tasks, splits, grammar, expert."""

import copy
import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rllm_gym.envs.base import parse_action
from rllm_gym.envs.textcraft.env import MAX_ACTION_CHARS, TextCraftEnv
from rllm_gym.envs.textcraft.expert import plan
from rllm_gym.envs.textcraft.recipes import load_book
from rllm_gym.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "textcraft.json").read_text())


def env_at(item, seed=0, **kwargs):
    env = TextCraftEnv(**kwargs)
    env.reset(seed=seed, options={"item_id": item})
    return env


def replies(env, *actions):
    return [env.step(action)[0] for action in actions]


# Parity.


def test_goals_stand_in_the_recorded_order_with_the_recorded_depths():
    book = load_book()
    assert list(book.goals) == GOLDEN["goals"]
    counts = Counter(book.depths[goal] for goal in book.goals)
    assert {str(depth): count for depth, count in counts.items()} == GOLDEN["depths"]


@pytest.mark.parametrize("form", ["{}", "Thought: so be it.\nAction: {}", "Thought: so be it. Action: {}"])
@pytest.mark.parametrize("episode", GOLDEN["episodes"], ids=lambda episode: episode["goal"].removeprefix("minecraft:"))
def test_replies_and_rewards_are_the_recorded_ones(episode, form):
    env = TextCraftEnv()
    _, info = env.reset(seed=0, options={"item_id": episode["item"]})
    assert info["category"] == f"depth_{episode['depth']}"
    got = [[action, *env.step(form.format(action))[:3]] for action, *_ in episode["steps"]]
    assert got == episode["steps"]


# Grammar: each row is a state, an action and AgentGym's reply.

STICKS = ("get 4 oak logs", "craft 4 oak planks using 1 oak logs", "craft 4 oak planks using 1 oak logs")


@pytest.mark.parametrize(
    ("before", "action", "reply"),
    [
        ((), "get 0 oak logs", "Got 0 oak logs"),
        (("get 0 oak logs",), "inventory", "Inventory: [oak logs] (0) "),
        ((), "get 007 oak_logs", "Got 7 oak_logs"),
        ((), "get 2 oak logs\nget 1 clay ball", "Got 2 oak logs"),
        ((), "get 2 Oak logs", "Could not find Oak logs"),
        ((), "get 1 planks", "Could not find planks"),
        ((), "get 5", "Could not execute get 5"),
        ((), "get 9999999999999 oak logs", "Could not execute get 9999999999999 oak logs"),
        (STICKS, "craft 4 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
        (STICKS, "craft 99 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
        (STICKS, "craft stick using  2 oak planks ", "Crafted 4 minecraft:stick"),
        (
            STICKS,
            "craft 4 stick using 1 oak planks, 1 oak planks",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:stick'), "
            "count=4)",
        ),
        (
            STICKS,
            "craft 1 planks using 1 oak logs",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag='minecraft:planks', "
            "item_id=None), count=1)",
        ),
        (STICKS, "craft 4 stick using 2 planks", "Could not find enough items to craft minecraft:stick"),
        (STICKS, "craft 4 planks using 2 planks", "Could not find enough items to craft None"),
        (STICKS, "craft 4 stick using 99 oak planks", "Could not find enough items to craft minecraft:stick"),
        (STICKS, "craft 4 stick using 2 oak planks, oak logs", "Wrong item format: oak logs"),
    ],
)
def test_an_action_gets_the_documented_reply(before, action, reply):
    env = env_at(0)
    replies(env, *before)
    got, *_, info = env.step(action)
    assert got == reply
    assert info["is_invalid_action"] is reply.startswith(("Could not", "Wrong"))


def test_crafting_takes_its_ingredients_and_a_failed_one_takes_nothing():
    env = env_at(0)
    replies(env, *STICKS, "craft 4 stick using 2 oak planks", "craft 4 stick using 3 oak planks")
    # 4 logs - 2, 8 planks - 2, 4 sticks
    assert replies(env, "inventory") == ["Inventory: [oak logs] (2) [oak planks] (6) [stick] (4) "]


def test_a_second_goal_after_the_end_is_rewarded_again_and_success_stays():
    env = env_at("textcraft_0")
    actions = ("get 2 acacia logs", *2 * ("craft 4 acacia planks using 1 acacia logs",), "inventory")
    steps = [env.step(action) for action in actions]
    assert [step[1] for step in steps] == [0.0, 1.0, 1.0, 0.0]
    assert [step[4]["is_success"] for step in steps] == [False, True, True, True]


def test_a_long_text_is_read_and_quoted_only_in_part():
    (reply,) = replies(env_at(0), "x" * 100_000)
    assert reply == "Could not execute " + "x" * MAX_ACTION_CHARS
    assert replies(env_at(0), "craft 1 stick using " + "9" * 100_000 + " oak logs") == [
        "Wrong item format: " + "9" * (MAX_ACTION_CHARS - len("craft 1 stick using "))
    ]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("get 1 x", "get 1 x"),
        ("  get 1 x \n", "get 1 x"),
        ("Thought: why.\nAction: get 1 x", "get 1 x"),
        ("Thought: why. Action:get 1 x", "get 1 x"),
        ("Action: a\nAction:\n\n b\nc\n", "b\nc"),
        ("Action:", ""),
        ("action: a", "action: a"),
        ("", ""),
    ],
)
def test_the_action_is_what_follows_the_last_marker(text, action):
    assert parse_action(text) == action


def test_token_ids_at_the_text_level_are_refused_in_one_line():
    with pytest.raises(TypeError, match=r"parse_action: an action is a string; got ndarray\. .*obs_type"):
        env_at(0).step(np.array([1, 2, 3]))


def test_a_step_before_the_first_reset_says_so():
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        TextCraftEnv().step("inventory")


# Tasks.


def commands(observation):
    head, goal = observation.split("\n\nGoal: craft ")
    title, *lines = head.split("\n")
    assert title == "Crafting commands:" and goal.endswith(".")
    return lines, goal[:-1]


def test_a_task_lists_what_it_takes_and_at_most_ten_other_recipes():
    needed = {"craft 1 iron leggings using 7 iron ingot", "craft 1 iron ingot using 9 iron nugget"}
    others, orders = set(), set()
    for seed in range(30):
        lines, goal = commands(TextCraftEnv().reset(seed=seed, options={"item_id": 252})[0])
        assert goal == "iron leggings"
        assert needed <= set(lines)
        assert len(lines) == len(set(lines)) == 2 + 10
        assert all("iron ingot" in line.split(" using ")[1] or "iron nugget" in line for line in set(lines) - needed)
        others |= set(lines) - needed
        orders.add(lines.index("craft 1 iron leggings using 7 iron ingot"))
    assert len(others) > 20  # of 34
    assert len(orders) > 6  # the needed ones stand anywhere
    # Nothing else uses acacia logs, and what uses the goal itself, acacia planks, is not listed.
    lines, _ = commands(TextCraftEnv().reset(seed=0, options={"item_id": 0})[0])
    assert lines == ["craft 4 acacia planks using 1 acacia logs"]


def test_every_task_can_be_solved_with_what_it_lists():
    env = TextCraftEnv(split="all")
    for item in env.item_ids:
        lines, _ = commands(env.reset(seed=0, options={"item_id": item})[0])
        outputs = {line.split(" using ")[0] for line in lines}
        while not env.is_success:
            action = env.expert_action().rpartition("Action: ")[2]
            assert action.startswith("get ") or action.split(" using ")[0] in outputs
            env.step(action)


def test_tasks_do_not_depend_on_pythons_hash_seed():
    program = (
        "from rllm_gym.envs.textcraft.env import TextCraftEnv; import hashlib; env = TextCraftEnv(split='eval');"
        "text = ''.join(env.reset(seed=s)[0] + env.expert_action() for s in range(50));"
        "print(hashlib.sha256((text + str(env.item_ids)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and len(digests.pop()) == 65


# Selections.


def depths_of(env):
    book = load_book()
    return Counter(book.depths[book.goals[int(item.removeprefix("textcraft_"))]] for item in env.item_ids)


def test_the_splits_have_the_papers_sizes_at_each_depth():
    assert depths_of(TextCraftEnv(split="eval")) == {1: 31, 2: 41, 3: 25, 4: 3}
    assert depths_of(TextCraftEnv(split="train")) == {1: 125 - 31, 2: 291 - 41, 3: 117 - 25, 4: 11 - 3}
    assert TextCraftEnv(split="all").item_ids == [f"textcraft_{i}" for i in range(544)]


def test_the_eval_split_stays_what_it_is():
    # A change of these items makes results incomparable and needs TextCraft-v1.
    ids = TextCraftEnv(split="eval").item_ids
    assert ids[:6] == [f"textcraft_{i}" for i in (2, 6, 7, 10, 14, 15)]
    assert hashlib.sha256(" ".join(ids).encode()).hexdigest()[:16] == "c723ff6a03bbb8eb"


@pytest.mark.parametrize(("depth", "counts"), [(1, {1: 31}), ([2, 4], {2: 41, 4: 3}), ((3,), {3: 25})])
def test_depth_restricts_a_split(depth, counts):
    assert depths_of(TextCraftEnv(split="eval", depth=depth)) == counts


def test_a_plain_reset_draws_every_selected_item_and_no_other():
    env = TextCraftEnv(item_ids=["textcraft_3", 500, np.int64(17)])
    env.reset(seed=0)
    assert env.item_ids == ["textcraft_3", "textcraft_500", "textcraft_17"]
    counts = Counter(env.reset()[1]["item_id"] for _ in range(600))
    assert set(counts) == set(env.item_ids)
    assert min(counts.values()) > 150  # 200 expected, 11.5 the standard deviation


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("item_id", ["textcraft_17", 17, np.int64(17), "minecraft:clay", "clay"])
def test_any_item_can_be_asked_for_whatever_the_split(split, item_id):
    observation, info = TextCraftEnv(split=split, depth=4).reset(options={"item_id": item_id})
    assert info["item_id"] == "textcraft_17" and observation.endswith("Goal: craft clay.")


def test_item_ids_come_from_a_file_of_ids_or_of_objects(tmp_path):
    objects, plain = tmp_path / "objects.json", tmp_path / "plain.json"
    objects.write_text('[{"item_id": "textcraft_17", "more": 1}, {"item_id": "textcraft_0"}]')
    plain.write_text('["textcraft_17", 0]')
    for path in (objects, str(plain)):
        assert TextCraftEnv(item_ids=path).item_ids == ["textcraft_17", "textcraft_0"]


def test_item_ids_and_a_named_split_together_keep_what_is_in_both():
    train = TextCraftEnv(split="train").item_ids
    evaluation = TextCraftEnv(split="eval").item_ids
    assert TextCraftEnv(split="eval", item_ids=[train[0], evaluation[1]]).item_ids == [evaluation[1]]


def test_the_system_prompt_can_be_replaced_and_left_out():
    assert "Action:" in TextCraftEnv().system_prompt
    assert TextCraftEnv(system_prompt="Craft!").system_prompt == "Craft!"
    assert TextCraftEnv(system_prompt="").system_prompt == ""


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"split": "val"}, r"split must be one of train, eval, all; got 'val'\. Did you mean 'eval'\?"),
        ({"depth": 5}, "depth must be .* got 5"),
        ({"depth": True}, "depth must be .* got True"),
        ({"depth": "1"}, "depth must be .* got '1'"),
        ({"depth": []}, r"depth must be .* got \[\]"),
        ({"depth": [1, 0]}, r"depth must be .* got \[1, 0\]"),
        ({"depth": 2.0}, "depth must be .* got 2.0"),
        ({"depth": [[1]]}, r"depth must be .* got \[\[1\]\]"),
        ({"system_prompt": 3}, "system_prompt must be a text; got 3"),
        ({"item_ids": [544]}, "from 0 to 543.* got 544"),
        ({"item_ids": [-1]}, "from 0 to 543.* got -1"),
        ({"item_ids": ["9" * 5000]}, "from 0 to 543.* got '9+'"),
        ({"item_ids": [{"id": 3}]}, "from 0 to 543.* got {'id': 3}"),
        ({"item_ids": [True]}, "from 0 to 543.* got True"),
        ({"item_ids": ["babyai_3"]}, "from 0 to 543.* got 'babyai_3'"),
        ({"item_ids": []}, "some item must be left"),
        ({"item_ids": 17}, r"item_ids must be a list .* got 17 \(int\)"),
        ({"item_ids": [0], "depth": 4}, "some item must be left"),
        ({"item_ids": "/no/such/file.json"}, "item_ids must be .* cannot be read"),
    ],
)
def test_a_bad_selection_is_refused_in_one_line(kwargs, message):
    with pytest.raises(ConfigError, match=f"^TextCraftEnv: .*{message}") as error:
        TextCraftEnv(**kwargs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"item_id": "textcraft_17"}\n{"item_id": "textcraft_3"}\n',
        '\ufeff"textcraft_17"\r\n\r\n3\r\n',
        '\n[\n  {"item_id": "textcraft_17"},\n  {"item_id": 3}\n]',
    ],
    ids=["json lines", "bare ids, mark of the byte order, blank line", "json"],
)
def test_items_come_from_json_and_from_json_lines(tmp_path, monkeypatch, text):
    (tmp_path / "items.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TextCraftEnv(item_ids="~/items.jsonl").item_ids == ["textcraft_17", "textcraft_3"]


@pytest.mark.parametrize("text", ["", "not json", '{\n"item_id": 1}', '["textcraft_17", null]', '[{"id": 1}]', "[[1]]"])
def test_a_bad_file_of_items_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "items.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"^TextCraftEnv: [^\n]*$"):
        TextCraftEnv(item_ids=path)


@pytest.mark.parametrize("options", [{"item_id": 544}, {"item_id": "mud"}, {"item_id": 1.0}, {"itemid": 17}, [17]])
def test_bad_reset_options_are_refused_and_leave_the_episode_alone(options):
    env = env_at(17)
    env.step("get 4 clay ball")
    with pytest.raises(ConfigError, match="TextCraftEnv"):
        env.reset(seed=1, options=options)
    assert replies(env, "inventory") == ["Inventory: [clay ball] (4) "]


# Expert.


def test_the_expert_solves_all_goals_without_a_failed_command_and_writes_thought_and_action():
    env = TextCraftEnv(split="all")
    turns = Counter()
    for item in range(544):
        _, info = env.reset(seed=item, options={"item_id": item})
        while not info["is_success"]:
            text = env.expert_action()
            thought, action = text.split("\n")
            assert thought.startswith("Thought: I ") and action.startswith(("Action: get ", "Action: craft "))
            reply, *_, info = env.step(text)
            assert reply.startswith(("Got ", "Crafted "))
            turns[info["category"]] += 1
    # Means 2.20, 5.22, 10.4 and 19.0; a planner that gathers for each craft by itself needs 2.2, 6.9, 14.7 and 26.3.
    assert turns == {"depth_1": 275, "depth_2": 1520, "depth_3": 1212, "depth_4": 209}


def test_a_plan_holds_as_a_whole():
    env = TextCraftEnv(split="all")
    for item in range(544):
        env.reset(seed=item, options={"item_id": item})
        steps = [env.step(action) for action in plan(load_book().goals[item], {})]
        assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [True]


def test_the_expert_solves_every_goal_from_strange_states():
    rng = np.random.default_rng(0)
    gettable = sorted(load_book().gettable)
    env, other = TextCraftEnv(split="all"), TextCraftEnv(split="all")
    for item in range(544):
        env.reset(seed=item, options={"item_id": item})
        for _ in range(3):  # gather at random, and follow the expert of another goal half-way
            name = gettable[rng.integers(len(gettable))].removeprefix("minecraft:")
            env.step(f"get {rng.integers(5)} {name}")
            other.reset(options={"item_id": int(rng.integers(544))})
            for _ in range(rng.integers(8)):
                action = other.expert_action()
                other.step(action)
                env.step(action)
        whole = copy.deepcopy(env)
        assert [whole.step(action)[2] for action in plan(env._goal, env._inventory)][-1]
        for _ in range(100):
            if env.is_success:
                break
            assert env.step(env.expert_action())[0].startswith(("Got ", "Crafted "))
        assert env.is_success, item


def test_the_expert_uses_what_is_held():
    env = env_at(load_book().goals.index("minecraft:iron_ingot"))
    replies(env, "get 4 iron nugget")
    assert env.expert_action() == "Thought: I need 5 iron nugget.\nAction: get 5 iron nugget"
    env = env_at(306)  # a note block takes 8 planks of any one kind and 1 redstone
    replies(env, "get 2 birch logs", *2 * ("craft 4 birch planks using 1 birch logs",))
    assert env.expert_action() == "Thought: I need 1 redstone.\nAction: get 1 redstone"
    env.step(env.expert_action())
    assert env.expert_action() == (
        "Thought: I can craft 1 note block.\nAction: craft 1 note block using 8 birch planks, 1 redstone"
    )
    assert env.step(env.expert_action())[1:3] == (1.0, True)
    assert env.expert_action() == "Thought: I have crafted the goal.\nAction: inventory"
