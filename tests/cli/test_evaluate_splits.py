"""`rllib evaluate`: which splits of a checkpoint's environment can be asked for."""

from __future__ import annotations

import pickle

import pytest

from rllm_gym.algorithms import GRPO, GRPOConfig
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.policy import Policy, find_policy, playing_config, with_environment


@pytest.fixture
def checkpoint(tmp_path):
    """Write what `rllib evaluate` reads of a checkpoint before Ray starts, for an `env_config`."""

    def write(env_config):
        config = GRPOConfig().environment("rllm_gym/TextCraft-v0", env_config=env_config)
        content = {"class": GRPO, "ctor_args_and_kwargs": ((config.get_state(),), {})}
        (tmp_path / "class_and_ctor_args.pkl").write_bytes(pickle.dumps(content))
        return tmp_path

    return write


def evaluation_config(folder, *, env=None, env_config=None, split):
    algorithm, config = playing_config(Policy(str(folder), folder))
    with_environment(config, str(folder), env=env, env_config=env_config, split=split)
    return algorithm, config


def test_a_run_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("rllm_gym.models._look_up", lambda *args: pytest.fail("asked the hub"))
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=r"a checkpoint, a run, .* got '.*/runs/mine': there is no such folder"):
        find_policy(tmp_path / "runs" / "mine")
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        find_policy(tmp_path / "runs")
    assert find_policy("tiny") == Policy("tiny", None)


def test_the_splits_of_the_run_can_be_evaluated_by_name(checkpoint):
    folder = checkpoint({"splits": {"train": [3], "eval": [6], "hard": [2]}})
    for split in ("train", "eval", "hard", "all"):
        _, config = evaluation_config(folder, split=split)
        assert list(config.evaluation_splits) == [split]
    with pytest.raises(ConfigError, match=r"train, eval, all, hard; got 'hrad'\. Did you mean 'hard'\?"):
        evaluation_config(folder, split="hrad")


def test_other_splits_may_be_given_in_place_of_the_runs(checkpoint):
    folder = checkpoint({"splits": {"train": [3], "eval": [6]}})
    evaluation_config(folder, env_config={"splits": {"train": [3], "new": [2]}}, split="new")
    with pytest.raises(ConfigError, match="'textcraft_3' both in train and in new"):
        evaluation_config(folder, env_config={"splits": {"train": [3], "new": [3]}}, split="new")


def test_a_run_on_a_list_of_items_is_evaluated_on_that_list_alone(checkpoint):
    folder = checkpoint({"item_ids": [3, 4, 6, 17]})
    evaluation_config(folder, split="train")
    with pytest.raises(ConfigError, match=r"evaluation on eval\. Use splits: "):
        evaluation_config(folder, split="eval")
    evaluation_config(folder, env_config={"item_ids": None, "splits": {"train": [3, 4, 17], "eval": [6]}}, split="eval")


def test_another_environment_has_splits_of_its_own(checkpoint):
    folder = checkpoint({"item_ids": [3, 4, 6, 17]})
    _, config = evaluation_config(folder, env="rllm_gym/BabyAI-v0", split="eval")
    assert config.env_config == {}
