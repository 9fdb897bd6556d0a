"""`--dry-run` shows what will run and what it may cost, and asks nobody."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app
from rllm_gym.cli.train.sweeps import combinations, find_samplers, num_trials, to_tune

app = make_rllib_app()

SWEEP = """\
sweep:
  run: GRPO
  env: TextCraft-v0
  num_samples: 2
  config:
    base_model: someone/model-on-the-hub
    lr: {loguniform: [1e-6, 1e-4]}
    group_size: {grid_search: [4, 8]}
    groups_per_step: 2
    max_model_len: 1000
    max_new_tokens: 50
    scaling_inter: {type: stepwise, horizons: [2, 6], steps_per_stage: {grid_search: [5, 10, 20]}}
    num_learners: 2
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a dry run asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    (tmp_path / "x.yaml").write_text(SWEEP)
    result = CliRunner().invoke(app, ["train", "file", str(tmp_path / "x.yaml"), "--dry-run", "--no-reset"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_report_is_the_experiment_with_its_essentials(report: str) -> None:
    [(name, spec)] = yaml.safe_load(report).items()
    assert name == "sweep"
    assert spec["env"] == "rllm_gym:rllm_gym/TextCraft-v0"
    assert spec["num_samples"] == 2
    config = spec["config"]
    assert config["lr"] == {"loguniform": [1e-6, 1e-4]}
    assert config["group_size"] == {"grid_search": [4, 8]}
    assert config["temperature"] == 1.0  # a default, but essential
    assert "clip_low" not in config  # a default


def test_the_report_counts_tokens_trials_and_workers(report: str) -> None:
    # 2 groups of 4 or 8 episodes; of 1000 tokens, of which 6 turns of 50 sampled.
    assert "# tokens per train step: at most 8,000 to 16,000 in 8 to 16 episodes\n" in report
    assert "# of these sampled: at most 2,400 to 4,800\n" in report
    assert "# trials: 12\n" in report  # 2 samples x 2 sizes x 3 stage lengths
    # Main process, one EnvRunner, two learners.
    assert "# each trial: 4 CPUs, 0 GPUs\n" in report or "# each trial: 5 CPUs, 0 GPUs\n" in report


def test_samplers_are_found_at_any_depth_and_every_candidate_is_tried() -> None:
    config = yaml.safe_load(SWEEP)["sweep"]["config"]
    config["lr"] = {"loguniform": [0.5, 1.0]}
    assert [path for path, _, _ in find_samplers(config)] == [
        ("lr",),
        ("group_size",),
        ("scaling_inter", "steps_per_stage"),
    ]
    tried = {(c["lr"], c["group_size"], c["scaling_inter"]["steps_per_stage"]) for c in combinations(config)}
    assert tried == {(lr, size, steps) for lr in (0.5, 1.0) for size in (4, 8) for steps in (5, 10, 20)}
    assert num_trials(config, 2) == 12


def test_many_candidates_are_each_tried_once() -> None:
    config = {name: {"grid_search": list(range(9))} for name in "abc"}
    tried = combinations(config)
    assert len(tried) == 9
    assert all({c[name] for c in tried} == set(range(9)) for name in "abc")


def test_samplers_become_tunes_own() -> None:
    space = to_tune({"lr": {"loguniform": [1e-6, 1e-4]}, "env_config": {"depth": {"grid_search": [1, 2]}}, "seed": 3})
    assert type(space["lr"]).__name__ == "Float"
    assert (space["lr"].lower, space["lr"].upper) == (1e-6, 1e-4)
    assert space["env_config"] == {"depth": {"grid_search": [1, 2]}}
    assert space["seed"] == 3


def test_help_loads_neither_ray_nor_torch() -> None:
    code = (
        "import sys; from rllm_gym.cli import main; main.make_rllib_app(), main.make_rllm_gym_app(); "
        "print(sorted({'ray', 'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
