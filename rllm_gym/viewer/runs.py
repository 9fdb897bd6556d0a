"""The runs that the page shows, with their trials, evaluations, or files alone; and their curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from rllm_gym.checkpoints import RESULTS, read_results
from rllm_gym.lineage import first_trial, read_origin
from rllm_gym.strangers_files import read_object_or_nothing

PARAMS = "params.json"  # Tune's, of a trial
EVALUATION = "evaluation.json"  # of `rllib evaluate`
GATEWAY = "gateway.json"  # of `rllm-gym gateway`
MAX_NUMBER = 1e300  # a larger one would stretch every curve to nothing


@dataclass(eq=False)
class Trial:
    """A folder with trajectories: a run's trial, an evaluation, or what somebody has written.

    Args:
        folder: beside or above its trajectory files.
        kind: `run`, `evaluation` or `files`.
    """

    folder: Path
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def origin(self) -> Path:
        """The trial that the chain of resumptions began with which this one ends."""
        return first_trial(self.folder)

    @property
    def run_folder(self) -> Path:
        return self.folder.parent if self.kind == "run" else self.folder

    @property
    def model(self) -> str:
        """The acting model, as far as the files say: a base model's name or folder, or a checkpoint's."""
        model = self.settings.get("base_model" if self.kind == "run" else "model")
        return model if isinstance(model, str) else ""


def folder_of(shard: Path) -> Path:
    """Return the folder of the trial that a trajectory file belongs to."""
    return shard.parent.parent if shard.parent.name == "trajectories" else shard.parent


def find_results(path: Path) -> list[Path]:
    """Return the folders of trials and evaluations with results, which may come before any episode."""
    patterns = (RESULTS, f"*/{RESULTS}", f"*/*/{RESULTS}")
    return sorted({file.parent for pattern in patterns for file in path.glob(pattern)})


def read_trial(folder: Path) -> Trial:
    """Return the kind of a folder by its files."""
    if (folder / EVALUATION).is_file():
        return Trial(folder, "evaluation", read_object_or_nothing(folder / EVALUATION))
    if (folder / PARAMS).is_file() or (folder / RESULTS).is_file():
        return Trial(folder, "run", read_object_or_nothing(folder / PARAMS))
    return Trial(folder, "files", read_object_or_nothing(folder / GATEWAY))


def make_label(folder: Path, taken: Mapping[str, Path]) -> str:
    """Return a short name for a folder which no other has."""
    parts = folder.absolute().parts
    for k in range(1, len(parts) + 1):
        label = "/".join(parts[-k:])
        if taken.get(label, folder) == folder:
            return label
    return str(folder)


def make_curves(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the curves of a run's trials, each with its origins; trials that others resumed are left out.

    Keys: `trial` (its folder's name), `steps`, `metrics` ({name: a value or None for each step}, those of
    `docs/metrics.md`), `evaluations` ({split: [[step, success rate], ...]}).
    """
    origins = [read_origin(trial.folder) for trial in trials]
    continued = {origin["trial"] for origin in origins if origin}
    found = []
    for trial in trials:
        if trial.kind == "run" and trial.folder.name not in continued and (results := read_results(trial.folder)):
            found.append({"trial": trial.folder.name, **_curve(results)})
    return found


def _curve(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [dict(_numbers(result)) for result in results]
    names = sorted({name for row in rows for name in row})
    evaluations: dict[str, dict[int, float]] = {}
    for result in results:
        # The one before the first train step stands at 0.
        for key, step in (("evaluation_on_start", 0), ("evaluation", int(result.get("training_iteration", 0)))):
            splits = result.get(key)
            for split, metrics in splits.items() if isinstance(splits, Mapping) else ():
                rate = metrics.get("success_rate") if isinstance(metrics, Mapping) else None
                if split != "env_runners" and _is_finite(rate):
                    evaluations.setdefault(split, {})[step] = rate
    return {
        "steps": [result.get("training_iteration") for result in results],
        "metrics": {name: [row.get(name) for row in rows] for name in names},
        "evaluations": {split: sorted(points.items()) for split, points in evaluations.items()},
    }


# What a result says of the configuration and of Tune's bookkeeping.
_NO_METRICS = ("config", "evaluation", "evaluation_on_start", "timers", "perf", "fault_tolerance")


def _numbers(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a result, named as in TensorBoard."""
    for key, value in result.items():
        if not prefix and key in _NO_METRICS:
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif _is_finite(value):
            yield f"{prefix}{key}", value


def _is_finite(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that JSON and a curve can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= MAX_NUMBER and not math.isnan(value)
