"""BabyAI: parity with recorded transcripts, actions and refusals, ends of episodes, tasks, expert."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rllm_gym.envs.babyai.actions import FORWARD, LEFT, PICK_UP, RIGHT, TOGGLE, offers
from rllm_gym.envs.babyai.env import BabyAIEnv
from rllm_gym.envs.babyai.levels import GROUPS, LEVELS, make_level
from rllm_gym.envs.babyai.view import View, describe, look
from rllm_gym.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "babyai.json").read_text())


def env_at(item, *actions, **kwargs):
    env = BabyAIEnv(**kwargs)
    env.reset(seed=0, options={"item_id": item})
    for action in actions:
        env.step(action)
    return env


def with_actions(text, actions):
    return text + "\nAvailable actions: [" + ", ".join(f'"{action}"' for action in actions) + "]"


def reply(env, action):
    return env.step(action)[0].partition("\nAvailable actions:")[0]


def draw(*rows, carrying=""):
    """Return a view of named cells: rows from far to near, the last one the agent's, "#" a wall, "?" unseen."""
    names = [
        "wall" if cell == "#" else None if cell == "?" else cell.strip() for row in rows for cell in row.split(",")
    ]
    names = [""] * (49 - len(names)) + names
    names[45] = carrying
    return View(names, [])


# Parity.


@pytest.mark.parametrize("form", ["{}", "Thought: so be it.\nAction: {}", "Thought: so. Action: {} \n"])
@pytest.mark.parametrize("episode", GOLDEN["episodes"], ids=lambda episode: f"{episode['item']}-{episode['level']}")
def test_observations_actions_and_rewards_are_the_recorded_ones(episode, form):
    env = BabyAIEnv()
    observation, info = env.reset(seed=0, options={"item_id": episode["item"]})
    goal = f"Your goal: {episode['goal']}\n"
    assert observation == goal + with_actions(episode["obs0"], episode["actions0"])
    assert info["level"] == episode["level"]
    for action, text, reward, is_over, actions in episode["steps"]:
        assert env.step(form.format(action))[:3] == (with_actions(text, actions), reward, is_over)


def test_a_view_tells_two_states_apart_exactly_where_minigrids_image_does():
    rng = random.Random(0)
    image_of, names_of = {}, {}
    for item in range(0, 400, 3):
        level = make_level(item % 40, seed=item // 40)
        for _ in range(20):
            image = type(level).gen_obs(level)["image"].tobytes()
            names = tuple(look(level).names)
            assert image_of.setdefault(names, image) == image
            assert names_of.setdefault(image, names) == names
            level.step(rng.choice([LEFT, RIGHT, FORWARD, FORWARD, FORWARD, PICK_UP, TOGGLE]))
    assert len(image_of) > 1000


# Actions, on drawn views. The agent looks to the north unless it is said otherwise.


def test_numbers_count_what_can_be_reached_and_from_near_to_far():
    wall = "#,#,#,#,#,#,#"
    # The nearer red ball is walled in: one cell between walls, and the wall of the room behind it.
    view = draw(wall, ",,,red ball,,,", ",,,,,,", ",,,,#,#,#", ",,,,#,red ball,#", ",,,,#,#,#", ",,,,,,")
    offered = offers(view, 3, toggles_boxes=False)
    assert describe(view).count("red ball 1 2 steps in front of you and 2 steps to your right.") == 1
    assert describe(view).count("red ball 2 right in front of you 5 steps away.") == 1
    assert offered.moves["go to red ball 1"] == [FORWARD] * 4
    assert "go to red ball 2" not in offered.moves
    assert offered.refusals["pickup red ball 1"].startswith("You cannot pickup red ball 1, as there is no path")


@pytest.mark.parametrize(
    ("carrying", "front", "action", "refusal"),
    [
        ("", "", "drop", "You cannot drop the object, as you are not carrying anything."),
        ("red key", "red key", "drop", "You cannot drop the object, as there is already an object in front of you."),
        ("", "#", "move forward", "There is a barrier in front of you, you can't move forward."),
        ("", "red box", "move forward", "There is a barrier in front of you, you can't move forward."),
        (
            "",
            "red closed door",
            "go through red closed door 1",
            "You cannot go through red closed door 1, as it is closed. You should toggle it first.",
        ),
        (
            "red ball",
            "red locked door",
            "toggle and go through red locked door 1",
            "You cannot toggle and go through red locked door 1, as you are not carrying a key.",
        ),
        (
            "blue key",
            "red locked door",
            "toggle and go through red locked door 1",
            "You cannot toggle and go through red locked door 1, as the color of the key you are carrying does not "
            "match the color of door.",
        ),
    ],
)
def test_an_action_that_is_not_available_says_why(carrying, front, action, refusal):
    view = draw(f",,,{front},,,", ",,,,,,", carrying=carrying)
    offered = offers(view, 3, toggles_boxes=False)
    assert action not in offered.moves
    assert offered.refusals[action] == refusal


def test_a_door_that_cannot_be_reached_is_refused_in_agentgyms_words():
    row = "#,#,#,#,#,#,#"
    view = draw(",,red closed door,red closed door,,,", row, ",,,,,,")
    refusal = (
        "You cannot toggle and go through red closed door {'red closed door': 1}, as there is no path leading to it."
    )
    assert offers(view, 3, toggles_boxes=False).refusals["toggle and go through red closed door 1"] == refusal


def test_the_right_key_opens_a_locked_door_and_toggle_needs_the_door_in_front():
    in_front = offers(draw(",,,red locked door,,,", ",,,,,,", carrying="red key"), 3, toggles_boxes=False)
    assert in_front.moves["toggle"] == [TOGGLE]
    assert in_front.moves["toggle and go through red locked door 1"] == [TOGGLE, FORWARD]
    beside = offers(draw(",,red locked door,,,,", ",,,,,,", carrying="red key"), 3, toggles_boxes=False)
    assert "toggle" not in beside.moves
    assert beside.moves["toggle and go through red locked door 1"] == [FORWARD, LEFT, TOGGLE, FORWARD]


@pytest.mark.parametrize(("direction", "moves"), [(0, 8), (1, 8), (2, None), (3, None)])
def test_paths_may_pass_behind_the_agent_only_where_agentgyms_ranges_allow_it(direction, moves):
    # Walls left and right of the agent and in front of it: the only way out is the row behind. Turn around (2 moves),
    # forward (1), turn right (1), forward to below the ball (3), turn right (1).
    view = draw(",,#,#,#,,", "red ball,,#,,#,,")
    path = offers(view, direction, toggles_boxes=False).moves.get("go to red ball 1")
    assert (None if path is None else len(path)) == moves


@pytest.mark.parametrize(("direction", "is_offered"), [(0, False), (1, True), (2, True), (3, False)])
def test_paths_may_pass_one_column_right_of_the_view_only_where_agentgyms_ranges_allow_it(direction, is_offered):
    # The only way to the ball leads around the wall's right end.
    view = draw(",,,,,red ball,", ",#,#,#,#,#,#", "#,,,,,,")
    assert ("go to red ball 1" in offers(view, direction, toggles_boxes=False).moves) == is_offered


# Steps.


def test_an_action_stops_at_the_first_move_that_changes_nothing_in_view():
    env = env_at(427)
    before, moves = env._level.step_count, env._offers.moves["go to red locked door 1"]
    env.step("go to red locked door 1")
    assert (env._level.step_count - before, len(moves)) == (6, 8)


def test_boxes_are_toggled_only_on_the_level_that_needs_it():
    assert LEVELS[25] == "BabyAI-KeyInBox-v0"
    env = env_at(25, "turn right", "go to yellow box 1")
    assert "toggle" in env._offers.moves
    assert "There is a purple key 1 right in front of you 1 steps away." in reply(env, "toggle")
    env = env_at(44, "go to red key 1", "go to purple box 1")
    assert env._view.front == "purple box" and "toggle" not in env._offers.moves


@pytest.mark.parametrize(
    ("action", "is_invalid"),
    [("drop", True), ("go to moon 1", True), ("check available actions", False), ("turn left", False)],
)
def test_an_action_is_invalid_where_it_is_not_available(action, is_invalid):
    assert env_at(2).step(action)[4]["is_invalid_action"] is is_invalid


def test_success_counts_however_late_and_the_reward_falls_with_the_moves():
    env = env_at(2, *40 * ["turn left"])
    observation, reward, terminated, truncated, info = env.step("pickup red ball 1")
    # 8 moves after the 40, of 64
    assert reward == pytest.approx(1 - 0.9 * 48 / 64)
    assert (terminated, truncated, info["is_success"]) == (True, False, True)
    assert "\n The task is completed.\nAvailable actions:" in observation


def test_the_bound_on_moves_truncates_and_ends_an_action_in_between():
    env = env_at(2, *60 * ["turn left"])
    assert len(env._offers.moves["pickup red ball 1"]) == 8
    assert env.step("pickup red ball 1")[1:4] == (0.0, False, True)
    assert env._level.step_count == 64


def test_the_wrong_object_fails_a_strict_task():
    env = env_at(19)
    wanted = env._level.instrs.desc.obj_set
    other = next(thing for thing in env._view.things if thing.name not in {f"{o.color} {o.type}" for o in wanted})
    observation, reward, terminated, truncated, info = env.step(f"pickup {other.name} 1")
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, True, False, False)
    assert "\n The task has failed.\nAvailable actions:" in observation


@pytest.mark.parametrize("ending", [["pickup red ball 1"], 64 * ["turn left"]], ids=["success", "truncation"])
def test_after_the_end_nothing_changes_and_nothing_is_rewarded(ending):
    env = env_at(2, *ending)
    moves, success = env._level.step_count, env.is_success
    for action in ("turn left", "move forward", "fly away", "check available actions"):
        assert env.step(action)[1] == 0.0
    assert reply(env, "turn left") == "No change in state."
    assert (env._level.step_count, env.is_success) == (moves, success)


def test_actions_are_read_in_any_case_and_any_text_with_check_lists_them():
    env = env_at(2)
    assert reply(env, "Action: Turn LEFT").endswith(
        "You are facing a wall 2 steps away. You are not carrying anything."
    )
    assert reply(env, "let me check").startswith("You can take the following actions: turn left, turn right, ")
    assert reply(env, "") == "No change in state."


# Tasks.


def test_an_item_is_a_level_and_a_seed_whatever_the_seed_of_reset():
    env = BabyAIEnv(split="all")
    first = env.reset(seed=1, options={"item_id": "babyai_87"})
    assert first == env.reset(seed=2, options={"item_id": 87})
    assert first[1]["level"] == LEVELS[7] == "BabyAI-GoToSeqS5R2-v0"
    assert first[1]["mission"] == make_level(7, seed=2).mission
    assert (first[1]["category"], len(GROUPS)) == ("goto", 40)


def test_the_goal_hides_the_order_that_the_mission_tells():
    observation, info = BabyAIEnv().reset(seed=0, options={"item_id": 15})
    assert info["mission"] == "open the purple door after you open the red door"
    assert observation.startswith("Your goal: open the purple door and open the red door\n")


def test_eval_holds_ninety_tasks_with_every_level_twice_or_more():
    train, evaluation = BabyAIEnv(), BabyAIEnv(split="eval")
    numbers = [int(item.removeprefix("babyai_")) for item in evaluation.item_ids]
    assert numbers == list(range(9910, 10000))
    assert len(train.item_ids) == 9910
    counts = Counter(number % 40 + 1 for number in numbers)
    assert counts == {level: 3 if level > 30 else 2 for level in range(1, 41)}
    with pytest.raises(ConfigError, match="from 0 to 15999"):
        train.reset(options={"item_id": 16_000})


def test_every_level_makes_tasks_without_a_word_on_stdout_and_without_heavy_libraries():
    program = (
        "import sys, rllm_gym, gymnasium\n"
        "env = gymnasium.make('rllm_gym/BabyAI-v0', obs_type='text')\n"
        "assert 'minigrid' not in sys.modules\n"
        "for item in range(120): env.reset(seed=0, options={'item_id': item})\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_minigrid_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ConfigError) as error:
        BabyAIEnv().reset(seed=0)
    assert str(error.value) == 'BabyAI-v0 needs the minigrid package: pip install "rllm-gym[babyai]".'


def test_it_renders_the_grid_and_refuses_other_modes():
    env = gymnasium.make("rllm_gym/BabyAI-v0", obs_type="text", render_mode="rgb_array")
    env.reset(seed=0, options={"item_id": 2})
    frame = env.render()
    assert frame.dtype == np.uint8 and frame.shape == (8 * 32, 8 * 32, 3)
    env.step("turn left")
    assert (env.render() != frame).any()
    with pytest.raises(gymnasium.error.ResetNeeded, match="render"):
        BabyAIEnv(render_mode="rgb_array").render()
    with pytest.raises(ConfigError, match=r"render_mode must be None or one of .ansi., .rgb_array.; got .human'"):
        BabyAIEnv(render_mode="human")


def test_the_expert_wins_at_the_token_level():
    env = gymnasium.make("rllm_gym:rllm_gym/BabyAI-v0")
    _, info = env.reset(seed=0, options={"item_id": 63})
    terminated = False
    while not terminated:
        action = env.get_wrapper_attr("encode_action")(env.unwrapped.expert_action())
        observation, _, terminated, _, info = env.step(action)
        assert observation in env.observation_space
    assert info["is_success"] and info["messages"][-1]["content"].startswith("In front of you")


# Expert.


def play(env, max_turns=300):
    """Let the expert play on, and return whether it wins."""
    for _ in range(max_turns):
        _, _, terminated, truncated, info = env.step(env.expert_action())
        if terminated or truncated:
            break
    return info["is_success"]


def test_the_expert_solves_all_levels_with_five_seeds_each():
    env = BabyAIEnv()
    failed = []
    for item in range(5 * 40):
        env.reset(seed=0, options={"item_id": item})
        if not play(env):
            failed.append(item)
    assert failed == []


def test_the_expert_goes_on_from_where_others_have_gone_astray():
    rng = random.Random(0)
    env = BabyAIEnv()
    wins = []
    for item in range(0, 10_000, 141):
        env.reset(seed=0, options={"item_id": item})
        is_over = False
        for _ in range(20):
            if not is_over:
                is_over = any(env.step(rng.choice(list(env._offers.moves)))[2:4])
                assert env.expert_action().rpartition("Action: ")[2] in env._offers.moves
        if not is_over:
            wins.append(play(env))
    assert len(wins) > 50 and np.mean(wins) > 0.9


@pytest.mark.parametrize("filling", ["nothing", "walls"])
def test_the_expert_knows_only_what_has_been_seen(filling):
    env = BabyAIEnv()
    for item in range(120):
        env.reset(seed=0, options={"item_id": item})
        for _ in range(item % 3):
            env.step(env.expert_action())
        before = env.expert_action()
        grid = env._level.grid.grid
        for i in range(len(grid)):
            if not env._has_seen[i]:
                grid[i] = None if filling == "nothing" else grid[0]
        for target in ("desc", "desc_move", "desc_fixed"):
            if desc := getattr(env._level.instrs, target, None):
                desc.obj_poss = [(x, y) for x, y in desc.obj_poss if env._has_seen[y * env._level.width + x]]
        assert env.expert_action() == before


def test_draws_can_be_restricted_to_levels():
    env = BabyAIEnv(levels=[4, 40])
    assert {int(item.removeprefix("babyai_")) % 40 for item in env.item_ids} == {3, 39}
    assert BabyAIEnv(levels=26, split="eval").item_ids == ["babyai_9945", "babyai_9985"]


@pytest.mark.parametrize("levels", [0, 41, [], [1, True], "1", [2.5], 2.0])
def test_other_levels_are_refused(levels):
    with pytest.raises(ConfigError, match=r"^BabyAIEnv: levels must be numbers from 1 to 40; got "):
        BabyAIEnv(levels=levels)
