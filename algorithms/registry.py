"""The methods by name or path, as in YAML and on the command line; a class is imported only when it is asked for."""

from __future__ import annotations

from typing import Any

from rllm_gym.errors import ConfigError, nearest
from rllm_gym.importing import import_object

ALGORITHMS = {
    "GRPO": "rllm_gym.algorithms.grpo:GRPO",
    "PPO": "rllm_gym.algorithms.ppo:PPO",
    "SFT": "rllm_gym.algorithms.sft:SFT",
    "AgentEvol": "rllm_gym.algorithms.agent_evol:AgentEvol",
    "DPO": "rllm_gym.algorithms.dpo:DPO",
    "RLOO": "rllm_gym.algorithms.rloo:RLOO",
    "ReinforcePP": "rllm_gym.algorithms.reinforce_pp:ReinforcePP",
    "ReMax": "rllm_gym.algorithms.remax:ReMax",
}


def get_algorithm_class(name: str) -> Any:
    """Return the `Algorithm` class of a method.

    Args:
        name: a name in `ALGORITHMS`, or "module:Class" for a method of one's own.

    Raises:
        ConfigError: no such method; names the nearest one.
    """
    if name in ALGORITHMS:
        return import_object("run:", ALGORITHMS[name])
    if ":" not in name:
        raise ConfigError(f"run: no algorithm has this name; got {name!r}. Did you mean {nearest(name, ALGORITHMS)!r}?")
    from rllm_gym.training.algorithm import LLMAlgorithm

    found = import_object("run:", name)
    if not (isinstance(found, type) and issubclass(found, LLMAlgorithm)):
        raise ConfigError(
            f"run: must name a class derived from {LLMAlgorithm.__module__}.LLMAlgorithm; got {name!r}, which is "
            f"{found!r:.100}. Name the algorithm, not its configuration."
        )
    return found
