"""A user's own method, engine and environment, in the folder where `rllib` is called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app
from rllm_gym.data import read_episodes
from rllm_gym.tokens import ChatTokenizer

app = make_rllib_app()

METHOD = """
from rllm_gym.algorithms.grpo import GRPO, GRPOConfig

class MineConfig(GRPOConfig):
    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class or Mine)
        self.group_size = 3

class Mine(GRPO):
    @classmethod
    def get_default_config(cls):
        return MineConfig()
"""

ENGINE = """
from rllm_gym.rollout.engines.scripted import ScriptedEngine

class Parrot(ScriptedEngine):
    def __init__(self, model, *, dtype, max_model_len, max_num_seqs, options):
        super().__init__(lambda prompt_ids: options["says"], max_context_tokens=max_model_len)
"""

ENVIRONMENT = """
import gymnasium
from rllm_gym import register_text_env
from rllm_gym.envs import UnicodeText

class Guess(gymnasium.Env):
    def __init__(self):
        self.observation_space = self.action_space = UnicodeText(100)

register_text_env("own/Guess-v0", "my_package.my_env:Guess")
"""

EXPERIMENT = """
mine:
  run: my_package.my_method:Mine
  env: rllm_gym/TextCraft-v0
  stop: {training_iteration: 1}
  config:
    base_model: tiny
    env_config: {splits: {train: [3, textcraft_17], eval: [2], hard: [6]}}
    engine: my_package.my_engine:Parrot
    engine_options: {says: SAYS}
    max_episode_steps: 1
    groups_per_step: 2
    max_model_len: 1024
    evaluation_interval: 1
    evaluation_on_start: false
    evaluation_splits: [eval, hard]
    evaluation_duration: 1
"""


@pytest.fixture
def folder(calling_folder) -> Path:
    for name, text in {"my_method": METHOD, "my_engine": ENGINE, "my_env": ENVIRONMENT}.items():
        (calling_folder / "my_package" / f"{name}.py").write_text(text)
    return calling_folder


def experiment(folder: Path, **replacements: str) -> Path:
    ids = ChatTokenizer("tiny").encode_action("Action: fly")
    text = EXPERIMENT.replace("SAYS", str(list(ids)))
    for old, new in replacements.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "x.yaml"
    path.write_text(text)
    return path


def fault(path: Path) -> str:
    result = CliRunner().invoke(app, ["train", "file", str(path), "--dry-run", "--no-reset"])
    assert result.exit_code == 2, result.output
    [line] = result.stderr.splitlines()
    return line.removeprefix(f"{path.parent}/")


def test_code_in_the_present_folder_is_found(folder):
    result = CliRunner().invoke(app, ["train", "file", str(experiment(folder)), "--dry-run", "--no-reset"])
    assert result.exit_code == 0, result.output
    assert "run: my_package.my_method:Mine\n" in result.stdout
    assert "engine: my_package.my_engine:Parrot\n" in result.stdout
    assert "group_size: 3\n" in result.stdout  # the method's own default


def test_a_method_on_the_command_line_names_the_run_after_itself(folder):
    arguments = ["train", "--algo", "my_package.my_method:Mine", "--env", "TextCraft-v0", "--dry-run", "--no-reset"]
    result = CliRunner().invoke(app, arguments)
    assert result.stdout.startswith("mine-TextCraft-v0:\n"), result.output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("my_package.my_method", "my_packge.my_method",
         "x.yaml:3: run: must name a Python object as \"module:name\"; got 'my_packge.my_method:Mine' (No module named "
         "'my_packge'). Did you mean 'my_package.my_method:Mine'?"),
        ("my_method:Mine", "my_method:Mien", "Did you mean 'my_package.my_method:Mine'?"),
        ("my_engine:Parrot", "my_engin:Parrot", "Did you mean 'my_package.my_engine:Parrot'?"),
        ("my_engine:Parrot", "my_engine:Parot", "Did you mean 'my_package.my_engine:Parrot'?"),
        ("rllm_gym/TextCraft-v0", "my_package.my_env:own/Guess-v0",
         "x.yaml:8: Guess: takes the keywords (none); got 'splits'. Let it take that, as rllm_gym.envs.TextEnv does, "
         "or leave it out."),
        ("    env_config: {splits: {train: [3, textcraft_17], eval: [2], hard: [6]}}", "    seed: 3",
         "x.yaml:16: TextCraftEnv: split must be one of train, eval, all; got 'hard'."),
    ],
)  # fmt: skip
def test_what_is_wrong_with_ones_own_code_is_one_line(folder, old, new, message):
    assert message in fault(experiment(folder, **{old: new}))


def test_an_environment_without_item_ids_has_no_other_split_to_evaluate_on(folder):
    path = experiment(folder, **{"rllm_gym/TextCraft-v0": "my_package.my_env:own/Guess-v0"})
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "splits: {" not in line))
    assert fault(path) == (
        "x.yaml:15: Guess-v0: evaluation on another split than train needs item_ids, by which its tasks are played; "
        "got 'eval', and an environment without item_ids. Give it some, or evaluate on train."
    )


def test_a_fault_in_one_of_several_environments_shows_its_line(folder):
    text = """
    - {id: rllm_gym/TextCraft-v0, name: a, env_config: {splits: {train: [3], eval: [6]}}}
    - id: rllm_gym/TextCraft-v0
      name: b
      env_config:
        depth: 1
        splits: {train: [6], eval: [2], hard: [7]}"""
    path = experiment(folder, **{" rllm_gym/TextCraft-v0": text})
    path.write_text(path.read_text().replace("{train: [6]", "{train: [2]"))
    assert fault(path).startswith(
        "x.yaml:10: TextCraftEnv: splits must keep what is trained on apart; got 'textcraft_2'"
    )
    path.write_text(path.read_text().replace("{train: [2]", "{train: [6]").replace("[eval, hard]", "[eval]"))
    assert (
        "a: evaluation must play no task that is trained on; got 'textcraft_6' in the split 'eval' and in b's"
        in fault(path)
    )


@pytest.mark.slow
def test_a_run_with_ones_own_method_and_engine_and_splits(folder):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    # -P: like a console script, without this folder
    command = [sys.executable, "-P", "-m", "rllm_gym.cli.main", "rllib"]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    out = run("train", "file", str(experiment(folder)))
    assert "step 1/1" in out
    [trial] = [path.parent for path in (folder / "runs" / "mine").glob("*/params.json")]
    episodes = [episode for episode in read_episodes(trial / "trajectories") if not episode.is_evaluation]
    assert sorted(episode.item_id for episode in episodes) == ["textcraft_17"] * 3 + ["textcraft_3"] * 3
    actions = {message["content"] for e in episodes for message in e.messages if message["role"] == "assistant"}
    assert actions == {"Action: fly"}
    out = run("evaluate", "runs/mine", "--split", "hard", "--episodes", "2", "--out", "hard")
    assert "2 episodes, 0 errors" in out
    assert [(episode.item_id, episode.split) for episode in read_episodes(folder / "hard")] == [
        ("textcraft_6", "hard")
    ] * 2
