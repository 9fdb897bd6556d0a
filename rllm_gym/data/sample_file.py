"""Samples on disk, read one by one in an order that only depends on a seed."""

from __future__ import annotations

import os
import tempfile
import zlib
from array import array
from pathlib import Path

import numpy as np

from rllm_gym.types import Sample


class SampleFile:
    """The tokens and weights of samples on disk, so that there may be more of them than memory holds.

    The file has no name: it is gone when the process ends, however it ends.

    Args:
        folder: where there is room; created where missing.
    """

    def __init__(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  lives as long as this object
        self._starts = array("q", [0])
        self.fingerprint = 0
        self.num_tokens = 0

    def append(self, sample: Sample) -> None:
        data = sample.tokens.astype(np.int32).tobytes() + sample.weight.astype(np.float32).tobytes()
        self._file.write(data)
        self._starts.append(self._starts[-1] + len(data))
        self.fingerprint = zlib.crc32(data, self.fingerprint)
        self.num_tokens += len(sample)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"SampleFile: index must be below {len(self)}; got {index}.")
        self._file.flush()
        start, end = self._starts[index], self._starts[index + 1]
        # Read, not mapped: the pages of a mapped file count as the process's memory.
        data = os.pread(self._file.fileno(), end - start, start)
        half = len(data) // 2
        return Sample(
            np.frombuffer(data[:half], np.int32).astype(np.int64), np.frombuffer(data[half:], np.float32).copy()
        )

    def close(self) -> None:
        self._file.close()


class EpochOrder:
    """Deals `num` things in epochs: each once before any comes again, in an order shuffled anew for every epoch.

    A pure function of the seed, so that a resumed run goes on in the middle of an epoch without any state.
    """

    def __init__(self, num: int, *, seed: int) -> None:
        self._num, self._seed = num, seed
        self._epoch, self._permutation = -1, np.zeros(0, np.int64)

    def indices(self, first: int, count: int) -> list[int]:
        """Return which things come at the positions `first`, `first + 1`, ...; position `num` begins epoch 1."""
        return [self._at(*divmod(position, self._num)) for position in range(first, first + count)]

    def _at(self, epoch: int, k: int) -> int:
        if epoch != self._epoch:
            rng = np.random.default_rng(np.random.SeedSequence((self._seed, epoch)))
            self._epoch, self._permutation = epoch, rng.permutation(self._num)
        return int(self._permutation[k])
