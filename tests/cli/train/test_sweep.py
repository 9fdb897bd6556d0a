"""Sweeps for real: four trials from a file, of which one fails, and Tune's own Python interface."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rllm_gym.checkpoints import read_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SWEEP = Path(__file__).parents[3] / "tuned_examples" / "sweep_textcraft_tiny.yaml"
SMALLER = {"groups_per_step": 1, "group_size": 4, "num_envs_per_env_runner": 8, "max_new_tokens": 16}
TUNER = """
from ray import tune
from rllm_gym.algorithms import GRPO

results = tune.Tuner(
    GRPO,
    param_space={
        "env": "rllm_gym/TextCraft-v0",
        "env_config": {"depth": 1},
        "base_model": "tiny",
        "engine": "transformers",
        "lr": tune.grid_search([1e-5, 1e-4]),
        "max_episode_steps": 1,
        "groups_per_step": 1,
        "group_size": 4,
    },
    tune_config=tune.TuneConfig(metric="env_runners/success_rate", mode="max"),
    run_config=tune.RunConfig(stop={"training_iteration": 1}, storage_path=STORAGE, verbose=0),
).fit()
assert not results.errors, results.errors
print(sorted(result.config["lr"] for result in results), results.get_best_result().metrics["training_iteration"])
"""


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=800
    )


def test_failing_trials_take_no_other_down_and_asha_ends_the_worse(tmp_path):
    [experiment] = yaml.safe_load(SWEEP.read_text()).values()
    experiment |= {"num_samples": 1, "stop": {"training_iteration": 3}}
    # Longer episodes count as better here, so that it is certain which trial is the worse.
    experiment["scheduler"] |= {"metric": "env_runners/num_turns_mean", "max_t": 3, "grace_period": 1}
    experiment["config"] |= SMALLER | {
        "env_config": {"depth": 4},
        "max_episode_steps": {"grid_search": [3, 1]},
        "engine_options": {
            "grid_search": [{"kv_cache_memory_bytes": 64 * 2**20}, {"kv_cache_memory_bytes": 2**10}]  # holds nothing
        },
        "lr": {"loguniform": [1e-6, 1e-5]},
        "clip_high": 0.2,
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"sweep": experiment}))
    done = run("-m", "rllm_gym.cli.main", "rllib", "train", "file", "sweep.yaml", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2 and all("No available memory for the cache" in line for line in failed), done.stdout
    trials = [read_results(path) for path in sorted((tmp_path / "runs" / "sweep").iterdir()) if path.is_dir()]
    assert len(trials) == 4
    finished = [results for results in trials if results]
    assert sorted((results[-1]["env_runners"]["num_turns_mean"], len(results)) for results in finished) == [
        (1.0, 1),  # ended by ASHA after its first train step
        (3.0, 3),
    ]
    assert len({results[0]["config"]["lr"] for results in finished}) == 2
    assert all(1e-6 <= results[0]["config"]["lr"] <= 1e-5 for results in finished)


def test_tunes_own_interface_takes_the_algorithm(tmp_path):
    done = run("-c", TUNER.replace("STORAGE", repr(str(tmp_path))), cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[1e-05, 0.0001] 1", done.stdout + done.stderr
