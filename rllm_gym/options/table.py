"""A table of options: annotated attributes, and the rules between them."""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from typing_extensions import Doc

from rllm_gym.errors import ConfigError

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


class OptionTable:
    """Base of the tables. A method's configuration derives from its table; without Ray a table is filled alone."""

    @property
    def who(self) -> str:
        """The configuration's name, with which every fault begins."""
        name = type(self).__name__
        return name.removesuffix("Options") + "Config" if name.endswith("Options") else name

    def in_order(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that are set together in the order in which they are set: the last one wins."""
        return options

    def faults(self) -> Iterator[str]:
        """Yield a line for all that is wrong with the options taken together, once each has a value of its type."""
        yield from ()


def list_options(cls: Any) -> dict[str, Option]:
    """Return the options of a table or of a configuration, those of its bases first."""
    return _list_options(cls)


@functools.cache
def _list_options(cls: Any) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for owner in reversed(cls.__mro__):
        for name, hint in _read_hints(owner).items():
            docs = [part.documentation for part in get_args(hint)[1:] if isinstance(part, Doc)]
            found[name] = Option(name, hint, getattr(cls, name, UNSET), docs[-1], owner)
    return found


def _read_hints(owner: type) -> dict[str, Any]:
    """Return the annotations of one class that declare options: those with a `Doc`."""
    written = inspect.get_annotations(owner)
    names = {name: text for name, text in written.items() if "Doc(" in str(text)}
    if not names:
        return {}
    holder = type(owner.__name__, (), {"__annotations__": names, "__module__": owner.__module__})
    return typing.get_type_hints(holder, include_extras=True)


def fill_table(table: type[OptionTable], options: Mapping[str, Any]) -> Any:
    """Return a table with these values, and of all other options the default; where that is RLlib's, None."""
    filled = table()
    for option in list_options(table).values():
        setattr(filled, option.name, None if option.default is UNSET else option.new_default())
    for name, value in filled.in_order(options).items():
        setattr(filled, name, value)
    return filled


def faults_raised_by(check: Callable[[], object]) -> list[str]:
    """Return the message of the `ConfigError` that a check raises, or nothing."""
    try:
        check()
    except ConfigError as error:
        return [str(error)]
    return []
