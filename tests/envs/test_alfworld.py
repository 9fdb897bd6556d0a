"""ALFWorld, beyond what every environment promises (test_contract.py)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import psutil
import pytest

from rllm_gym.envs import game_process
from rllm_gym.envs.alfworld.env import BANNER, OVER, ALFWorldEnv
from rllm_gym.envs.alfworld.games import TASK_TYPES, Game, find_games
from rllm_gym.envs.alfworld.player import text_of
from rllm_gym.errors import ConfigError, EnvError

pytestmark = pytest.mark.usefixtures("alfworld_data")

MUG = "train/pick_and_place_simple-Mug-None-SideTable-1/trial_T20190000"


@pytest.fixture
def env():
    env = ALFWorldEnv()
    yield env
    env.close()


def begin(env, item):
    return env.reset(seed=0, options={"item_id": item})[0]


def test_the_splits_are_the_published_ones_without_what_nobody_plays(alfworld_data):
    catalog = find_games(alfworld_data)
    sizes = {"train": 12, "eval": 13, "valid_seen": 6, "valid_unseen": 7}
    assert {name: len(ALFWorldEnv(split=name).item_ids) for name in sizes} == sizes
    assert ALFWorldEnv(split="all").item_ids == list(catalog.names)
    assert not any("Sliced" in name or "-901" in name for name in catalog.names)
    only = ALFWorldEnv(task_types="look_at_obj_in_light", split="valid_seen").item_ids
    assert [name.split("/")[1].partition("-")[0] for name in only] == ["look_at_obj_in_light"]


@pytest.mark.slow
def test_games_replies_and_commands_are_those_of_alfworlds_own_interface(alfworld_data):
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    data = alfworld_data / "json_2.1.1"
    config = {
        "env": {
            "goal_desc_human_anns_prob": 0,
            "task_types": [1, 2, 3, 4, 5, 6],
            "domain_randomization": False,
            "expert_type": "handcoded",
        },
        "dataset": {
            "data_path": str(data / "train"),
            "eval_id_data_path": str(data / "valid_seen"),
            "eval_ood_data_path": str(data / "valid_unseen"),
            "num_train_games": -1,
            "num_eval_games": -1,
        },
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": 50}},
    }
    kinds = {"train": "train", "valid_seen": "eval_in_distribution", "valid_unseen": "eval_out_of_distribution"}
    for split, kind in kinds.items():
        theirs = AlfredTWEnv(config, train_eval=kind)
        names = {str(Path(file).parent.relative_to(data)) for file in theirs.game_files}
        assert names == set(ALFWorldEnv(split=split).item_ids)
        batch = theirs.init_env(batch_size=1)
        rng = random.Random(0)
        ours = ALFWorldEnv(split=split)
        for _ in range(len(names)):
            (feedback,), infos = batch.reset()
            item = str(Path(infos["extra.gamefile"][0]).parent.relative_to(data))
            assert begin(ours, item) == feedback.removeprefix(BANNER).strip()
            for _ in range(20):
                commands = infos["admissible_commands"][0]
                assert ours._info()["admissible_commands"] == commands
                command = rng.choice([*commands, "fly to the moon", None])
                command = command or ours.expert_action().rpartition("Action: ")[2]  # a planner's, which takes its time
                (feedback,), _, (is_done,), infos = batch.step([command])
                reply, reward, is_over, _, info = ours.step(command)
                assert (reply, is_over, info["is_success"]) == (feedback, is_done, infos["won"][0])
                if is_done:
                    assert reward == 1.0
                    break
        batch.close()
        ours.close()


def test_the_expert_solves_every_type_of_task(env):
    solved = set()
    for item in env.item_ids:
        begin(env, item)
        for _ in range(30):
            _, reward, is_over, _, info = env.step(env.expert_action())
            assert not info["is_invalid_action"]
            if is_over:
                break
        assert (reward, info["is_success"]) == (1.0, True)
        solved.add(info["category"])
    assert solved == set(TASK_TYPES)
    assert env.step("look")[0] == OVER


def test_a_command_is_read_in_either_case_and_put_is_move(env):
    begin(env, MUG)
    for action in ("Action: Go To DiningTable 1", "take mug 2 from diningtable 1", "go to sidetable 1"):
        assert env.step(action)[4]["is_invalid_action"] is False
    reply, reward, is_over, _, _ = env.step("Thought: there.\nAction: put mug 2 in/on sidetable 1")
    assert (reply, reward, is_over) == ("You move the mug 2 to the sidetable 1.", 1.0, True)


def test_what_is_not_possible_is_said_and_costs_nothing(env):
    begin(env, MUG)
    reply, reward, is_over, _, info = env.step("open the sky")
    assert (reply, reward, is_over, info["is_invalid_action"]) == ("Nothing happens.", 0.0, False, True)
    assert "go to sidetable 1" in info["admissible_commands"]


def test_the_commands_can_be_shown():
    env = ALFWorldEnv(show_commands=True)
    assert "\n\nYou can: go to cabinet 1, " in begin(env, MUG)
    env.close()


def test_a_killed_game_is_a_failed_environment_alone(env, monkeypatch):
    other = ALFWorldEnv()
    begin(env, MUG), begin(other, MUG)
    psutil.Process(env._game.process.pid).kill()
    with pytest.raises(EnvError, match=rf"ALFWorld-v0: the process of .*{MUG}/game\.tw-pddl has died"):
        env.step("look")
    assert other.step("look")[1] == 0.0
    assert begin(env, MUG)
    other.close()
    psutil.Process(env._game.process.pid).suspend()
    monkeypatch.setattr(game_process, "STEP_TIMEOUT_S", 0.5)
    with pytest.raises(EnvError, match=r"must answer within 0\.5 s; got nothing"):
        env.step("look")


def test_a_file_that_holds_no_game_is_a_failed_environment(env, tmp_path):
    (tmp_path / "game.tw-pddl").write_text('{"solvable": true}')
    with pytest.raises(EnvError, match=r"game\.tw-pddl could not be made: KeyError: 'pddl_domain'"):
        Game(tmp_path / "game.tw-pddl")


def test_a_games_python_is_refused_and_never_runs(alfworld_data, tmp_path):
    file = next(alfworld_data.rglob("game.tw-pddl"))
    mark = tmp_path / "executed"
    game = json.loads(file.read_text())
    code = f"{{open({str(mark)!r}, 'w').write('')}}Your task is to: "
    changed = tmp_path / "game.tw-pddl"
    changed.write_text(json.dumps({**game, "grammar": game["grammar"].replace("Your task is to: ", code)}))
    with pytest.raises(EnvError, match=r"a game's grammar may hold texts, things, their words, \+ and or; got"):
        Game(changed)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("o.name", "mug"),
        (" o.indefinite + ' ' + o.name ", "a mug"),
        ("r.name or r.id", "r_1"),
        ("'a' + 'b'", "ab"),
        ("o", "<mug>"),
    ],
)
def test_a_grammars_expressions_are_read_as_alfworld_writes_them(expression, value):
    class Mug(SimpleNamespace):
        def __str__(self):
            return "<mug>"

    variables = {"o": Mug(name="mug", indefinite="a", id="o_1"), "r": SimpleNamespace(name="", id="r_1")}
    assert str(text_of(expression, variables)) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "o.__class__",
        "o.name.__class__",
        "o.desc",
        "x",
        "'a' * 10**9",
        "f'{o}'",
        "o.name.upper()",
        "[c for c in o]",
        "(lambda: 0)()",
        "o.name if o else 1",
        "1",
        "",
        "o.",
        "('" + "(" * 100 + "')" + "(" * 300,
    ],
)
def test_anything_else_in_a_grammar_is_refused(expression):
    with pytest.raises(ValueError, match="a game's grammar"):
        text_of(expression, {"o": SimpleNamespace(name="mug", desc="x")})


def test_without_games_the_error_says_how_to_get_them(tmp_path):
    with pytest.raises(ConfigError, match=r"the games must lie in .*/json_2\.1\.1/train .*Run alfworld-download"):
        ALFWorldEnv(data=tmp_path)
    with pytest.raises(ConfigError, match="show_commands must be true or false"):
        ALFWorldEnv(show_commands="yes")
    with pytest.raises(ConfigError, match=r"task_types must be of .*Did you mean 'pick_and_place_simple'"):
        ALFWorldEnv(task_types="pick_and_place")


def test_gymnasium_makes_it_with_tokens(alfworld_data):
    env = gymnasium.make("rllm_gym:rllm_gym/ALFWorld-v0", data=str(alfworld_data), split="valid_unseen")
    _, info = env.reset(seed=0)
    assert info["item_id"].startswith("valid_unseen/")
    env.close()
