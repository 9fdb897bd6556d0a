"""The `loggers` of an experiment, which get the metrics beside `result.json`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rllm_gym.cli.requirements import find_missing
from rllm_gym.errors import ConfigError, nearest

DEFAULT_LOGGERS = ("tensorboard", "csv")
# Loggers that a service keeps: Tune's callback, the package that it needs, and what names the run there.
SERVICES = {
    "wandb": ("ray.air.integrations.wandb:WandbLoggerCallback", "wandb", "project"),
    "mlflow": ("ray.air.integrations.mlflow:MLflowLoggerCallback", "mlflow", "experiment_name"),
}
LOGGERS = (*DEFAULT_LOGGERS, *SERVICES)


def logger_fault(loggers: Any) -> str | None:
    """Return the fault of `loggers` as far as no library is needed to find it; None where there is none."""
    if not isinstance(loggers, list):
        return f"loggers must be a list of {', '.join(LOGGERS)}; got {loggers!r}."
    for entry in loggers:
        name, options = parse_entry(entry)
        if name not in LOGGERS or not isinstance(options, dict):
            hint = f"Did you mean {nearest(name, LOGGERS)!r}?" if isinstance(name, str) else "Write a name."
            return (
                f"loggers: each is one of {', '.join(LOGGERS)}, or {{name: {{option: value}}}}; got {entry!r}. {hint}"
            )
        if options and name not in SERVICES:
            return f"loggers: {name} has no options; got {options!r}. Leave them out."
        if name in SERVICES and find_missing((SERVICES[name][1],)):
            return f"loggers: {name} needs a package; it is not installed. pip install 'rllm-gym[{name}]'."
    names = [parse_entry(entry)[0] for entry in loggers]
    if duplicates := [name for name in names if names.count(name) > 1]:
        return f"loggers: duplicate logger {duplicates[0]!r}; got {loggers!r}. Remove one."
    return None


def parse_entry(entry: Any) -> tuple[Any, Any]:
    """Return the name and the options of one of `loggers`."""
    if isinstance(entry, dict) and len(entry) == 1:
        [(name, options)] = entry.items()
        return name, options or {}
    return entry, {}


def logger_option_fault(loggers: Sequence[Any]) -> str | None:
    """Return the fault of an option that a service's callback of Tune does not take."""
    for name, options in map(parse_entry, loggers):
        if name not in SERVICES or not options:
            continue
        known = inspect.signature(_import_callback(name)).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        for option in options:
            if option not in known and not takes_all:
                hint = f"Did you mean {nearest(option, known)!r}?"
                return f"loggers: {name} takes {', '.join(known)}; got {option!r}. {hint}"
    return None


def make_services(loggers: Sequence[Any], run: str) -> list[Any]:
    """Return Tune's callbacks for the services among the loggers, with the run's name unless their options set one.

    Raises:
        ConfigError: an option that a service's callback does not take.
    """
    if reason := logger_option_fault(loggers):
        raise ConfigError(reason)
    return [
        _import_callback(name)(**{SERVICES[name][2]: run, **options})
        for name, options in map(parse_entry, loggers)
        if name in SERVICES
    ]


def _import_callback(name: str) -> Callable[..., Any]:
    module, _, class_name = SERVICES[name][0].partition(":")
    return getattr(importlib.import_module(module), class_name)
