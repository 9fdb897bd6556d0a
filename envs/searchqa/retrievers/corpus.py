"""A corpus in a JSONL file, whose passages are read by number while the file stays as and where it is."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.searchqa.retrievers.store import read_contents
from rllm_gym.envs.user_cache import cache_folder, new_file
from rllm_gym.errors import ConfigError, EnvError

BYTES_PER_SLICE = 1 << 26


class CorpusFile:
    """The passages of a JSONL file, by number of the line; lines without anything do not count.

    Where its lines begin is found once, at the speed of the disk, and kept in the user's cache, 8 bytes a passage.

    Args:
        path: one {"id": ..., "contents": ...} or {"title": ..., "text": ...} a line.

    Raises:
        ConfigError: no such file, a compressed one, or a first line that is no passage.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with open(path, "rb") as file:
                is_compressed = file.read(2) == b"\x1f\x8b"
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as e:  # mmap's word for an empty file
            raise ConfigError(
                f"SearchQAEnv: the corpus must be a JSONL file; got {str(path)!r} ({e}). Correct the path."
            ) from e
        if is_compressed:
            raise ConfigError(
                f"SearchQAEnv: the corpus must be unpacked, so that a passage is read without the others; got "
                f"{str(path)!r}. Run: gunzip --keep {path}"
            )
        self._starts = _kept_starts(path, self._bytes)
        self._read(0, ConfigError)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> str:
        return self._read(number, EnvError)

    def _read(self, number: int, error: type[Exception]) -> str:
        start = int(self._starts[number])
        end = self._bytes.find(b"\n", start)
        line = self._bytes[start : end if end >= 0 else None]
        try:
            return read_contents(line)
        except ValueError as e:
            raise error(f"SearchQAEnv: row {number} of the corpus {self._path} {e}. Correct it.") from e


def _kept_starts(path: Path, content: mmap.mmap) -> npt.NDArray[np.int64]:
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:24]
    kept = cache_folder("corpora") / f"{key}.npy"
    if not kept.is_file():
        with new_file(kept) as partial, open(partial, "wb") as file:
            np.save(file, _line_starts(content))
    return np.load(kept, mmap_mode="r")


def _line_starts(content: mmap.mmap) -> npt.NDArray[np.int64]:
    data = np.frombuffer(content, np.uint8)
    slices = range(0, len(data), BYTES_PER_SLICE)
    breaks = [np.flatnonzero(data[start : start + BYTES_PER_SLICE] == ord("\n")) + start for start in slices]
    ends = np.concatenate([*breaks, [len(data)]])
    starts = np.concatenate([[0], ends[:-1] + 1])
    return starts[ends - starts > 1]  # the shortest JSON object has two bytes; "\r" alone has one
