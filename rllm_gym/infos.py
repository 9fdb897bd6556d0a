"""Reads the info of an environment's author: the documented keys by their types, and a copy of all the rest.

Every key but those that begin with `rllm_gym/` is the author's. A documented one of another type than its own is kept
like any other, and never interpreted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

MAX_REPR_CHARS = 1_000  # of what an info holds and cannot be kept itself
MAX_DEPTH = 100  # of what an info holds: JSON's readers allow a few hundred

# The documented keys that hold one value; `messages` and `legal_actions` are lists.
FLAGS, TEXTS = ("is_success", "is_invalid_action"), ("category", "role", "split")
_noted: set[tuple[str, type]] = set()


def read(info: Mapping[str, Any], key: str) -> Any:
    """Return a documented key's value as its type, numpy's kinds of it too; None where it is missing or something else.

    Flags are bools, or numbers that are 0 or 1; `item_id` is a string or an integer; the others are strings.
    """
    value = info.get(key)
    if value is None:
        return None
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    is_number = isinstance(value, bool | int | float)
    if key in FLAGS and is_number and value in (0, 1):
        return bool(value)
    if key == "item_id" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if key not in FLAGS and isinstance(value, str):
        return str(value)
    _note(key, info[key], "which is not its type: it is kept, and means nothing")
    return None


def copy_info(info: Mapping[str, Any], *, left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return an info as it is now, see `copy_value`.

    A documented key of another type whose copy could be taken for its own type is in a list.
    """
    copied = {str(key): copy_value(value, str(key)) for key, value in info.items() if key not in left_out}
    for key in copied.keys() & {*FLAGS, *TEXTS, "item_id"}:
        if read(info, key) is None and read(copied, key) is not None:
            copied[key] = [copied[key]]
    return copied


def read_messages(info: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """Return the conversation that an info holds; None where it is missing, or no list of roles and contents.

    A message may have other texts beside these, such as the `tool_call_id` of an answer to a call.
    """
    value = info.get("messages")
    if value is None:
        return None
    keys = {"role", "content"}
    if isinstance(value, list) and all(
        isinstance(said, dict) and said.keys() >= keys and all(isinstance(text, str) for text in said.values())
        for said in value
    ):
        return value
    _note("messages", value, "which is no list of roles and contents: it means nothing")
    return None


def copy_value(value: Any, key: str = "", inside: tuple[int, ...] = ()) -> Any:
    """Return a value as it is now, which its author may go on to change.

    Numbers, texts, arrays, and lists, tuples and dictionaries of them stay what they are; anything else, and what is
    nested too deeply or in itself, becomes its text.

    Args:
        inside: the ids of what it is a part of.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    if len(inside) < MAX_DEPTH and id(value) not in inside:
        parts = (*inside, id(value))
        if type(value) in (list, tuple):
            return type(value)([copy_value(part, key, parts) for part in value])
        if isinstance(value, dict):
            return {_key(name): copy_value(part, key, parts) for name, part in value.items()}
    _note(key, value, "which is kept as its text")
    return text_of(value)


def text_of(value: Any) -> str:
    """Return the text of a value that cannot be kept itself."""
    with contextlib.suppress(Exception, SystemExit):  # its author's code
        return repr(value)[:MAX_REPR_CHARS]
    return f"<{type(value).__name__}>"


def _key(name: Any) -> Any:
    return name if isinstance(name, str | int | float | bool) or name is None else text_of(name)


def _note(key: str, value: Any, what: str) -> None:
    """Say once for each key and type what became of a value."""
    if (key, type(value)) not in _noted:
        _noted.add((key, type(value)))
        logger.warning("info[%r]: got a %s, %s.", key, type(value).__name__, what)
