"""Seals checkpoints, finds runs, trials and their newest whole ones, and reads what RLlib has written in them.

A checkpoint is `runs/<experiment>/<trial>/checkpoint_*`. No other file knows how RLlib lays one out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym import file_systems
from rllm_gym.errors import ConfigError
from rllm_gym.lineage import RESUMED_FROM, read_origin, trials_before
from rllm_gym.strangers_files import open_regular, read_lines, shown

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
RESULTS = "result.json"
RLLIB_FILE = "rllib_checkpoint.json"  # in every checkpoint that RLlib writes
_ALGORITHM = "class_and_ctor_args.pkl"
_LEARNER = Path("learner_group") / "learner"


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint. `training_iteration` is the number of train steps it has behind it."""

    path: Path
    training_iteration: int
    saved_at: float

    @property
    def trial(self) -> Path:
        return self.path.parent


def write_manifest(path: Path, *, training_iteration: int, protocol: str = "native") -> None:
    """Seal a checkpoint: list its files with their sizes and checksums, and force all of it to the disk.

    What has no manifest, or lacks a listed file, is torn. `protocol` says in whose words the policy was trained.
    """
    files = {
        str(file.relative_to(path)): {"size": file.stat().st_size, "sha256": _checksum(file)} for file in _files(path)
    }
    content = {
        "training_iteration": training_iteration,
        "saved_at": time.time(),
        "protocol": protocol,
        "files": files,
    }
    scratch = path / f".{MANIFEST}.{os.getpid()}"
    scratch.write_text(json.dumps(content), encoding="utf-8")
    os.replace(scratch, path / MANIFEST)
    force_to_disk(path)


def force_to_disk(path: Path) -> None:
    """Force a folder with all that is in it to the disk, so that a power failure leaves it whole."""
    for part in (*path.rglob("*"), path, path.parent):
        if part.is_dir():
            file_systems.force_folder(part)
            continue
        fd = os.open(part, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def read_checkpoint(path: Path) -> CheckpointInfo | None:
    """Return the checkpoint in a folder, or None if it is torn or has no manifest."""
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if any((path / name).stat().st_size != file["size"] for name, file in content["files"].items()):
            return None
        return CheckpointInfo(path, int(content["training_iteration"]), float(content["saved_at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_protocol(path: Path) -> str:
    """Return in whose words a checkpoint's policy was trained, "native" or "agentgym"."""
    try:
        return str(json.loads((path / MANIFEST).read_text(encoding="utf-8")).get("protocol", "native"))
    except (OSError, ValueError):
        return "native"


def find_damage(path: Path) -> str | None:
    """Return the damage to a checkpoint's files, which are all read for it; None where they are as written."""
    if read_checkpoint(path) is None:
        return "a file is missing or cut"
    files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
    changed = (name for name, file in files.items() if _checksum(path / name) != file["sha256"])
    return next((f"{name} is not as it was written" for name in changed), None)


def check_checkpoint(path: Path) -> None:
    """Make sure that a checkpoint is as it was written.

    Raises:
        ConfigError: a file of it is missing, cut or changed.
    """
    if damage := find_damage(path):
        raise ConfigError(f"checkpoint: {path} is damaged: {damage}. Give another one, or the run for its newest.")


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _files(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if file.is_file() and MANIFEST not in file.name)


def newest_checkpoint(folder: Path) -> CheckpointInfo | None:
    """Return the newest complete checkpoint of a run (a folder of trials) or of one trial; its files are not read."""
    return next(filter(None, map(read_checkpoint, _newest_first(folder))), None)


def newest_intact_checkpoint(folder: Path, say: Callable[[str], None] = logger.warning) -> CheckpointInfo | None:
    """Return the newest checkpoint of a run or trial whose files are as they were written.

    Args:
        say: gets a line for each newer one that is damaged.
    """
    for path in _newest_first(folder):
        if (damage := find_damage(path)) is None:
            return read_checkpoint(path)
        say(f"{path} is damaged: {damage}; the checkpoint before it is taken.")
    return None


def _newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints of a run or trial, the newest first, also where the clock was set back meanwhile.

    Tune counts those of a trial, and a trial comes after those that it goes on from. The clock orders the rest.
    """
    trials: dict[Path, list[Path]] = defaultdict(list)
    for pattern in ("checkpoint_*", "*/checkpoint_*"):
        for path in folder.glob(pattern):
            trials[path.parent].append(path)
    gone_on_from = {before for trial in trials for before, _ in trials_before(trial)}

    def age(trial: Path) -> tuple[bool, float]:
        return trial not in gone_on_from, max(map(_saved_at, trials[trial]))

    return [path for trial in sorted(trials, key=age, reverse=True) for path in sorted(trials[trial], reverse=True)]


def _saved_at(path: Path) -> float:
    """Return when a checkpoint was saved; of one without a manifest, when its folder last changed."""
    try:
        return float(json.loads((path / MANIFEST).read_text(encoding="utf-8"))["saved_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return path.stat().st_mtime


def resolve_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path means: itself, or the newest intact one of a run or trial.

    Raises:
        ConfigError: there is none, or the one that was named is damaged.
    """
    if not path.is_dir():
        raise ConfigError(f"checkpoint: no such folder; got {str(path)!r}. Give a checkpoint, or a run under runs/.")
    if (path / RLLIB_FILE).is_file():
        check_checkpoint(path)
        return path
    if info := newest_intact_checkpoint(path):
        return info.path
    runs = sorted({str(found.parents[1]) for found in path.glob("*/*/checkpoint_*")})  # of a storage path
    advice = f"Give one of its runs: {', '.join(runs)}." if runs else "Give a checkpoint, or a run under runs/."
    raise ConfigError(f"checkpoint: {str(path)!r} holds no complete checkpoint. {advice}")


def read_results(trial: Path) -> list[dict[str, Any]]:
    """Return a trial's results, one per train step, with those of the run that it resumed in front.

    A line that is torn, as the last one can be after kill -9, is left out.
    """
    results: list[dict[str, Any]] = []
    for earlier, last_step in reversed(trials_before(trial)):
        results = [result for result in (*results, *_own_results(earlier)) if result["training_iteration"] <= last_step]
    return [*results, *_own_results(trial)]


def _own_results(trial: Path) -> list[dict[str, Any]]:
    file = trial / RESULTS
    try:
        opened = open_regular(file)
    except OSError:
        return []
    results, num_damaged = [], 0
    with opened:
        for line, _ in read_lines(opened):
            try:
                result = json.loads(line or b"")
                is_result = isinstance(result["training_iteration"], int)
            except (ValueError, RecursionError, TypeError, KeyError):
                is_result = False
            if is_result:
                results.append(result)
            else:
                num_damaged += 1
    if num_damaged:
        logger.warning("read_results: left out %d lines of %s, which are no results", num_damaged, shown(file))
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
    origin = read_origin(trial)
    if origin is None:
        return []
    return sorted(path.parent for path in trial.parent.glob(f"*/{RESUMED_FROM}") if read_origin(path.parent) == origin)


# --- what RLlib has written ---


def read_config(checkpoint: Path) -> tuple[type, Any]:
    """Return a checkpoint's algorithm class and configuration. Checkpoints are pickled: load only your own.

    Raises:
        ConfigError: the folder holds no checkpoint of an algorithm.
    """
    try:
        content = pickle.loads((checkpoint / _ALGORITHM).read_bytes())
        algorithm, state = content["class"], content["ctor_args_and_kwargs"][0][0]
        return algorithm, algorithm.get_default_config().from_state(state)
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, IndexError) as error:
        raise ConfigError(
            f"checkpoint: {str(checkpoint)!r} cannot be read as an algorithm's checkpoint ({error})."
        ) from error


def read_policy_version(checkpoint: Path) -> int:
    """Return how often the weights of a checkpoint had been synced. Checkpoints are pickled: load only your own."""
    return int(pickle.loads((checkpoint / _LEARNER / "state.pkl").read_bytes())["weights_seq_no"])


def module_ids(checkpoint: Path) -> list[str]:
    """Return the ids of the RLModules in a checkpoint: the policies, and those that only learners use."""
    return sorted(path.parent.name for path in (checkpoint / _LEARNER / "rl_module").glob("*/module_state.*"))


def module_folder(checkpoint: Path, module_id: str) -> Path:
    """Return where a checkpoint has an RLModule, for its `from_checkpoint`."""
    return (checkpoint / _LEARNER / "rl_module" / module_id).absolute()
