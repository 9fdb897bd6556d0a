"""The methods in Ray Tune, by name: population-based training copies a trial's checkpoint and changes its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import rllm_gym.algorithms  # noqa: F401  lets Tune know the methods by name
from tests.algorithms.algorithm_helpers import toy_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toy_environments")]


def test_population_based_training_goes_on_with_the_better_weights_and_the_new_learning_rate(tiny_model, tmp_path):
    config = toy_config(tiny_model, engine="transformers", group_size=4, groups_per_step=2, max_new_tokens=3)
    options = ("base_model", "engine", "group_size", "groups_per_step", "max_new_tokens", "max_model_len")
    space = {name: getattr(config, name) for name in (*options, "max_episode_steps", "save_trajectories")}
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="env_runners/episode_return_mean",
        mode="max",
        perturbation_interval=1,
        quantile_fraction=0.5,
        resample_probability=1.0,
        hyperparam_mutations={"lr": [7e-4]},
        synch=True,
    )
    results = tune.Tuner(
        "GRPO",
        param_space=space | {"env": "say_the_word", "num_envs_per_env_runner": 8, "lr": tune.grid_search([1e-4, 2e-4])},
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=tune.RunConfig(
            name="pbt", storage_path=str(tmp_path), stop={"training_iteration": 2}, verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()  # fmt: skip
    assert not results.errors, results.errors
    rows = [
        [json.loads(line) for line in (Path(result.path) / "result.json").read_text().splitlines()]
        for result in results
    ]
    assert all(trial[-1]["training_iteration"] == 2 for trial in rows)
    # One of the two has gone on from the other's checkpoint, with the learning rate that the scheduler chose.
    assert {row["config"]["lr"] for trial in rows for row in trial} >= {7e-4}
