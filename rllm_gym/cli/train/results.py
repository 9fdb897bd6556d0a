"""Writes a trial's results where they are kept, row by row, so that they are there however the driver ends.

Tune's own writers fill a folder of Ray's, from which Tune copies now and then: kill -9 takes what was not copied yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray.air.constants import EXPR_PARAM_FILE
from ray.tune import Callback
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback, TBXLoggerCallback

from rllm_gym.checkpoints import force_to_disk
from rllm_gym.cli.episode_text import brief_lines
from rllm_gym.cli.train.loggers import DEFAULT_LOGGERS, parse_entry
from rllm_gym.cli.train.storage import is_remote
from rllm_gym.data import latest_episode
from rllm_gym.errors import StorageError


class _Placed:
    """A Tune trial whose files lie beside its checkpoints."""

    def __init__(self, trial: Any) -> None:
        self._trial = trial
        self.local_path = trial.path

    def init_local_path(self) -> None:
        os.makedirs(self.local_path, exist_ok=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)


class _InPlace(LoggerCallback):
    """Has one of Tune's writers write into the trial's folder; stops the run when that cannot take a row."""

    def __init__(self) -> None:
        super().__init__()
        self._placed: dict[str, Any] = {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        placed = self._placed[trial.trial_id] = _Placed(trial)
        self._store(placed, lambda: self._start(placed))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        placed = self._placed[trial.trial_id]
        self._store(placed, lambda: self._log(iteration, placed, result))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        placed = self._placed[trial.trial_id]
        self._store(placed, lambda: self.log_trial_end(placed))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if placed := self._placed.get(trial.trial_id):
            self._store(placed, lambda: self.log_trial_end(placed, failed=True))

    def _start(self, placed: Any) -> None:
        placed.init_local_path()
        self.log_trial_start(placed)

    def _log(self, iteration: int, placed: Any, result: dict[str, Any]) -> None:
        if not Path(placed.local_path, EXPR_PARAM_FILE).exists():  # an open file takes rows that nobody can read again
            raise OSError("it was deleted")
        self.log_trial_result(iteration, placed, result)

    @staticmethod
    def _store(placed: Any, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise StorageError(
                f"results: must be stored, and {placed.local_path} does not take them: {error.strerror or error}. "
                "Make room or another folder, and go on with --resume."
            ) from error

    def _restore_from_remote(self, file_name: str, trial: Any) -> None:
        pass  # the file is where it belongs


class JsonInPlace(_InPlace, JsonLoggerCallback):
    """Writes `result.json` and `params.json`."""


class CSVInPlace(_InPlace, CSVLoggerCallback):
    """Writes `progress.csv`."""


class TensorBoardInPlace(_InPlace, TBXLoggerCallback):
    """Writes TensorBoard's events, which a thread writes behind: a kill takes those of the last second."""

    def __init__(self, show_every: int = 0) -> None:
        super().__init__()
        self._show_every = show_every
        make: Any = self._summary_writer_cls
        self._summary_writer_cls: Any = lambda folder, flush_secs: make(folder, flush_secs=1)

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        """Also write an episode of each `show_every` train steps as text."""
        super().log_trial_result(iteration, trial, result)
        if lines := sample_episode(trial, result, self._show_every):
            text = "\n".join(f"    {line}" for line in lines)  # a block that TensorBoard's Markdown takes as it is
            self._trial_writer[trial].add_text("sample_episode", text, result["training_iteration"])


class CheckpointSync(Callback):
    """Forces a new checkpoint to the disk before Tune deletes an older one."""

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        if checkpoint.filesystem.type_name == "local":
            force_to_disk(Path(checkpoint.path))


def sample_episode(trial: Any, result: dict[str, Any], every: int) -> list[str]:
    """Return the latest episode of every `every`th train step in short; nothing of others, or where none is stored."""
    if not every or result["training_iteration"] % every:
        return []
    record = latest_episode(Path(trial.path) / "trajectories")
    return list(brief_lines(record)) if record else []


def result_writers(storage: str, loggers: Sequence[Any] = DEFAULT_LOGGERS, *, show_every: int = 0) -> list[Any]:
    """Return the replacements of Tune's writers; none for remote storage, where no file can be appended to.

    Args:
        loggers: as an experiment has them; `result.json` is written in any case, for a resumed run reads it.
        show_every: train steps from one episode that is shown as text to the next; 0 shows none.
    """
    if is_remote(storage):
        return []
    names = [parse_entry(entry)[0] for entry in loggers]
    writers: list[Any] = [JsonInPlace()]
    writers += [CSVInPlace()] if "csv" in names else []
    writers += [TensorBoardInPlace(show_every)] if "tensorboard" in names else []
    return writers
