"""Checks the options that vLLM, DeepSpeed and peft get as they are written, and at fault notice late or never.

No list of their keys is kept here. vLLM and peft have dataclasses with typed fields. DeepSpeed has pydantic models for
some sections and none for the whole: its `DeepSpeedConfig` reads a mapping, so that the keys that it looks for are
those that it knows, and building it with one of them says what is wrong inside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from rllm_gym.cli.train.source import KeyPath, one_line
from rllm_gym.cli.train.sweeps import combinations
from rllm_gym.errors import nearest
from rllm_gym.options.values import type_fault
from rllm_gym.rollout.engines import VLLM_FIXED_OPTIONS

Fault = tuple[KeyPath, str]  # the path below `config`, and what is wrong

# Set by the learner; and which option to use instead.
_DEEPSPEED_ELSEWHERE: dict[KeyPath, str] = {
    ("train_batch_size",): "use `groups_per_step`, `group_size` and `num_minibatches`",
    ("train_micro_batch_size_per_gpu",): "use `tokens_per_micro_batch`",
    ("gradient_accumulation_steps",): "use `tokens_per_micro_batch`",
    ("zero_optimization", "stage"): "use `zero_stage`",
}
# The least that DeepSpeed takes for a configuration.
_DEEPSPEED_LEAST: dict[Any, Any] = {"train_micro_batch_size_per_gpu": 1}


def library_faults(option: str, value: Any) -> Iterator[Fault]:
    """Yield the faults inside an option's mapping; every candidate of a sweep is looked at."""
    if option in _CHECKS and isinstance(value, dict):
        for options in combinations(value):
            yield from _CHECKS[option](option, options)


def _vllm_faults(option: str, options: Mapping[str, Any]) -> Iterator[Fault]:
    with quiet():  # vLLM prints at its import
        try:
            from rllm_gym.rollout.engines.vllm import EngineArgs
        except ImportError:  # LLMEnvRunner says what to install
            return
    fields = {field.name for field in dataclasses.fields(EngineArgs)} - VLLM_FIXED_OPTIONS
    hints = {name: _plain_hint(EngineArgs, name) if name in options else Any for name in fields}
    yield from _faults_by_hints(option, options, hints, {(name,): "the sampler sets it" for name in VLLM_FIXED_OPTIONS})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what a library prints."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


def _plain_hint(cls: type, name: str) -> Any:
    """Return the type of a dataclass's field where YAML can express it in full, or else `Any`."""
    holder = type(name, (), {"__annotations__": {name: cls.__annotations__[name]}, "__module__": cls.__module__})
    try:
        hint = typing.get_type_hints(holder)[name]
    except NameError:  # imported for type checkers only
        return Any
    return hint if _is_plain(hint) else Any


def _is_plain(hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin in (list, dict, set, tuple, typing.Union, types.UnionType):
        return all(map(_is_plain, arguments))
    return hint in (bool, int, float, str, types.NoneType)


def _lora_faults(option: str, options: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        from peft import LoraConfig
    except ImportError:  # LLMModule says what to install
        return
    yield from _faults_by_hints(option, options, typing.get_type_hints(LoraConfig))


class _Recorder(dict):
    """A mapping that remembers which keys it was asked for, and with which default."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.defaults: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        self.defaults[key] = default
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.defaults.setdefault(str(key), None)
        return super().__contains__(key)

    def keys(self) -> Any:
        return self  # `key in mapping.keys()` asks for a key as well


@functools.cache
def _deepspeed() -> Any:
    from rllm_gym.learner.libraries import import_deepspeed

    import_deepspeed()
    return importlib.import_module("deepspeed.runtime.config")


@functools.cache
def _deepspeed_hints() -> dict[str, Any]:
    """Return {key: type hint} of what DeepSpeed looks for; it ignores any other key in silence.

    A key whose default is a number or a truth value takes one. DeepSpeed judges others when it builds the section.
    """
    asked = _Recorder(_DEEPSPEED_LEAST)
    _deepspeed().DeepSpeedConfig(asked)
    return {key: type(default) if type(default) in (bool, float) else Any for key, default in asked.defaults.items()}


def _deepspeed_faults(option: str, options: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _faults_by_hints(option, options, _deepspeed_hints(), _DEEPSPEED_ELSEWHERE)
    for key, value in options.items():
        if key in _deepspeed_hints() and (key,) not in _DEEPSPEED_ELSEWHERE:
            yield from _section_faults((option, key), value)
    if isinstance(scheduler := options.get("scheduler"), dict):
        yield from _scheduler_faults((option, "scheduler"), scheduler)


def _faults_by_hints(
    option: str, options: Mapping[str, Any], hints: Mapping[str, Any], elsewhere: Mapping[KeyPath, str] = {}
) -> Iterator[Fault]:
    for key, value in options.items():
        if (key,) in elsewhere:
            yield (option, key), f"config.{option}.{key} is not used here; {elsewhere[(key,)]}."
        elif key not in hints:
            yield (option, key), f"config.{option}: unknown key {key!r}; did you mean {nearest(key, hints)!r}?"
        elif value is not None and (reason := type_fault(f"config.{option}.{key}", value, hints[key])):
            yield (option, key), reason


def _section_faults(path: KeyPath, value: Any) -> Iterator[Fault]:
    """Yield DeepSpeed's objections to one of its keys."""
    where = ".".join(map(str, path))
    for key in value if isinstance(value, dict) else ():
        if hint := _DEEPSPEED_ELSEWHERE.get((*path[1:], key)):
            yield (*path, key), f"config.{where}.{key} is not used here; {hint}."
    try:
        _deepspeed().DeepSpeedConfig({**_DEEPSPEED_LEAST, path[-1]: value})
    except ValidationError as error:
        models: dict[str, Any] = {model.__name__: model for model in _subclasses(_deepspeed().DeepSpeedConfigModel)}
        for fault in error.errors():
            # One model checks all monitors; each is a field of it.
            place = fault["loc"][1:] if fault["loc"][:1] == path[-1:] else fault["loc"]
            known = models[error.title].model_fields if place == fault["loc"] else ()
            if fault["type"] == "extra_forbidden":
                hint = f"; did you mean {nearest(place[-1], known)!r}?" if len(place) == 1 and known else "."
                around = ".".join(map(str, (where, *place[:-1])))
                yield (*path, *place), f"config.{around}: unknown key {place[-1]!r}{hint}"
            else:
                what = ".".join(map(str, (where, *place)))
                yield (*path, *place), f"config.{what}: {fault['msg']}; got {fault['input']!r}."
    except (
        AssertionError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        _deepspeed().DeepSpeedConfigError,
    ) as error:
        yield path, f"config.{where}: DeepSpeed refuses it ({one_line(error)}); got {value!r}."


def _subclasses(model: Any) -> Iterator[Any]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _scheduler_faults(path: KeyPath, scheduler: dict[str, Any]) -> Iterator[Fault]:
    schedules = importlib.import_module("deepspeed.runtime.lr_schedules")
    torch_schedules = importlib.import_module("torch.optim.lr_scheduler")
    where = ".".join(map(str, path))
    for key in scheduler.keys() - {"type", "params"}:
        yield (*path, key), f"config.{where}: unknown key {key!r}; did you mean {nearest(key, ('type', 'params'))!r}?"
    kind, params = scheduler.get("type"), scheduler.get("params") or {}
    make = getattr(schedules, str(kind), None) or getattr(torch_schedules, str(kind), None)
    if not inspect.isclass(make):
        known = schedules.VALID_LR_SCHEDULES
        yield (*path, "type"), f"config.{where}.type: unknown schedule {kind!r}; did you mean {nearest(kind, known)!r}?"
        return
    if not isinstance(params, dict):
        yield (*path, "params"), f"config.{where}.params must be a mapping; got {params!r}."
        return
    accepted = [name for name in inspect.signature(make).parameters if name != "optimizer"]
    for key in params:
        if key not in accepted:
            hint = f"config.{where}.params: unknown key {key!r}; did you mean {nearest(key, accepted)!r}?"
            yield (*path, "params", key), hint


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], Iterator[Fault]]] = {
    "engine_options": _vllm_faults,
    "lora": _lora_faults,
    "deepspeed": _deepspeed_faults,
    "critic_deepspeed": _deepspeed_faults,
}
