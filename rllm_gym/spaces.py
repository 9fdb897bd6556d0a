"""`TokenSequence`: the Gymnasium space of token id sequences, and how vector environments batch it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import utils as vector_utils

from rllm_gym.types import TokenIds

MEAN_SAMPLE_LENGTH = 16


class TokenSequence(Space[TokenIds]):
    """Sequences of 0 to `max_length` token ids, each in [0, vocab_size).

    Elements are 1-D `np.int64` arrays; `contains` also takes lists and tuples of integers and other integer arrays.

    `sample` draws uniform ids. Lengths are geometric with a mean of 16, cut at `max_length`, much as in
    `gymnasium.spaces.Sequence`: `max_length` is a bound on memory, and a turn that fills it is not typical.

    A batch of n elements is a tuple of n arrays, as for Gymnasium's other ragged spaces (`batch_space` gives a
    `Tuple`). In shared memory every environment has a row of its own; what `AsyncVectorEnv` returns is a copy of it.

    Args:
        vocab_size: number of token ids, at least 1.
        max_length: most tokens in one sequence, at least 1.
        seed: seed or generator for `sample`.
    """

    def __init__(self, vocab_size: int, max_length: int, seed: int | np.random.Generator | None = None):
        for name, value in (("vocab_size", vocab_size), ("max_length", max_length)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"TokenSequence: {name} must be a positive integer; got {value!r}.")
        self.vocab_size = int(vocab_size)
        self.max_length = int(max_length)
        super().__init__(dtype=np.int64, seed=seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> TokenIds:
        """Return a random sequence.

        Args:
            mask: int8 array [vocab_size]; 0 forbids an id.
            probability: float64 array [vocab_size] that sums to 1.
        """
        if mask is not None and probability is not None:
            raise ValueError("TokenSequence: mask and probability exclude each other; got both. Give one.")
        if mask is not None:
            allowed = np.asarray(mask) != 0
            if allowed.shape != (self.vocab_size,) or not allowed.any():
                raise ValueError(
                    f"TokenSequence: mask must have shape ({self.vocab_size},) and allow an id; got {mask!r}."
                )
            probability = allowed / allowed.sum()
        length = min(int(self.np_random.geometric(1 / (MEAN_SAMPLE_LENGTH + 1))) - 1, self.max_length)
        if probability is None:
            return self.np_random.integers(0, self.vocab_size, size=length, dtype=np.int64)
        return self.np_random.choice(self.vocab_size, size=length, p=probability).astype(np.int64)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a 1-D sequence of integers (no bools) within the length and the vocabulary."""
        if isinstance(x, list | tuple):
            if any(isinstance(i, bool | np.bool_) or not isinstance(i, int | np.integer) for i in x):
                return False
        elif not (isinstance(x, np.ndarray) and x.ndim == 1 and np.issubdtype(x.dtype, np.integer)):
            return False
        if len(x) > self.max_length:
            return False
        if len(x) == 0:
            return True
        low, high = (x.min(), x.max()) if isinstance(x, np.ndarray) else (min(x), max(x))
        return bool(low >= 0 and high < self.vocab_size)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def to_jsonable(self, sample_n: Sequence[TokenIds]) -> list[list[int]]:
        return [[int(i) for i in sample] for sample in sample_n]

    def from_jsonable(self, sample_n: list[list[int]]) -> list[TokenIds]:
        return [np.asarray(sample, dtype=np.int64) for sample in sample_n]

    def __repr__(self) -> str:
        return f"TokenSequence({self.vocab_size}, {self.max_length})"

    def __eq__(self, other: Any) -> bool:
        return (
            isinstance(other, TokenSequence)
            and self.vocab_size == other.vocab_size
            and self.max_length == other.max_length
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.vocab_size, self.max_length))


# Gymnasium finds these through functools.singledispatch. Its `batch_space` and `concatenate` already do the right thing
# for every Space (a Tuple, a tuple). `iterate` must stay unregistered: for a Tuple whose members are all registered it
# would zip through the members, that is hand out the first token of every sequence, then the second.


class _SharedRows(tuple):
    """A tuple of arrays that reads shared memory whenever it is looked at, and deep-copies to a plain tuple.

    `AsyncVectorEnv` keeps one object for its whole life and returns deep copies of it (itself with `copy=False`). Each
    of its rows holds a length and that many ids; what is handed out is always a copy.
    """

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[TokenIds]:
        return (row[1 : 1 + row[0]].copy() for row in super().__iter__())

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[TokenIds, ...]:
        return tuple(self)


@vector_utils.create_shared_memory.register(TokenSequence)
def _create_shared_memory(space: TokenSequence, n: int = 1, ctx: Any = multiprocessing) -> tuple[Any, ...]:
    # No lock: the worker writes before it answers through its pipe, and the parent reads after the answer.
    return tuple(ctx.RawArray("q", 1 + space.max_length) for _ in range(n))


@vector_utils.read_from_shared_memory.register(TokenSequence)
def _read_from_shared_memory(space: TokenSequence, shared_memory: tuple[Any, ...], n: int = 1) -> tuple[TokenIds, ...]:
    return _SharedRows(np.frombuffer(row, dtype=np.int64) for row in shared_memory)


@vector_utils.write_to_shared_memory.register(TokenSequence)
def _write_to_shared_memory(space: TokenSequence, index: int, value: TokenIds, shared_memory: tuple[Any, ...]) -> None:
    row = np.frombuffer(shared_memory[index], dtype=np.int64)
    if len(value) >= len(row):
        raise ValueError(f"{space}: a sequence must fit its shared memory of {len(row) - 1} tokens; got {len(value)}.")
    row[1 : 1 + len(value)] = value
    row[0] = len(value)


@vector_utils.create_empty_array.register(TokenSequence)
def _create_empty_array(space: TokenSequence, n: int = 1, fn: Any = np.zeros) -> tuple[TokenIds, ...]:
    return tuple(fn(0, dtype=np.int64) for _ in range(n))


# It is called with the list itself, not through the dispatch on a first argument that its signature promises.
@vector_utils.batch_differing_spaces.register(TokenSequence)
def _batch_differing_spaces(members: Any) -> spaces.Tuple:  # type: ignore[misc]
    return spaces.Tuple([deepcopy(space) for space in members], seed=deepcopy(members[0].np_random))


@is_space_dtype_shape_equiv.register(TokenSequence)
def _is_dtype_shape_equiv(space_1: TokenSequence, space_2: Any) -> bool:
    return isinstance(space_2, TokenSequence)
