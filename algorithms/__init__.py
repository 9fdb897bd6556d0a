"""The methods, as RLlib algorithms: `from rllm_gym.algorithms import GRPOConfig`, or by name: `tune.Tuner("GRPO")`.

RLlib has a PPO of its own, whose name stays with it in Tune: `tune.Tuner(PPO)` takes ours.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rllm_gym.importing import import_object, uncollected
from rllm_gym.options.methods import METHODS
from rllm_gym.ray_token import ask_for_token_by_default

ask_for_token_by_default()
with uncollected():
    from ray.tune.registry import TRAINABLE_CLASS, _global_registry

RLLIBS = {"PPO"}  # names that RLlib registers itself, over any other


class _Named:
    """A class by its path: Tune's registry pickles what it is given, and gets the class itself back."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return import_object, ("run:", self.path)


def _register_with_tune() -> None:
    """Let Tune know the methods by name."""
    for name in METHODS.keys() - RLLIBS:
        _global_registry.register(TRAINABLE_CLASS, name, _Named(METHODS[name].path))


_register_with_tune()


def __getattr__(name: str) -> Any:
    """Import a method's class or its configuration when it is asked for: both load torch and the engines."""
    method = METHODS.get(name.removesuffix("Config"))
    if method is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(method.path.partition(":")[0]), name)


def __dir__() -> list[str]:
    return [*METHODS, *(f"{name}Config" for name in METHODS)]
