"""Each environment's example for the tiny model builds as it stands and takes two train steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm_gym.cli.check import check_experiment
from rllm_gym.cli.experiment import read_experiment
from rllm_gym.cli.written import check_written
from tests.in_process import in_this_process
from tests.needs import skip_without

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("sampling_here")]

FOLDER = Path(__file__).parents[1] / "tuned_examples"


@pytest.fixture
def sampling_here(engines):
    with in_this_process(engines):
        yield


@pytest.mark.parametrize("env", ["babyai", "sciworld", "searchqa", "textcraft", "textworld", "webarena"])
def test_the_tiny_example_takes_two_train_steps(env):
    skip_without({"sciworld": "java", "textworld": "textworld", "webarena": "browser"}.get(env))
    experiment = read_experiment(FOLDER / env / "grpo_tiny.yaml")
    [config] = check_experiment(experiment, check_written(experiment), allow_lookup=False).configs
    # Fewer episodes, and no evaluating before the first step; the rest is the example's.
    config.update_from_dict(
        {"groups_per_step": 4, "group_size": 4, "evaluation_interval": None, "save_trajectories": False}
    )
    horizon = config.scaling_inter["horizons"][0]
    algo = config.build_algo()
    try:
        for _ in range(2):
            result = algo.train()
            sampled = result["env_runners"]
            assert (sampled["num_episodes"], sampled["num_failed_episodes"]) == (16, 0)
            assert result["max_episode_steps"] == horizon and 1 <= sampled["num_turns_mean"] <= horizon
            assert 0.0 <= sampled["episode_return_min"] <= sampled["episode_return_max"] <= 1.0
        assert result["training_iteration"] == 2
    finally:
        algo.stop()


def test_textarenas_example_learns_to_guess_numbers():
    experiment = read_experiment(FOLDER / "textarena" / "sft_tiny.yaml")
    [config] = check_experiment(experiment, check_written(experiment), allow_lookup=False).configs
    own_evaluations = {"evaluation_interval": 1000, "evaluation_on_start": False, "evaluation_duration": 20}
    config.update_from_dict({**own_evaluations, "save_trajectories": False})
    algo = config.build_algo()
    try:
        before = algo.evaluate()["env_runners"]["success_rate"]
        for _ in range(14):
            algo.train()
        after = algo.evaluate()["env_runners"]["success_rate"]
    finally:
        algo.stop()
    print("success", before, after)
    assert before < 0.2 and after > before + 0.2
