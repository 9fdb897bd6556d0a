"""Which trial goes on from which: `--resume` begins a new folder and notes in it the checkpoint that it took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESUMED_FROM = "resumed_from.json"


def read_origin(trial: Path) -> dict[str, Any] | None:
    """Return the `trial`, `checkpoint` and `training_iteration` that a trial goes on from; None where it began anew."""
    try:
        return json.loads((trial / RESUMED_FROM).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def first_trial(trial: Path) -> Path:
    """Return the trial that a chain of resumptions began with; one that was not resumed is its own."""
    seen = {trial}
    while (origin := read_origin(trial)) and (earlier := trial.parent / origin["trial"]) not in seen:
        seen.add(trial := earlier)
    return trial
