"""A run's temporary files lie in one folder, which goes at its end, or when the next run starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rllm_gym.cli.scratch import MAX_PATH, MIN_AGE_S, PREFIX, temporary_folder

OWNER = """\
import pathlib, sys, tempfile
from rllm_gym.cli.scratch import temporary_folder
with temporary_folder(has_own_ray=True) as folder:
    pathlib.Path(tempfile.mkdtemp(prefix="sciworld_"), "world").write_text("left")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def folder_of_owner(base: Path) -> tuple[subprocess.Popen[str], Path]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], env={**os.environ, "TMPDIR": str(base), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


def make_old(folder: Path) -> None:
    past = folder.stat().st_mtime - 2 * MIN_AGE_S
    os.utime(folder, (past, past))


def test_what_a_killed_run_left_goes_at_the_next_start_and_a_live_ones_stays(base: Path) -> None:
    killed, its_folder = folder_of_owner(base)
    alive, other_folder = folder_of_owner(base)
    other = base / f"{PREFIX}of_somebody_else"
    other.mkdir()
    try:
        killed.kill()
        killed.wait()
        assert list(its_folder.glob("sciworld_*/world"))
        for folder in (its_folder, other_folder, other):
            make_old(folder)
        with temporary_folder(has_own_ray=True):
            assert not its_folder.exists()
            assert list(other_folder.glob("sciworld_*/world"))
            assert other.exists()
    finally:
        alive.communicate("")
    assert not other_folder.exists()


def test_the_folder_holds_what_this_process_and_its_children_make(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = dict(os.environ)
    with temporary_folder(has_own_ray=True) as folder:
        code = "import tempfile; print(tempfile.mkdtemp())"
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        assert Path(made).parent == Path(tempfile.mkdtemp()).parent == folder
        assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == base  # the next run finds it
        # Ray's sockets have no room for long paths; a cluster that is joined has a folder of its own.
        assert (os.environ.get("RAY_TMPDIR") == str(base)) == (len(str(folder)) > MAX_PATH)
    assert not folder.exists()
    assert (dict(os.environ), tempfile.gettempdir()) == (before, str(base))
    with temporary_folder(has_own_ray=False):
        assert os.environ["RAY_TMPDIR"] == str(base)


def test_a_run_that_failed_leaves_its_folder_for_a_look(base: Path) -> None:
    with pytest.raises(ZeroDivisionError), temporary_folder(has_own_ray=True) as folder:
        raise ZeroDivisionError
    assert folder.exists()
    make_old(folder)
    with temporary_folder(has_own_ray=True):
        assert not folder.exists()
