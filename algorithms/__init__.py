"""The methods, as RLlib algorithms: `from rllm_gym.algorithms import GRPOConfig`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rllm_gym.algorithms.registry import ALGORITHMS


def __getattr__(name: str) -> Any:
    """Import a method's class or its configuration when it is asked for: both load Ray and torch."""
    target = ALGORITHMS.get(name.removesuffix("Config"))
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(target.partition(":")[0]), name)


def __dir__() -> list[str]:
    return [*ALGORITHMS, *(f"{name}Config" for name in ALGORITHMS)]
