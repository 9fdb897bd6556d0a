"""Each environment's example for the tiny model builds as it stands and takes two train steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.in_process import config_in, in_this_process
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
    config = config_in(FOLDER / env / "grpo_tiny.yaml")
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
    config = config_in(FOLDER / "textarena" / "sft_tiny.yaml")
    own_evaluations = {"evaluation_interval": 1000, "evaluation_on_start": False, "evaluation_duration": 40}
    config.update_from_dict({**own_evaluations, "save_trajectories": False})
    algo = config.build_algo()
    try:
        before = algo.evaluate()["env_runners"]["success_rate"]
        for _ in range(20):
            algo.train()
        after = algo.evaluate()["env_runners"]["success_rate"]
    finally:
        algo.stop()
    print("success", before, after)
    assert before < 0.1 and after > 0.4
