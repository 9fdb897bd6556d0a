"""A method's class by its name or path, as in YAML and on the command line; it is imported when it is asked for."""

from __future__ import annotations

from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.importing import import_object
from rllm_gym.options.methods import find_method


def get_algorithm_class(name: str) -> Any:
    """Return the `Algorithm` class of a method.

    Args:
        name: a name in `METHODS`, or "module:Class" for a method of one's own.

    Raises:
        ConfigError: no such method; names the nearest one.
    """
    if ":" not in name:
        return import_object("run:", find_method(name).path)
    from rllm_gym.training.algorithm import LLMAlgorithm

    found = import_object("run:", name)
    if not (isinstance(found, type) and issubclass(found, LLMAlgorithm)):
        raise ConfigError(
            f"run: must name a class derived from {LLMAlgorithm.__module__}.LLMAlgorithm; got {name!r}, which is "
            f"{found!r:.100}. Name the algorithm, not its configuration."
        )
    return found
