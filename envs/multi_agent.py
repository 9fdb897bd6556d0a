"""TextMultiAgentEnv: the base of environments in which several agents read and write text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray.rllib.env.multi_agent_env import MultiAgentEnv

from rllm_gym.envs.base import MAX_TEXT_CHARS
from rllm_gym.envs.text_space import UnicodeText
from rllm_gym.errors import ConfigError, nearest

Texts = dict[str, str]
Infos = dict[str, dict[str, Any]]


class TextMultiAgentEnv(MultiAgentEnv):
    """An RLlib multi-agent environment whose observations and actions are strings.

    A subclass writes `reset` and `step`; its `reset` calls `super().reset(seed=seed)`, and takes every random number of
    the episode from `self.np_random`.

    Who acts: the agents in the observations that `reset` and `step` return must act next, and only they. So an
    environment with turns gives one observation at a time, a simultaneous one gives everybody an observation. An
    observation tells an agent what has happened since its last one.

    Rewards may go to any agent at any step, also to one that waits; they count for that agent's last action.

    End: `terminateds["__all__"]` or `truncateds["__all__"]`. The observations of that step are for reading only; an
    agent that has nothing more to read gets none.

    Args:
        agents: the names of all agents that may appear.
        system_prompts: an instruction for each agent; one that is left out has none.

    Attributes:
        possible_agents: all agents, for the whole life of the environment.
        agents: those taking part in the current episode.
        system_prompts: the instruction of each agent, "" for none.
        observation_spaces, action_spaces: a text space for each agent.

    Raises:
        ConfigError: no agents, one named twice, or a prompt for an unknown one.
    """

    def __init__(self, agents: Sequence[str], *, system_prompts: Mapping[str, str] | None = None) -> None:
        self.possible_agents = list(agents)
        if not self.possible_agents or len(set(self.possible_agents)) < len(self.possible_agents):
            raise ConfigError(
                f"{type(self).__name__}: agents must be one or more different names; got {self.possible_agents!r}. "
                "Correct them."
            )
        prompts = dict(system_prompts or {})
        for name in prompts.keys() - set(self.possible_agents):
            raise ConfigError(
                f"{type(self).__name__}: a system prompt must be for one of its agents; got one for {name!r}. "
                f"Did you mean {nearest(name, self.possible_agents)!r}?"
            )
        self.agents = list(self.possible_agents)
        self.system_prompts = {agent: prompts.get(agent, "") for agent in self.possible_agents}
        self.observation_spaces = {agent: UnicodeText(MAX_TEXT_CHARS) for agent in self.possible_agents}
        self.action_spaces = {agent: UnicodeText(MAX_TEXT_CHARS) for agent in self.possible_agents}
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Texts, Infos]:
        """Begin an episode; here: seed `np_random` and let every agent take part.

        Args:
            seed: seeds everything random of the episode.
            options: {"item_id": ...} asks for a task, where an environment has numbered ones.

        Returns:
            The observations of the agents that act first, and their info dictionaries.
        """
        super().reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return {}, {}

    def step(self, action_dict: Texts) -> tuple[Texts, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Take the texts of the agents whose turn it was.

        Returns:
            RLlib's five dictionaries by agent: observations, rewards, terminateds and truncateds (both with "__all__"),
            infos (of agents with an observation; `is_success` and others as in `TextEnv`, where `is_invalid_action` is
            of the agent's own last action).
        """
        raise NotImplementedError
