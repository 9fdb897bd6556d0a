"""Hyper-parameter sweeps in plain YAML: `lr: {grid_search: [1e-5, 1e-4]}`, `lr: {loguniform: [1e-6, 1e-4]}`."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator
from typing import Any

from rllm_gym.cli.train.source import KeyPath
from rllm_gym.errors import ConfigError, nearest

LISTS = ("grid_search", "choice")
# name: (number of arguments, whether all are whole numbers); the first two are the bounds. Of whole numbers, the upper
# bound is never drawn.
RANGES = {
    "uniform": (2, False),
    "quniform": (3, False),
    "loguniform": (2, False),
    "qloguniform": (3, False),
    "randint": (2, True),
    "lograndint": (2, True),
}
MAX_COMBINATIONS = 64
SCHEDULERS = {"asha": "ASHAScheduler", "median_stopping_rule": "MedianStoppingRule"}


def is_sampler(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in (*LISTS, *RANGES)


def find_samplers(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, Any]]:
    """Yield (path, kind, arguments) of every sampler in a nested configuration."""
    if is_sampler(value):
        [(kind, arguments)] = value.items()
        yield path, kind, arguments
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from find_samplers(child, (*path, key))


def sampler_fault(kind: str, arguments: Any) -> str | None:
    """Return the fault of a sampler's arguments; None where there is none."""
    if kind in LISTS:
        if isinstance(arguments, list) and arguments:
            return None
        return f"{kind} takes a list of values; got {arguments!r}."
    count, whole = RANGES[kind]
    kinds = int if whole else (int, float)
    is_fine = isinstance(arguments, list) and len(arguments) == count
    if not is_fine or any(isinstance(a, bool) or not isinstance(a, kinds) for a in arguments):
        what = "whole numbers" if whole else "numbers"
        form = "[low, high, step]" if count == 3 else "[low, high]"
        return f"{kind} takes {count} {what}, {form}; got {arguments!r}."
    if not arguments[0] < arguments[1]:
        return f"{kind} needs low below high; got {arguments!r}."
    if "log" in kind and arguments[0] <= 0:
        return f"{kind} needs low above 0; got {arguments!r}."
    return None


def list_candidates(value: Any) -> list[Any]:
    """Return the values that an option is checked with: of a sampler's list all, of its range the ends, or its own."""
    if not is_sampler(value):
        return [value]
    [(kind, arguments)] = value.items()
    if kind in LISTS:
        return list(arguments)
    low, high = arguments[:2]
    return [low, high - 1] if RANGES[kind][1] else [low, high]


def combinations(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return configurations without samplers that cover every candidate: all combinations; of very many, each value."""
    found = [(path, list_candidates({kind: arguments})) for path, kind, arguments in find_samplers(config)]
    if math.prod(len(values) for _, values in found) <= MAX_COMBINATIONS:
        chosen = list(itertools.product(*(values for _, values in found)))
    else:
        longest = max(len(values) for _, values in found)
        chosen = [tuple(values[min(k, len(values) - 1)] for _, values in found) for k in range(longest)]
    return [_with_values(config, dict(zip((path for path, _ in found), values, strict=True))) for values in chosen]


def _with_values(value: Any, chosen: dict[KeyPath, Any], path: KeyPath = ()) -> Any:
    if path in chosen:
        return chosen[path]
    if isinstance(value, dict):
        return {key: _with_values(child, chosen, (*path, key)) for key, child in value.items()}
    return value


def num_trials(config: dict[str, Any], num_samples: int) -> int:
    """Return how many trials Tune makes: every grid point, `num_samples` times."""
    grids = [len(arguments) for _, kind, arguments in find_samplers(config) if kind == "grid_search"]
    return num_samples * math.prod(grids)


def to_tune(config: Any) -> Any:
    """Return the configuration with samplers as Tune's own objects."""
    from ray import tune

    chosen: dict[KeyPath, Any] = {}
    for path, kind, arguments in find_samplers(config):
        make = getattr(tune, kind)
        chosen[path] = make(arguments) if kind in LISTS else make(*arguments)
    return _with_values(config, chosen)


def make_scheduler(scheduler: dict[str, Any]) -> Any:
    """Return Tune's scheduler of `{type: asha, metric: ..., mode: max, ...}`; None without one.

    Raises:
        ConfigError: names the key that is wrong.
    """
    from ray.tune import schedulers

    if not scheduler:
        return None
    arguments = dict(scheduler)
    kind = arguments.pop("type", None)
    if kind not in SCHEDULERS:
        raise ConfigError(f"scheduler: type must be one of {', '.join(SCHEDULERS)}; got {kind!r}.")
    make = getattr(schedulers, SCHEDULERS[kind])
    known = [name for name in inspect.signature(make).parameters if name != "time_attr"]
    for name in arguments:
        if name not in known:
            raise ConfigError(f"scheduler: unknown key {name!r}; did you mean {nearest(str(name), known)!r}?")
    if not isinstance(arguments.get("metric"), str):
        raise ConfigError(
            f"scheduler: metric must name a result, such as env_runners/success_rate; got {arguments.get('metric')!r}."
        )
    if arguments.setdefault("mode", "max") not in ("min", "max"):
        raise ConfigError(f"scheduler: mode must be min or max; got {arguments['mode']!r}.")
    try:
        return make(**arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"scheduler: {kind}: {error}") from error
