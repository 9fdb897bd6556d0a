"""Faults of an option's value, in words."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import ConfigDict, PydanticUndefinedAnnotation, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from rllm_gym.errors import ConfigError
from rllm_gym.importing import import_object


def type_fault(name: str, value: Any, hint: Any) -> str | None:
    """Return the fault of a value as YAML has it, or None.

    A whole number is taken for a number, true is no number, and "module:name" stands for a class or function.
    """
    if isinstance(value, str) and takes_object(hint):
        try:
            import_object(name, value)
        except ConfigError as error:
            return str(error)
        return None
    return value_fault(name, value, hint)


def value_fault(name: str, value: Any, hint: Any) -> str | None:
    """Return the fault of a value, or None."""
    try:
        adapter = _adapter(hint)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError):
        return None  # a type that YAML cannot express; RLlib checks it
    # As JSON, a list may stand for a tuple; as Python, for any collection.
    checks = (
        lambda: adapter.validate_json(json.dumps(value, default=str), strict=True),
        lambda: adapter.validate_python(value, strict=True),
    )
    for check in checks:
        with contextlib.suppress(ValidationError):
            check()
            return None
    return f"{name} must be {describe(hint)}; got {value!r}.{_unquoted(value, hint)}"


def _unquoted(value: Any, hint: Any) -> str:
    """Return advice where YAML has made `value` of a word that the option takes."""
    words = ("on", "yes") if value is True else ("off", "no") if value is False else ()
    found = [word for word in words if value_fault("", word, hint) is None]
    return f' YAML reads {found[0]} as {str(value).lower()}: write "{found[0]}".' if found else ""


@functools.cache
def _adapter(hint: Any) -> TypeAdapter:
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


def takes_object(hint: Any) -> bool:
    """Return whether an option's value is a class or function, which YAML names as "module:name"."""
    if get_origin(hint) is Annotated:
        return takes_object(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return any(takes_object(part) for part in get_args(hint)) and str not in get_args(hint)
    return hint in (type, Callable) or get_origin(hint) in (type, Callable)


WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
    type: "a class",
    dict: "a mapping",
}
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def describe(hint: Any) -> str:
    """Return a type hint in words, with its bounds."""
    if hint in WORDS:
        return WORDS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([describe(arguments[0]), *_bounds(arguments[1:])])
    if origin is Callable or hint is Callable:
        return "a class or function"
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(part) for part in arguments))
    if is_typeddict(hint):
        return "a mapping of " + ", ".join(hint.__annotations__)
    bare = origin or hint
    if inspect.isclass(bare) and issubclass(bare, Mapping):
        return "a mapping"
    if inspect.isclass(bare) and issubclass(bare, Collection | Sequence):
        inner = [part for part in arguments if part is not Ellipsis]
        if not inner or _bare(inner[0]) not in PLURALS:
            return "a list"
        return " ".join(["a list of", PLURALS[_bare(inner[0])], *_bounds(get_args(inner[0])[1:])])
    return getattr(hint, "__name__", str(hint))


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _bounds(metadata: Sequence[Any]) -> list[str]:
    """Return "of at least 0" and its like for what pydantic's `Field` says of a number."""
    parts = [part for field in metadata if isinstance(field, FieldInfo) for part in field.metadata]
    words = []
    for part in parts:
        match part:
            case annotated_types.Ge(ge=bound):
                words.append(f"of at least {bound}")
            case annotated_types.Gt(gt=bound):
                words.append(f"above {bound}")
            case annotated_types.Le(le=bound):
                words.append(f"and at most {bound}" if words else f"of at most {bound}")
            case annotated_types.Lt(lt=bound):
                words.append(f"and below {bound}" if words else f"below {bound}")
    return words
