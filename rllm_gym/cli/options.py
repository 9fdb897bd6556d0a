"""The options that an algorithm's configuration takes, and the types of their values, read from its builder methods."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, PydanticUndefinedAnnotation, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided

from rllm_gym.errors import ConfigError, nearest
from rllm_gym.importing import import_object

# RLlib's options of its old stack, in which they mean something; here they would be set and ignored in silence.
POINTERS = {
    "model": "the language model is `base_model` (tiny, a folder or a Hugging Face name)",
    "train_batch_size": "a train step samples `groups_per_step` x `group_size` episodes",
    "train_batch_size_per_learner": "a train step samples `groups_per_step` x `group_size` episodes",
    "minibatch_size": "use `num_minibatches`",
    "rollout_fragment_length": "episodes are always complete; use `groups_per_step` and `group_size`",
    "num_gpus": "use `num_gpus_per_learner` and `num_gpus_per_env_runner`",
    "horizon": "the horizon is `max_episode_steps` or `scaling_inter`",
    "framework": "there is only torch",
    "framework_str": "there is only torch",
}


def option_hints(config: AlgorithmConfig) -> dict[str, Any]:
    """Return {option: type hint} of everything that a YAML `config` may set.

    An option is a parameter of a builder method (`.training(...)`, `.env_runners(...)`, ...) of the configuration's
    class or of one of its bases, whose name is also an attribute. Where a hint cannot be evaluated, it is `Any`.
    """
    hints: dict[str, Any] = {}
    for cls in type(config).__mro__:
        for function in vars(cls).values():
            if inspect.isfunction(function) and not function.__name__.startswith("_"):
                for parameter in inspect.signature(function).parameters.values():
                    # A default other than this marks what RLlib has deprecated.
                    if parameter.default is NotProvided and hasattr(config, parameter.name):
                        hints.setdefault(parameter.name, evaluate(parameter.annotation, function.__globals__))
    return {name: hint for name, hint in hints.items() if name not in POINTERS and not name.startswith("_")}


class _Names(dict):
    """Names to evaluate annotations in; one that is imported for type checkers only stands for anything."""

    def __missing__(self, name: str) -> Any:
        return Any


def evaluate(annotation: Any, names: Mapping[str, Any]) -> Any:
    """Return the type that an annotation, which may be text, stands for among `names`."""
    if annotation is inspect.Parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return typing.get_type_hints(holder, globalns=dict(names), localns=_Names({**vars(builtins), **names}))["value"]
    except (NameError, TypeError, AttributeError):
        return Any


def unknown_option(name: str, hints: Mapping[str, Any]) -> str | None:
    """Return why an option is refused, or None if it is known."""
    if name in POINTERS:
        return f"config.{name} is not used here; {POINTERS[name]}."
    if name in hints:
        return None
    return f"config: unknown key {name!r}; did you mean {nearest(name, hints)!r}?"


def type_fault(name: str, value: Any, hint: Any) -> str | None:
    """Return what is wrong with a value's type, or None; a whole number is taken for a number, true is no number."""
    if isinstance(value, str) and takes_object(hint):
        try:
            import_object(f"config.{name}", value)
        except ConfigError as error:
            return str(error)
        return None
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
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
    return f"config.{name} must be {describe(hint)}; got {value!r}."


def takes_object(hint: Any) -> bool:
    """Return whether an option's value is a class or function, which YAML names as "module:name"."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(takes_object(part) for part in get_args(hint)) and str not in get_args(hint)
    return hint in (type, Callable, typing.Callable) or get_origin(hint) in (type, Callable)


PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def describe(hint: Any) -> str:
    """Return a type hint in words."""
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        type(None): "null",
        Any: "anything",
    }
    if hint in words:
        return words[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Callable:
        return "a class or function"
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(part) for part in arguments))
    bare = origin or hint
    if inspect.isclass(bare) and issubclass(bare, Mapping):
        return "a mapping"
    if inspect.isclass(bare) and issubclass(bare, Collection | Sequence):
        inner = [part for part in arguments if part is not Ellipsis]
        return f"a list of {PLURALS[inner[0]]}" if inner and inner[0] in PLURALS else "a list"
    return getattr(hint, "__name__", str(hint))
