"""Files that are made once and kept for all processes of a user."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return a folder that outlives the process: below `RLLM_GYM_CACHE`, or where this system keeps caches."""
    if own := os.environ.get("RLLM_GYM_CACHE"):
        root = Path(own).expanduser()
    elif sys.platform == "darwin":
        root = Path.home() / "Library/Caches/rllm_gym"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rllm_gym"
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give a path to write to, which gets its name once the block is done: no process ever sees half a file."""
    handle, partial = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    os.close(handle)
    try:
        yield Path(partial)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
