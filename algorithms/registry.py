"""The methods by name, as in YAML and on the command line; a class is imported only when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from rllm_gym.errors import ConfigError, nearest

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

    Raises:
        ConfigError: no such method; names the nearest one.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"run: no algorithm has this name; got {name!r}. Did you mean {nearest(name, ALGORITHMS)!r}?")
    module, _, attribute = ALGORITHMS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
