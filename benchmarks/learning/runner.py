"""Makes the runs one after another, in chunks that give a busy machine back, and appends a row as each ends."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import study
from benchmarks.learning.study import Run
from benchmarks.learning.training import row_of
from rllm_gym import file_systems

SLOT_COMMAND = "LEARNING_SLOT_COMMAND"  # environment variable: put before each chunk, such as a lock's command
NO_SLOT = 75  # what such a command returns where it got no turn (EX_TEMPFAIL)
CHUNK_S = 12 * 60  # of training; starting up and the last train step come on top
PAUSE_S = 10  # between chunks, for others who wait
MAX_FAILURES = 3  # chunks in a row without progress, after which a run is passed over
NICE = 10
ROOT = Path(__file__).resolve().parents[2]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return a file's rows; a last line that was cut by a kill is left out."""
    if not file.exists():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def append_row(file: Path, row: Mapping[str, Any]) -> None:
    """Append a row, on a line of its own also where the line before was cut."""
    is_cut = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
    with file.open("a", encoding="utf-8") as out:
        out.write("\n" * is_cut + json.dumps(row) + "\n")
        out.flush()
        os.fsync(out.fileno())


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a run; a row without a method is of GRPO, as all were at first."""
    names = ("env", "schedule", "seed", "lr", "turns", "tokens")
    return (row.get("method", "grpo"), *(row[name] for name in names))


def rows_of(runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of these runs."""
    keys = {key_of(run.content) for run in runs}
    return [row for row in rows if key_of(row) in keys]


def as_method_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the schedules' rows that are GRPO's at the long horizon, at whichever learning rate."""
    return [{**row, "schedule": "long", "method": "grpo"} for row in rows if row["schedule"] in study.ALL_LONG]


def missing(runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Return the runs that have no row, in their order."""
    done = {key_of(row) for row in rows}
    return [run for run in runs if key_of(run.content) not in done]


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Hold the results folder; a chunk that outlives its runner holds it, too, and is waited for."""
    with (out / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            file_systems.lock(lock.fileno(), out, waits=False)
        except BlockingIOError:
            say(f"{out}: another runner, or the chunk that it has left, is at work here; waiting for it.")
            file_systems.lock(lock.fileno(), out, waits=True)
        yield


def make_runs(out: Path, runs: Sequence[Run], rows_file: Path, known: Sequence[Mapping[str, Any]] = ()) -> None:
    """Make every run that has no row yet.

    Args:
        known: rows that another file has.
    """
    todo = missing(runs, [*known, *read_rows(rows_file)])
    say(f"{rows_file.name}: {len(runs) - len(todo)} of {len(runs)} runs are there.")
    for run in todo:
        if not finish(out, run):
            say(f"{run.name}: passed over after {MAX_FAILURES} failures; its log is in {folder_of(out, run)}.")
            continue
        row = row_of(run, folder_of(out, run), start_of(out, run), commit())
        append_row(rows_file, row)
        last = row["readings"][-2]["success"]
        say(f"{run.name}: {row['start']['last']['success']:.3f} -> {last:.3f} in {row['minutes']:.1f} minutes")


def finish(out: Path, run: Run) -> bool:
    """Train a run chunk by chunk to its end; return False where it fails again and again."""
    folder, failures = folder_of(out, run), 0
    folder.mkdir(parents=True, exist_ok=True)
    while failures < MAX_FAILURES:
        before = progress_of(folder)
        status = in_slot(folder / "log", "chunk", str(out), json.dumps(run.content))
        if progress_of(folder).get("is_finished"):
            return True
        if status == NO_SLOT:
            continue
        failures = 0 if progress_of(folder).get("turns") != before.get("turns") else failures + 1
        time.sleep(PAUSE_S)
    return False


def progress_of(folder: Path) -> dict[str, Any]:
    file = folder / "progress.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def in_slot(log_file: Path, *arguments: str) -> int:
    """Run a command of this package in a process of its own, in a slot; return its status."""
    slot = shlex.split(os.environ.get(SLOT_COMMAND, ""))
    command = [*slot, sys.executable, "-m", "benchmarks.learning", *arguments]
    with log_file.open("a") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, close_fds=False, start_new_session=True, env=chunk_env()
        )
        try:
            return process.wait()
        finally:  # also when this process is told to end
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def chunk_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def folder_of(out: Path, run: Run) -> Path:
    part = "" if run.turns == study.TURNS else f"-{run.turns}turns"
    return out / "runs" / f"{run.name}{part}"


def start_of(out: Path, run: Run) -> Path:
    """Return the file of the panels' readings before training, which the runs of an environment share."""
    return out / f"start_{run.env}.json"


def chosen_lrs(rows: Sequence[Mapping[str, Any]], names: Iterable[str], key: str = "schedule") -> dict[str, float]:
    """Return the lr of each searched schedule, or method: the best on the search seeds; of equal ones the smaller."""
    return {name: best([(row["lr"], last_success(row)) for row in rows if row[key] == name]) for name in names}


def common_lr(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the lr with the best mean over all that were searched."""
    return best([(row["lr"], last_success(row)) for row in rows])


def best(found: Sequence[tuple[float, float]]) -> float:
    """Return the value with the highest mean score, the smallest of equal ones; found are (value, score)."""
    values = sorted({value for value, _ in found})

    def mean(value: float) -> float:
        scores = [score for other, score in found if other == value]
        return sum(scores) / len(scores)

    return max(values, key=mean)


def last_success(row: Mapping[str, Any], budget: str = "turns") -> float:
    """Return the success at the end of a budget."""
    return float(reading_at(row, study.NUM_POINTS, budget)["success"])


def reading_at(row: Mapping[str, Any], point: int, budget: str = "turns") -> Mapping[str, Any]:
    """Return a row's reading of one of the eight points of a budget."""
    [reading] = [reading for reading in row["readings"] if point in reading["points"][budget]]
    return reading


def commit() -> str:
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return run.stdout.strip() or "unknown"


def say(line: str) -> None:
    print(time.strftime("%m-%d %H:%M"), line, flush=True)
