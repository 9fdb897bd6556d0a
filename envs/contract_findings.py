"""The tools of both contracts: rules that can be broken, and the outcome of checking one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rllm_gym.envs.items import keywords_of
from rllm_gym.errors import RllmGymError

# Makes the environment at the text level, with keywords of its own such as `split` and `render_mode`.
Make = Callable[..., Any]

NONSENSE: tuple[str, ...] = (
    "",
    "Action:",
    "fly to the moon",
    "Thought: hm.\nAction: \u00e9\u6728\U0001f332",
    "Action: 0 get",
    "\ud800",
)
NONSENSE += ("Action: \x11", "\x00\x1b[2J\x7f")  # a program in another language may take these for orders


class ContractError(AssertionError):
    """An environment breaks a rule; the message says how, in one line."""


class NotApplicableError(Exception):
    """A rule is about something that an environment need not have; the message says what that is good for."""


class Finding(NamedTuple):
    """The outcome of one rule; where neither is set, it is kept.

    Args:
        rule: in words.
        broken: how it is broken.
        not_checked: why there is nothing to check.
    """

    rule: str
    broken: str = ""
    not_checked: str = ""


def check_rule(rule: Callable[[Make], None], make: Make) -> Finding:
    words = rule.__name__.replace("_", " ")
    try:
        rule(make)
    except ContractError as error:
        return Finding(words, broken=one_line(error))
    except NotApplicableError as reason:
        return Finding(words, not_checked=str(reason))
    except RllmGymError:
        raise
    except Exception as error:  # an environment of the user's own may raise anything
        return Finding(words, broken=f"it raised {type(error).__name__}: {one_line(error)}")
    return Finding(words)


def require(is_kept: bool, what: str) -> None:
    if not is_kept:
        raise ContractError(what)


def equal(mine: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], where: str) -> None:
    for turn, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        require(a == b, f"{where}: turn {turn} is {short(a)}; it was {short(b)}")
    require(len(mine) == len(theirs), f"{where}: {len(mine) - 1} turns; it had {len(theirs) - 1}")


def takes(env: Any, keyword: str) -> bool:
    return any(keyword in (keywords_of(kind) or ()) for kind in type(env.unwrapped).__mro__[:-1])


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def check_own_randomness(played: Callable[[], object]) -> None:
    """Make sure that playing leaves the generators alone that all of a process share."""
    python_state, numpy_state = random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    played()
    require(random.getstate() == python_state, "it draws from Python's random: draw from self.np_random")
    require(
        bool((np.random.get_state()[1] == numpy_state).all()),  # type: ignore[index]
        "it draws from numpy's global generator: draw from self.np_random",
    )
