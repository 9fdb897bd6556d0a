"""A run's temporary folder: what its processes leave there goes with it, and what killed runs left at the next start.

Ray's session, environments' games and JVMs, browser profiles and half-written checkpoints all lie below `TMPDIR`.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rllm_gym import file_systems

PREFIX = "rllm_gym_"
MARK = ".run"  # a file in it: a folder of the user's may have such a name, too
# Younger ones may not be locked yet.
MIN_AGE_S = 60.0
# A socket's path holds 107 bytes at most, of which Ray takes so many below the temporary folder:
# /ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.
MAX_PATH = 107 - 72


@contextlib.contextmanager
def temporary_folder(*, has_own_ray: bool) -> Iterator[Path]:
    """Have `TMPDIR` in a folder of this process's own, and remove it where the block ends without an error.

    The folder's lock says that its owner lives: the kernel lets it go however a process ends, and unlike a pid it
    means the same in every container that shares the disk.

    Args:
        has_own_ray: Ray starts on this machine, so that its session belongs there, too.
    """
    base = Path(tempfile.gettempdir())
    sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    lock = os.open(folder, os.O_RDONLY)
    if file_systems.lock(lock, folder, waits=True):
        (folder / MARK).touch()  # else nobody could tell whether its owner lives, and it is never swept
    before = {name: os.environ.get(name) for name in ("TMPDIR", "RAY_TMPDIR", "TORCHINDUCTOR_CACHE_DIR")}
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    if not has_own_ray or len(str(folder)) > MAX_PATH:
        os.environ.setdefault("RAY_TMPDIR", str(base))
    # What torch has compiled serves the next run, too; by default it lies below TMPDIR.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(base / f"torchinductor_{getpass.getuser()}"))
    try:
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
        tempfile.tempdir = str(base)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def sweep(base: Path) -> None:
    """Remove the temporary folders whose owners have ended."""
    for mark in base.glob(f"{PREFIX}*/{MARK}"):
        folder = mark.parent
        with contextlib.suppress(OSError):  # another user's, or somebody else sweeps it
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(lock).st_mtime > MIN_AGE_S:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
