"""`rllib evaluate`: which splits of a checkpoint's environment can be asked for, and that it says how far it is."""

from __future__ import annotations

import contextlib
import pickle
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rllm_gym.algorithms import GRPO, GRPOConfig
from rllm_gym.cli.main import make_rllib_app
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.policy import Policy, find_policy, playing_config, with_environment
from rllm_gym.evaluation.run import plan_evaluation


@pytest.fixture
def checkpoint(tmp_path):
    """Write what `rllib evaluate` reads of a checkpoint before Ray starts, for an `env_config`."""

    def write(env_config, **options):
        config = GRPOConfig().environment("rllm_gym/TextCraft-v0", env_config=env_config)
        config.update_from_dict(options)
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


def test_what_an_argument_sets_is_no_option_of_the_sampler():
    result = CliRunner().invoke(make_rllib_app(), ["evaluate", "tiny", "--config", '{"env_config": {"depth": 1}}'])
    assert result.exit_code == 2
    assert result.output.strip() == "--config: holds options of the sampler; got 'env_config'. Set --env-config."


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


def test_the_environment_that_the_run_evaluates_on_is_the_default(checkpoint, monkeypatch):
    monkeypatch.setattr("rllm_gym.evaluation.run.find_policy", lambda source: Policy(str(source), source))
    monkeypatch.setattr("rllm_gym.evaluation.run.read_protocol", lambda checkpoint: "native")
    other = {"env": "BabyAI-v0", "env_config": {"levels": [1]}, "explore": False}
    folder = checkpoint({"depth": 2}, evaluation_config=other, max_episode_steps=7)
    [panel] = plan_evaluation(folder, num_tasks=2).panels
    assert (panel.env, panel.env_config) == ("rllm_gym:rllm_gym/BabyAI-v0", {"levels": [1]})
    assert (panel.horizon, panel.sampling.temperature) == (7, 0.0)
    [named] = plan_evaluation(folder, envs=[("TextCraft-v0", {"depth": 1})], num_tasks=2).panels
    assert (named.env, named.env_config) == ("rllm_gym:rllm_gym/TextCraft-v0", {"depth": 1})
    assert named.hash != panel.hash
    plan = plan_evaluation(folder, panels=[panel])
    assert [spec.name for spec in plan.config.all_environments] == ["BabyAI-v0"]
    # Keys alone change the trained environment's.
    folder = checkpoint({"depth": 2, "system_prompt": "Craft."}, evaluation_config={"env_config": {"depth": 3}})
    [panel] = plan_evaluation(folder, num_tasks=2, horizon=4).panels
    assert panel.env_config == {"depth": 3, "system_prompt": "Craft."}


def test_a_long_sampling_says_how_far_it_is(monkeypatch, tmp_path):
    times_s = iter((100.0, 116.0))

    @contextlib.contextmanager
    def session(*args, on_sampling, **options):
        on_sampling(1, 24)
        on_sampling(9, 24)
        raise ConfigError("nothing is played here")
        yield

    monkeypatch.setattr("rllm_gym.cli.sampling_progress.time", SimpleNamespace(monotonic=times_s.__next__))
    monkeypatch.setattr("rllm_gym.cli.evaluate.ray_session", session)
    arguments = ["evaluate", "tiny", "--env", "TextCraft-v0", "--horizon", "6", "--out", str(tmp_path / "played")]
    result = CliRunner().invoke(make_rllib_app(), arguments)
    assert result.stderr.splitlines() == ["sampling: 9 of 24 episodes", "nothing is played here"]
