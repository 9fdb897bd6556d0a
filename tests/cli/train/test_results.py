"""Results lie in the trial's folder as soon as they are reported, and a run ends when they cannot."""

from __future__ import annotations

import csv
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune import TuneError
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

from rllm_gym.cli.train.launch import describe_error, storage_errors_as_they_are
from rllm_gym.cli.train.results import result_writers
from rllm_gym.errors import StorageError
from tests.cli.train.test_reporting import stored_episode


def trial(folder: Path) -> Any:
    """A trial as Tune's callbacks see it: `local_path` is Ray's folder, `path` where results are kept."""

    class Trial(SimpleNamespace):
        __hash__ = object.__hash__

        def init_local_path(self) -> None:
            Path(self.local_path).mkdir(parents=True, exist_ok=True)

    names = {"trial_id": "t", "config": {"lr": 1.0}, "evaluated_params": {}, "checkpoint": object()}
    return Trial(path=str(folder / "kept"), local_path=str(folder / "ray"), **names)


def report(writers: list[Any], trial: Any, step: int) -> None:
    for writer in writers:
        writer.on_trial_result(step, [trial], trial, {"training_iteration": step, "env_runners": {"success_rate": 0.5}})


def started(trial: Any, storage: str = "runs", **options: Any) -> list[Any]:
    writers = result_writers(storage, **options)
    for writer in writers:
        writer.on_trial_start(0, [trial], trial)
    return writers


def test_a_row_is_in_the_trials_folder_as_soon_as_it_is_reported(tmp_path: Path) -> None:
    writers = started(one := trial(tmp_path))
    for step in (1, 2):
        report(writers, one, step)
        kept = tmp_path / "kept"
        rows = [json.loads(line) for line in (kept / "result.json").read_text().splitlines()]
        assert [row["training_iteration"] for row in rows] == list(range(1, step + 1))
        with (kept / "progress.csv").open() as file:
            assert [row["env_runners/success_rate"] for row in csv.DictReader(file)] == ["0.5"] * step
        [events] = kept.glob("events.out.tfevents.*")
        while events.read_bytes().count(b"ray/tune/env_runners/success_rate") < step:
            time.sleep(0.05)  # the pytest timeout ends it
    assert json.loads((kept / "params.json").read_text()) == {"lr": 1.0}
    assert not (tmp_path / "ray").exists()
    for writer in writers:
        writer.on_trial_complete(3, [one], one)


def test_tune_finds_its_own_writers_replaced_and_keeps_them_for_remote_storage() -> None:
    replaced = (CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback)
    assert all(any(isinstance(writer, kind) for writer in result_writers("/runs")) for kind in replaced)
    assert result_writers("s3://bucket/runs") == []


def test_a_deleted_folder_takes_no_more_rows(tmp_path: Path) -> None:
    writers = started(one := trial(tmp_path))
    report(writers, one, 1)
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").mkdir()  # as a checkpoint makes it again
    for writer in writers:
        with pytest.raises(
            StorageError, match=r"results: must be stored, and .*kept does not take them: it was deleted"
        ):
            report([writer], one, 2)


def test_a_full_disk_is_said_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "result.json").symlink_to("/dev/full")
    writers = started(one := trial(tmp_path))
    with pytest.raises(StorageError, match="kept does not take them: No space left on device"):
        report(writers, one, 1)


def test_what_tune_makes_of_a_storage_error_is_taken_out_of_it() -> None:
    with pytest.raises(StorageError, match="full"), storage_errors_as_they_are():
        try:
            raise StorageError("full")
        except StorageError:
            raise TuneError("Traceback (most recent call last): ...")  # noqa: B904  as Tune raises it
    with pytest.raises(TuneError, match="another"), storage_errors_as_they_are():
        raise TuneError("another")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("rllm_gym.errors.StorageError: TrajectoryWriter: gone", "failed: TrajectoryWriter: gone"),
        (
            "RuntimeError: Unable to set up cluster storage with the following settings:\nStorageContext<\n  ...>",
            "failed: results: must be stored, and {folder} was deleted, or is not on every node. Give a folder that "
            "stays and that all nodes see, and go on with --resume.",
        ),
        ("OSError: [Errno 28] No space left on device", "failed: OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_trial_without_storage_fails_in_one_line(tmp_path: Path, error: str, line: str) -> None:
    staged = tmp_path / "staged.txt"
    staged.write_text(f"Failure # 1\nTraceback (most recent call last):\n  File x\n    y\n{error}\n")
    folder = tmp_path / "kept"
    assert describe_error(folder, str(staged)) == line.format(folder=folder)
    folder.mkdir()
    (folder / "error.txt").touch()  # as Tune leaves it on a full disk
    assert describe_error(folder, str(staged)) == line.format(folder=folder)


def test_loggers_decide_what_is_written_beside_the_results(tmp_path: Path) -> None:
    report(started(one := trial(tmp_path), loggers=["csv"]), one, 1)
    assert sorted(file.name for file in (tmp_path / "kept").iterdir() if "params" not in file.name) == [
        "progress.csv", "result.json",
    ]  # fmt: skip


def test_tensorboard_has_an_episode_as_text_every_few_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writers = started(one := trial(tmp_path), show_every=2)
    for step in (1, 2, 3, 4):
        stored_episode(tmp_path / "kept", step, f"task_{step}")
        report(writers, one, step)
    for writer in writers:
        writer.on_trial_complete(4, [one], one)
    events = EventAccumulator(str(tmp_path / "kept")).Reload()
    texts = {
        event.step: event.tensor_proto.string_val[0].decode() for event in events.Tensors("sample_episode/text_summary")
    }
    assert list(texts) == [2, 4]
    assert "task_4" in texts[4] and all(line.startswith("    ") for line in texts[4].splitlines())
