"""Finding what to resume, evaluate or export."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rllm_gym.checkpoints import (
    MANIFEST,
    check_checkpoint,
    newest_checkpoint,
    newest_intact_checkpoint,
    read_checkpoint,
    read_results,
    resolve_checkpoint,
    resumed_alike,
    write_manifest,
    write_origin,
)
from rllm_gym.errors import ConfigError
from rllm_gym.lineage import RESUMED_FROM


def make_checkpoint(trial: Path, index: int, *, step: int, saved_at: float) -> Path:
    path = trial / f"checkpoint_{index:06d}"
    (path / "learner_group").mkdir(parents=True)
    (path / "rllib_checkpoint.json").write_text("{}")
    (path / "learner_group" / "state.pkl").write_bytes(b"12345")
    write_manifest(path, training_iteration=step)
    content = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**content, "saved_at": saved_at}))
    return path


def test_the_newest_checkpoint_is_the_one_saved_last_whatever_its_step_and_name(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "b", 7, step=70, saved_at=1.0)
    newest = make_checkpoint(tmp_path / "a", 0, step=3, saved_at=2.0)
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.path, found.training_iteration, found.trial) == (newest, 3, tmp_path / "a")


def test_a_clock_that_is_set_back_makes_no_older_checkpoint_the_newest(tmp_path: Path) -> None:
    first = make_checkpoint(tmp_path / "a", 0, step=1, saved_at=100.0)
    make_checkpoint(tmp_path / "a", 1, step=2, saved_at=200.0)
    set_back = make_checkpoint(tmp_path / "a", 2, step=3, saved_at=50.0)
    assert newest_checkpoint(tmp_path).path == newest_intact_checkpoint(tmp_path).path == set_back  # type: ignore[union-attr]
    resumed = make_checkpoint(tmp_path / "b", 0, step=4, saved_at=60.0)
    origin = {"trial": "a", "checkpoint": first.name, "training_iteration": 1}
    (tmp_path / "b" / RESUMED_FROM).write_text(json.dumps(origin))
    assert newest_checkpoint(tmp_path).path == resumed  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing file", "no manifest", "cut manifest"])
def test_a_damaged_checkpoint_is_passed_over_with_a_line(damage: str, tmp_path: Path) -> None:
    whole = make_checkpoint(tmp_path / "t", 0, step=1, saved_at=1.0)
    torn = make_checkpoint(tmp_path / "t", 1, step=2, saved_at=2.0)
    assert newest_checkpoint(tmp_path).path == torn  # type: ignore[union-attr]
    assert newest_intact_checkpoint(tmp_path).path == torn  # type: ignore[union-attr]
    check_checkpoint(torn)
    state = torn / "learner_group" / "state.pkl"
    if damage == "cut":
        state.write_bytes(b"1234")
    elif damage == "flipped":
        state.write_bytes(b"12354")
    elif damage == "missing file":
        state.unlink()
    elif damage == "no manifest":
        (torn / MANIFEST).unlink()
    else:
        (torn / MANIFEST).write_text('{"training_iteration": 2, ')
    assert (read_checkpoint(torn) is None) == (damage != "flipped")  # of which it does not read the files
    what = "learner_group/state.pkl is not as it was written" if damage == "flipped" else "a file is missing or cut"
    lines: list[str] = []
    assert newest_intact_checkpoint(tmp_path, lines.append).path == whole  # type: ignore[union-attr]
    assert lines == [f"{torn} is damaged: {what}; the checkpoint before it is taken."]
    with pytest.raises(ConfigError) as caught:
        resolve_checkpoint(torn)
    assert str(caught.value) == (f"checkpoint: {torn} is damaged: {what}. Give another one, or the run for its newest.")
    assert resolve_checkpoint(tmp_path) == resolve_checkpoint(tmp_path / "t") == whole


def test_a_checkpoint_means_itself(tmp_path: Path) -> None:
    older = make_checkpoint(tmp_path, 0, step=1, saved_at=1.0)
    make_checkpoint(tmp_path, 1, step=2, saved_at=2.0)
    assert resolve_checkpoint(older) == older


def test_where_there_is_no_checkpoint_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no complete checkpoint\. Give a checkpoint"):
        resolve_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="no such folder"):
        resolve_checkpoint(tmp_path / "nowhere")
    make_checkpoint(tmp_path / "run" / "trial", 1, step=1, saved_at=1.0)  # the storage path of two runs
    make_checkpoint(tmp_path / "another" / "trial", 1, step=1, saved_at=1.0)
    with pytest.raises(ConfigError) as caught:
        resolve_checkpoint(tmp_path)
    of_each = f"Give one of its runs: {tmp_path}/another, {tmp_path}/run."
    assert str(caught.value) == f"checkpoint: {str(tmp_path)!r} holds no complete checkpoint. {of_each}"


def test_a_sealed_checkpoint_is_forced_to_the_disk_with_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = set()
    monkeypatch.setattr(os, "fsync", lambda fd: forced.add(Path(os.readlink(f"/proc/self/fd/{fd}"))))
    path = make_checkpoint(tmp_path, 0, step=1, saved_at=1.0)
    assert forced == {*path.rglob("*"), path, tmp_path}


def write_results(trial: Path, steps: range, tail: str = "") -> None:
    trial.mkdir(exist_ok=True)
    lines = [json.dumps({"training_iteration": step, "by": trial.name}) for step in steps]
    (trial / "result.json").write_text("\n".join(lines) + "\n" + tail)


def test_results_of_a_resumed_trial_begin_with_those_it_goes_on_from(tmp_path: Path) -> None:
    # a: 1 2 3 4 (checkpoint at 2); b resumes at 2: 3 4 5 (checkpoint at 4); c resumes at 4: 5
    write_results(tmp_path / "a", range(1, 5))
    write_results(tmp_path / "b", range(3, 6))
    lines = (tmp_path / "b" / "result.json").read_text().splitlines()
    (tmp_path / "b" / "result.json").write_text("\n".join([*lines[:2], "{ damaged", lines[2]]) + "\n")
    write_results(tmp_path / "c", range(5, 6), tail='{"training_iteration": 6, "by')
    at_2 = read_checkpoint(make_checkpoint(tmp_path / "a", 0, step=2, saved_at=1.0))
    at_4 = read_checkpoint(make_checkpoint(tmp_path / "b", 0, step=4, saved_at=2.0))
    assert at_2 is not None and at_4 is not None
    write_origin(tmp_path / "b", at_2)
    write_origin(tmp_path / "c", at_4)
    assert [(r["training_iteration"], r["by"]) for r in read_results(tmp_path / "c")] == [
        (1, "a"),
        (2, "a"),
        (3, "b"),
        (4, "b"),
        (5, "c"),
    ]


def test_trials_that_went_on_from_one_checkpoint_are_found(tmp_path: Path) -> None:
    info = read_checkpoint(make_checkpoint(tmp_path / "a", 0, step=3, saved_at=2.0))
    other = read_checkpoint(make_checkpoint(tmp_path / "a", 1, step=5, saved_at=3.0))
    for name, origin in (("b", info), ("c", other), ("d", info)):
        write_origin(tmp_path / name, origin)  # type: ignore[arg-type]
    assert resumed_alike(tmp_path / "d") == [tmp_path / "b", tmp_path / "d"]
    assert resumed_alike(tmp_path / "a") == []
