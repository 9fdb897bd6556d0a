"""Every shipped example is valid as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app

app = make_rllib_app()

FOLDER = Path(__file__).parents[1] / "tuned_examples"
EXAMPLES = sorted(FOLDER.rglob("*.yaml"))


def test_there_are_examples():
    assert FOLDER / "quickstart.yaml" in EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_the_example_passes_a_dry_run_for_another_machine(path):
    done = CliRunner().invoke(app, ["train", "file", str(path), "--dry-run", "--no-reset", "--elsewhere"])
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert "# tokens per train step: at most" in done.output


WITH_GPUS = [path for path in EXAMPLES if "num_gpus_per_" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_GPUS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_an_example_for_gpus_is_refused_here_for_its_gpus_alone(path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    done = CliRunner().invoke(app, ["train", "file", str(path), "--dry-run", "--no-reset"])
    assert (done.exit_code, done.stdout) == (2, "")
    heading, line = done.stderr.splitlines()
    assert heading.startswith("what this machine lacks") and "GPUs, and there are 0." in line


def test_there_are_examples_for_gpus():
    assert len(WITH_GPUS) > 10
