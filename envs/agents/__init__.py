"""Agents: how a policy writes its turns, plans, reflects and remembers, in any text environment."""

from __future__ import annotations

from rllm_gym.envs.agents.env import AgentEnv
from rllm_gym.envs.agents.functions import Function
from rllm_gym.envs.agents.rewards import RewardedTurn

__all__ = ["AgentEnv", "Function", "RewardedTurn"]
