"""Reads files that somebody else may have made: regular ones alone, and no more of one than fits into memory."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MAX_LINE_BYTES = 1 << 27
MAX_JSON_BYTES = 1 << 26
_BLOCK_BYTES = 1 << 20


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; a pipe would be waited for, and a device has no end.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{str(path)!r} is no regular file")
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")


def read_lines(file: IO[bytes]) -> Iterator[tuple[bytes | None, int]]:
    """Yield each line with its end, and its number of bytes; None in place of one above `MAX_LINE_BYTES`."""
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line, len(line)
            continue
        num_bytes = len(line)
        while not line.endswith(b"\n") and (line := file.readline(_BLOCK_BYTES)):
            num_bytes += len(line)
        yield None, num_bytes


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of at most `MAX_JSON_BYTES`; {} where there is none."""
    try:
        with open_regular(path) as file:
            text = file.read(MAX_JSON_BYTES + 1)
        content = json.loads(text) if len(text) <= MAX_JSON_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def shown(name: object) -> str:
    """Return a name for a terminal, whose control characters it spells out."""
    return repr(str(name))[1:-1]
