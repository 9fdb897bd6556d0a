"""Reward functions: what a turn is worth beside, or in place of, what the environment gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.importing import import_object

ENVIRONMENT = "environment"
KEYS = ("fn", "weight", "name")


@dataclass(frozen=True)
class RewardedTurn:
    """The argument of a reward function: one completion, and its outcome.

    Args:
        text: what the policy wrote.
        kind: "action", "plan", "reflection" or "summary".
        action: what the environment got, in its own format; None where that was nothing.
        reply: what the policy reads next.
        reward: the environment's.
        is_over: the episode ends with this turn; not set where a horizon cuts it off.
        number: of the turn, from 0.
        attempt: at the task, from 1.
        info: the environment's.
    """

    text: str
    kind: str
    action: str | None
    reply: str
    reward: float
    is_over: bool
    number: int
    attempt: int
    info: Mapping[str, Any]


@dataclass(frozen=True)
class RewardFunction:
    """A function of a turn, with its weight in the sum and the name of its metric."""

    name: str
    function: Callable[[RewardedTurn], float]
    weight: float = 1.0

    def __call__(self, turn: RewardedTurn) -> float:
        """Return the function's value.

        Raises:
            EnvError: it raised, or gave no finite number; such a turn is worth nothing, not even 0.
        """
        try:
            value = float(self.function(turn))
        except EnvError:
            raise
        except Exception as error:  # it is the user's
            raise EnvError(f"agent: the reward function {self.name} raised {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise EnvError(f"agent: the reward function {self.name} must give a finite number; got {value}.")
        return value


def of_environment(turn: RewardedTurn) -> float:
    return turn.reward


def reward_functions(rewards: Any) -> tuple[RewardFunction, ...]:
    """Return the functions that a list names: `environment`, "module:name", a function, or `{fn, weight, name}`.

    Raises:
        ConfigError: an entry cannot be, or two have one name.
    """
    if not isinstance(rewards, Sequence) or isinstance(rewards, str):
        raise ConfigError(f"agent: rewards must be a list, like [environment, {{fn: my:fn}}]; got {rewards!r}.")
    functions = [_reward_function(entry) for entry in rewards]
    names = [function.name for function in functions]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"agent: every reward function needs a name of its own; got {name!r} twice. Set `name:`.")
    return tuple(functions)


def _reward_function(entry: Any) -> RewardFunction:
    given = dict(entry) if isinstance(entry, Mapping) else {"fn": entry}
    fn, weight, name = given.get("fn"), given.get("weight", 1.0), given.get("name")
    if set(given) - set(KEYS) or fn is None:
        raise ConfigError(f"agent: a reward has the keys {', '.join(KEYS)}, and needs fn; got {entry!r}. Correct it.")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"agent: the weight of a reward must be a number; got {weight!r} in {entry!r}. Correct it.")
    if fn == ENVIRONMENT:
        function: Any = of_environment
    elif isinstance(fn, str):
        function = import_object("agent: rewards", fn)
    else:
        function = fn
    if not callable(function):
        raise ConfigError(f'agent: fn must be `environment`, a function, or "module:name" of one; got {fn!r}.')
    name = name or (fn.rpartition(":")[2] if isinstance(fn, str) else getattr(fn, "__name__", type(fn).__name__))
    if not isinstance(name, str) or "/" in name:
        raise ConfigError(f"agent: the name of a reward must be a text without '/'; got {name!r}. Rename it.")
    return RewardFunction(name, function, float(weight))
