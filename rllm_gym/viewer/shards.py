"""Reads trajectory files piece by piece while a run appends to them, and seals them, at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import zstandard

from rllm_gym.data.reader import PLAIN, SEALED, is_whole, sealed_name
from rllm_gym.errors import TrajectoryError

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
        self._sealed_as: tuple[int, int] | None = None  # inode and size of the sealed file, once it has been read

    def new_lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (number, offset, line) of every whole line that has come since the last call.

        Raises:
            ReplacedError: the file is no longer the one that was read: another run's, or thinned out.
            TrajectoryError: a sealed file is damaged.
        """
        if not self._has_grown():
            return
        with open_shard(self.path) as (file, is_sealed):
            if is_sealed and self.offset and self.line_at(self._last[0]) != self._last[1]:
                raise ReplacedError(f"{self.path} was thinned out when it was sealed")
            skip_to(file, self.offset)
            rest = b""
            while block := file.read(_BLOCK_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield self._take(line, len(line) + 1)
            # The last line may lack its end; an object that is cut short is never an object.
            if rest and is_whole(rest):
                yield self._take(rest, len(rest))
        if is_sealed:
            self._sealed_as = _identity(sealed_name(self.path))

    def give_up(self) -> None:
        """Read a damaged sealed file no further, until it is another one."""
        self._sealed_as = _identity(sealed_name(self.path))

    def line_at(self, offset: int) -> bytes:
        """Return the line that begins at an offset."""
        with open_shard(self.path) as (file, _):
            skip_to(file, offset)
            line = b""
            while block := file.read(2**16):
                line += block
                if b"\n" in block:
                    break
            return line.partition(b"\n")[0]

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, line) of what was read before, again."""
        with open_shard(self.path) as (file, _):
            offset, rest = 0, b""
            while offset < self.offset and (block := file.read(_BLOCK_BYTES)):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield offset, line
                    offset += len(line) + 1
            if rest and offset < self.offset:
                yield offset, rest

    def _take(self, line: bytes, num_bytes: int) -> tuple[int, int, bytes]:
        number, offset = self.num_lines, self.offset
        self._last = offset, line
        self.num_lines += 1
        self.offset += num_bytes
        return number, offset, line

    def _has_grown(self) -> bool:
        if self._sealed_as is not None:
            if _identity(sealed_name(self.path)) != self._sealed_as:
                raise ReplacedError(f"{sealed_name(self.path)} is another file than before")
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


@contextmanager
def open_shard(path: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """Open a shard by its plain name for reading; also says whether it is sealed.

    Raises:
        TrajectoryError: while reading: a sealed file is damaged.
    """
    try:
        with path.open("rb") as file:
            yield file, False
        return
    except FileNotFoundError:
        file = sealed_name(path).open("rb")
    with file:
        try:
            yield zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True), True  # type: ignore[misc]
        except zstandard.ZstdError as error:
            raise TrajectoryError(f"{sealed_name(path)} must be an intact Zstandard file; got: {error}.") from error


def skip_to(file: IO[bytes], offset: int) -> None:
    """Go to a place; a compressed file is read up to there."""
    if file.seekable() and not isinstance(file, zstandard.ZstdDecompressionReader):
        file.seek(offset)
        return
    while offset > 0 and (block := file.read(min(offset, _BLOCK_BYTES))):
        offset -= len(block)
