"""Which trial goes on from which: `--resume` begins a new folder and notes in it the checkpoint that it took."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from rllm_gym.strangers_files import read_object_or_nothing

RESUMED_FROM = "resumed_from.json"


class Origin(TypedDict):
    """Names of a trial's folder and of a checkpoint in it, and the train steps that this has behind it."""

    trial: str
    checkpoint: str
    training_iteration: int


def read_origin(trial: Path) -> Origin | None:
    """Return the origin of a resumed trial; None where it began anew, or the file is not as `--resume` writes it."""
    found = read_object_or_nothing(trial / RESUMED_FROM)
    name, checkpoint, step = (found.get(key) for key in Origin.__annotations__)
    # Another folder than one beside it would be somebody else's.
    if not (isinstance(name, str) and isinstance(checkpoint, str) and isinstance(step, int)) or name != Path(name).name:
        return None
    return {"trial": name, "checkpoint": checkpoint, "training_iteration": step}


def trials_before(trial: Path) -> list[tuple[Path, int]]:
    """Return the trials that one goes on from, the latest first, each with the last train step that counts of it."""
    found: list[tuple[Path, int]] = []
    seen = {trial}
    while (origin := read_origin(trial)) and (earlier := trial.parent / origin["trial"]) not in seen:
        seen.add(trial := earlier)
        found.append((earlier, origin["training_iteration"]))
    return found


def first_trial(trial: Path) -> Path:
    """Return the trial that a chain of resumptions began with; one that was not resumed is its own."""
    before = trials_before(trial)
    return before[-1][0] if before else trial
