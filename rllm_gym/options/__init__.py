"""The options of every method: one table, from which come the checks, the defaults, `help` and the pages on YAML.

An option is an annotated attribute of a class here, or of a configuration derived from one: its type with its bounds,
its default, and a `Doc` that says what it does. Nothing here loads Ray or torch, so that a mistake in a file is told at
once. A method of one's own declares its options in its configuration in the same way.
"""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from dataclasses import dataclass
from typing import Any, get_args

from typing_extensions import Doc

from rllm_gym.errors import nearest
from rllm_gym.options.from_rllib import UNUSED

UNSET: Any = object()  # of an option whose default is RLlib's


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        hint: its type, with the bounds of numbers as pydantic writes them.
        default: `UNSET` where RLlib's own is left as it is.
        doc: what it does, in a sentence.
        owner: the class that declares it.
    """

    name: str
    hint: Any
    default: Any
    doc: str
    owner: type

    def new_default(self) -> Any:
        return copy.deepcopy(self.default)


def options_of(cls: Any) -> dict[str, Option]:
    """Return the options of a table or of a configuration, those of its bases first."""
    return _options_of(cls)


@functools.cache
def _options_of(cls: Any) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for owner in reversed(cls.__mro__):
        for name, hint in _hints_of(owner).items():
            docs = [part.documentation for part in get_args(hint)[1:] if isinstance(part, Doc)]
            found[name] = Option(name, hint, getattr(cls, name, UNSET), docs[-1], owner)
    return found


def _hints_of(owner: type) -> dict[str, Any]:
    """Return the annotations of one class that declare options: those with a `Doc`."""
    written = inspect.get_annotations(owner)
    names = {name: text for name, text in written.items() if "Doc(" in str(text)}
    if not names:
        return {}
    holder = type(owner.__name__, (), {"__annotations__": names, "__module__": owner.__module__})
    return typing.get_type_hints(holder, include_extras=True)


def unused_option(name: str) -> str | None:
    """Return what to use instead of an option of RLlib's that is not used here; None for any other name."""
    if name not in UNUSED:
        return None
    return f"{name} is not used here; {UNUSED[name] or 'it does nothing. Leave it out'}."


def unknown_option(name: str, options: typing.Collection[str]) -> str | None:
    """Return why an option is refused, or None where it is known."""
    if name in options:
        return None
    if reason := unused_option(name):
        return reason
    return f"unknown key {name!r}; did you mean {nearest(name, options)!r}?"


def table_of(method: str) -> Any:
    """Return the options' table of a method that ships, by its name; None for another."""
    from rllm_gym.options.each_method import TABLES

    return TABLES.get(method)
