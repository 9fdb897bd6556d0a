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


def read_text(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Return the text of a file in UTF-8, without the mark of byte order that some editors begin with.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        ValueError: it is larger, or no UTF-8.
    """
    with open_regular(path) as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return text.decode("utf-8-sig")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of at most `MAX_JSON_BYTES`.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
        ValueError: it is larger, or holds something else.
    """
    try:
        content = json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(content, dict):
        raise ValueError(f"it holds no object but a {type(content).__name__}")
    return content


def read_object_or_nothing(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of at most `MAX_JSON_BYTES`; {} where there is none."""
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}


def shown(name: object) -> str:
    """Return a name for a terminal, whose control characters it spells out."""
    return repr(str(name))[1:-1]
