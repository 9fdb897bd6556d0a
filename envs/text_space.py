"""UnicodeText: the space of all texts up to a length, of any characters; and the check that an environment is text."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import read_from_shared_memory, write_to_shared_memory

from rllm_gym.errors import ConfigError

_SAMPLED_CHARS = string.ascii_letters + string.digits + " .,:?!-\n"
_MAX_SAMPLED_LENGTH = 64
# What neither a policy nor an environment gets to read: control characters but tab and newline, and halves of surrogate
# pairs, which no tokenizer encodes.
REQUEST = "rllm_gym/request"  # the info's key of what an `AgentEnv` asks for, at the end of the observation
UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NO_CHAR = -1


class UnicodeText(gymnasium.spaces.Text):
    """All strings of `min_length` to `max_length` characters, whatever the characters are.

    Differs from `gymnasium.spaces.Text`: `contains` asks for the length only, `sample` draws short texts of the
    characters that `characters` lists, and asynchronous vector environments pass any character through shared memory.
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=min_length, charset=_SAMPLED_CHARS, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask=mask, probability=probability)
        longest = min(self.max_length, max(self.min_length, _MAX_SAMPLED_LENGTH))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        return super().sample(mask=(length, None))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    @property
    def is_np_flattenable(self) -> bool:
        return False  # flattening numbers the characters of a charset, and there is none

    def __repr__(self) -> str:
        return f"UnicodeText({self.min_length}, {self.max_length})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, UnicodeText)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )


def check_text_env(env: Any, who: str) -> None:
    """Check that both spaces of an environment are Gymnasium's `Text`, of which `UnicodeText` is one.

    Raises:
        ConfigError: they are not, or it is no single-agent `gymnasium.Env`.
    """
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"{who}: env must be a gymnasium.Env[str, str]; got {env!r}. Give an instance; for several agents "
            "there is TokenMultiAgentEnv."
        )
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.spaces.Text):
            raise ConfigError(
                f"{who}: env must be a text environment, with a gymnasium.spaces.Text for {name}; got {space} of "
                f"{env}. Turn what it says and hears into text first, with spaces such as UnicodeText(10_000)."
            )


# Gymnasium's own handlers for Text number the characters of the charset, and what they read never changes again. These
# write UTF-32 code points into the same memory: `max_length` 32-bit integers for each environment.


class _SharedTexts(tuple[Any, ...]):
    """A tuple of texts that reads shared memory whenever it is looked at, and deep-copies to a plain tuple.

    `AsyncVectorEnv` keeps one such object for its whole life, and returns deep copies of it.
    """

    def __iter__(self) -> Iterator[str]:
        return (row[row != _NO_CHAR].tobytes().decode("utf-32-le", "surrogatepass") for row in super().__iter__())

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: Any, n: int = 1) -> tuple[str, ...]:
    return _SharedTexts(np.frombuffer(shared_memory.get_obj(), np.int32).reshape(n, space.max_length))


@write_to_shared_memory.register(UnicodeText)
def _write(space: UnicodeText, index: int, value: str, shared_memory: Any) -> None:
    codes = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), np.int32)
    row = np.frombuffer(shared_memory.get_obj(), np.int32).reshape(-1, space.max_length)[index]
    row[: len(codes)] = codes
    row[len(codes) :] = _NO_CHAR
