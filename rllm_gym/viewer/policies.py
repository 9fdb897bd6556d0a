"""Which policies may act in the hub: those of the runs that are shown, and those that the command names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rllm_gym.checkpoints import RLLIB_FILE, newest_checkpoint


def is_checkpoint(path: Path) -> bool:
    return (path / RLLIB_FILE).is_file()


def find_policies(runs: Iterable[Path], models: Sequence[str]) -> dict[str, str]:
    """Return {label: checkpoint or model}; the page names a policy by its label and never by a path.

    Args:
        runs: what is shown: of runs and trials the newest whole checkpoints are offered.
        models: names or folders of Hugging Face models, checkpoints, or runs.
    """
    found = {}
    for model in models:
        newest = None if is_checkpoint(Path(model)) or not Path(model).is_dir() else newest_checkpoint(Path(model))
        found[model] = str(newest.path) if newest else model
    for run in runs:
        if newest := newest_checkpoint(run):
            found[f"{run.name}, {newest.path.name}"] = str(newest.path)
    found.setdefault("tiny", "tiny")
    return found
