"""Reads trajectory files piece by piece while a run appends to them, and seals them, at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rllm_gym.data.reader import PLAIN, SEALED, is_whole, open_shard, sealed_name
from rllm_gym.errors import TrajectoryError
from rllm_gym.strangers_files import read_lines

_BLOCK_BYTES = 2**22


def find_shards(path: Path) -> list[Path]:
    """Return the trajectory files below a path by their plain names, sealed or not, in reading order."""
    files = [path] if path.is_file() else path.rglob(f"*{PLAIN}*")
    found = {plain_name(file) for file in files if file.name.endswith((PLAIN, SEALED))}
    return sorted(found)


def plain_name(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(".zst"))


class Shard:
    """One file and how much of it has been read. A place in it is the same before and after it is sealed.

    Args:
        path: the plain name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0  # bytes of whole lines read, uncompressed
        self.num_lines = 0
        self._size = 0  # of the plain file when it was read last
        self._last = (0, b"")  # offset and text of the last line read
        self._read_as: tuple[int, int] | None = None  # inode and size of what is read no further: sealed, or damaged

    def new_lines(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield (number, offset, line) of every whole line that has come since the last call; None for a too long one.

        Raises:
            ReplacedError: the file is no longer the one that was read: another run's, or thinned out.
            TrajectoryError: it is no regular file, or a sealed one is damaged.
        """
        if not self._has_grown():
            return
        with open_shard(self.path) as (file, is_sealed):
            if is_sealed and self.offset and self.line_at(self._last[0]) != self._last[1]:
                raise ReplacedError(f"{self.path} was thinned out when it was sealed")
            skip_to(file, self.offset, is_sealed=is_sealed)
            for line, num_bytes in read_lines(file):
                # The last line may lack its end; an object that is cut short is never an object.
                if line is None or line.endswith(b"\n") or is_whole(line):
                    yield self._take(None if line is None else line.removesuffix(b"\n"), num_bytes)
        if is_sealed:
            self._read_as = _identity(sealed_name(self.path))

    def give_up(self) -> None:
        """Read a damaged file no further, until it is another one."""
        self._read_as = _identity(self._file)

    def line_at(self, offset: int) -> bytes:
        """Return the line that begins at an offset."""
        with open_shard(self.path) as (file, is_sealed):
            skip_to(file, offset, is_sealed=is_sealed)
            line, _ = next(read_lines(file), (b"", 0))
            return (line or b"").removesuffix(b"\n")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, line) of what was read before, again."""
        offset = 0
        with open_shard(self.path) as (file, _):
            for line, num_bytes in read_lines(file):
                if offset >= self.offset:
                    return
                yield offset, (line or b"").removesuffix(b"\n")
                offset += num_bytes

    @property
    def _file(self) -> Path:
        return self.path if self.path.exists() else sealed_name(self.path)

    def _take(self, line: bytes | None, num_bytes: int) -> tuple[int, int, bytes | None]:
        number, offset = self.num_lines, self.offset
        self._last = offset, line or b""
        self.num_lines += 1
        self.offset += num_bytes
        return number, offset, line

    def _has_grown(self) -> bool:
        if self._read_as is not None:
            if _identity(self._file) != self._read_as:
                raise ReplacedError(f"{self._file} is another file than before")
            return False
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return True  # it has been sealed
        if size < self.offset:
            raise ReplacedError(f"{self.path} is shorter than it was")
        has_grown, self._size = size > self._size, size
        return has_grown


class ReplacedError(TrajectoryError):
    """A file is no longer the one that was read."""


def _identity(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_ino, found.st_size


def skip_to(file: IO[bytes], offset: int, *, is_sealed: bool) -> None:
    """Go to a place; a compressed file is read up to there."""
    if not is_sealed:
        file.seek(offset)
        return
    while offset > 0 and (block := file.read(min(offset, _BLOCK_BYTES))):
        offset -= len(block)
