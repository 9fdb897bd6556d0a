"""The page on methods: its example of a method of one's own is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from rllm_gym.checkpoints import read_results
from rllm_gym.cli.main import make_rllib_app
from rllm_gym.data import read_episodes

app = make_rllib_app()

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
[METHOD], [EXPERIMENT], [COMMAND] = (
    re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "yaml", "bash")
)
SMALLER = {"engine": "transformers", "groups_per_step": 4, "group_size": 4, "num_envs_per_env_runner": 16}


@pytest.fixture
def folder(calling_folder) -> Path:
    """The page's package and experiment."""
    (calling_folder / "my_package" / "my_method.py").write_text(METHOD, encoding="utf-8")
    (calling_folder / "mine.yaml").write_text(EXPERIMENT, encoding="utf-8")
    return calling_folder


def test_the_example_is_under_thirty_lines_and_passes_a_dry_run(folder):
    assert len([line for line in METHOD.splitlines() if line.strip()]) < 30
    command = COMMAND.partition("#")[0].split()
    assert command == ["rllib", "train", "file", "mine.yaml"]
    result = CliRunner().invoke(app, [*command[1:], "--dry-run", "--no-reset"])
    assert result.exit_code == 0, result.output
    assert "quantile: 0.9\n" in result.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_trains_with_its_own_advantage_and_loss(folder):
    experiment = yaml.safe_load(EXPERIMENT)
    experiment["mine"]["config"] |= SMALLER
    (folder / "mine.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-P", "-m", "rllm_gym.cli.main", "rllib", *COMMAND.partition("#")[0].split()[1:]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr

    groups = defaultdict(list)
    for record in read_episodes(folder / "runs" / "mine"):
        groups[record.train_step, tuple(record.group)].append(record)
    assert {step for step, _ in groups} == {0, 1} and {len(records) for records in groups.values()} == {4}
    trained = {0: [], 1: []}  # by train step: (advantage, log-probability) of the tokens of the groups that are kept
    for (step, _), records in groups.items():
        returns = np.array([record.total_reward for record in records])
        expected = returns - np.quantile(returns, 0.9)
        tokens = []
        for record, advantage in zip(records, expected, strict=True):
            for turn in record.turns:
                assert turn.advantage == pytest.approx([advantage] * len(turn.action_ids), abs=1e-6)
                tokens += zip(turn.advantage, turn.logp, strict=True)
        if expected.any():
            trained[step] += tokens

    # The loss of a step with one optimizer step: the mean over its tokens of -A logp, under the weights that sampled.
    [trial] = [path.parent for path in (folder / "runs" / "mine").glob("*/params.json")]
    losses = [result["learners"]["default_policy"]["policy_loss"] for result in read_results(trial)]
    assert trained[0] and trained[1]
    assert losses == pytest.approx([-np.mean([a * logp for a, logp in trained[step]]) for step in (0, 1)], abs=1e-4)
