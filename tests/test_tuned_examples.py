"""Every shipped example is valid as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app
from rllm_gym.cli.train import preview

app = make_rllib_app()

FOLDER = Path(__file__).parents[1] / "tuned_examples"
EXAMPLES = sorted(FOLDER.rglob("*.yaml"))


def test_there_are_examples():
    assert FOLDER / "quickstart.yaml" in EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_the_example_passes_a_dry_run(path, monkeypatch):
    monkeypatch.setattr(preview, "check_this_machine", lambda bundles: None)  # which lacks some examples' GPUs
    done = CliRunner().invoke(app, ["train", "file", str(path), "--dry-run", "--no-reset"])
    assert done.exit_code == 0, done.output
    assert "# tokens per train step: at most" in done.output
