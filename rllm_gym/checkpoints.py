"""Finds runs, trials and their newest complete checkpoints under `runs/<experiment>/<trial>/checkpoint_*`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.errors import ConfigError

MANIFEST = "manifest.json"
RESULTS = "result.json"
RESUMED_FROM = "resumed_from.json"
RLLIB_FILE = "rllib_checkpoint.json"  # in every checkpoint that RLlib writes


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint. `training_iteration` is the number of train steps it has behind it."""

    path: Path
    training_iteration: int
    saved_at: float

    @property
    def trial(self) -> Path:
        return self.path.parent


def write_manifest(path: Path, *, training_iteration: int) -> None:
    """Seal a checkpoint: list its files with their sizes. What has no manifest, or lacks a listed file, is torn."""
    files = {str(file.relative_to(path)): file.stat().st_size for file in _files(path)}
    content = {"training_iteration": training_iteration, "saved_at": time.time(), "files": files}
    scratch = path / f".{MANIFEST}.{os.getpid()}"
    scratch.write_text(json.dumps(content), encoding="utf-8")
    os.replace(scratch, path / MANIFEST)


def read_checkpoint(path: Path) -> CheckpointInfo | None:
    """Return the checkpoint in a folder, or None if it is torn or has no manifest."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if any((path / name).stat().st_size != size for name, size in content["files"].items()):
            return None
        return CheckpointInfo(path, int(content["training_iteration"]), float(content["saved_at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if file.is_file() and MANIFEST not in file.name)


def newest_checkpoint(folder: Path) -> CheckpointInfo | None:
    """Return the newest complete checkpoint of a run (a folder of trials) or of one trial."""
    found = [read_checkpoint(path) for pattern in ("checkpoint_*", "*/checkpoint_*") for path in folder.glob(pattern)]
    return max((info for info in found if info), key=lambda info: info.saved_at, default=None)


def resolve_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path means: itself, or the newest complete one of a run or trial.

    Raises:
        ConfigError: there is none.
    """
    if not path.is_dir():
        raise ConfigError(f"checkpoint: no such folder; got {str(path)!r}. Give a checkpoint, or a run under runs/.")
    if (path / RLLIB_FILE).is_file():
        return path
    if info := newest_checkpoint(path):
        return info.path
    raise ConfigError(
        f"checkpoint: {str(path)!r} holds no complete checkpoint. Give a checkpoint, or a run under runs/."
    )


def read_results(trial: Path) -> list[dict[str, Any]]:
    """Return a trial's results, one per train step, with those of the run that it resumed in front.

    A torn last line, as after kill -9, is left out.
    """
    results: list[dict[str, Any]] = []
    origin = _read_json(trial / RESUMED_FROM)
    if origin and (trial.parent / origin["trial"]) != trial:
        earlier = read_results(trial.parent / origin["trial"])
        results = [r for r in earlier if r["training_iteration"] <= origin["training_iteration"]]
    if (trial / RESULTS).is_file():
        for line in (trial / RESULTS).read_text(encoding="utf-8").splitlines():
            try:
                results.append(json.loads(line))
            except ValueError:
                break
    return results


def write_origin(trial: Path, checkpoint: CheckpointInfo) -> None:
    """Note in a new trial's folder which checkpoint it goes on from."""
    content = {
        "trial": checkpoint.trial.name,
        "checkpoint": checkpoint.path.name,
        "training_iteration": checkpoint.training_iteration,
    }
    trial.mkdir(parents=True, exist_ok=True)
    (trial / RESUMED_FROM).write_text(json.dumps(content), encoding="utf-8")


def resumed_alike(trial: Path) -> list[Path]:
    """Return the trials that went on from the checkpoint that this one goes on from, itself among them."""
    origin = _read_json(trial / RESUMED_FROM)
    if origin is None:
        return []
    return sorted(path.parent for path in trial.parent.glob(f"*/{RESUMED_FROM}") if _read_json(path) == origin)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
