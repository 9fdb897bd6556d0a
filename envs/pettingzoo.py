"""PettingZooEnv: an environment of PettingZoo's whose agents read and write text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Text

from rllm_gym.envs.multi_agent import Infos, TextMultiAgentEnv, Texts
from rllm_gym.errors import ConfigError, MachineError


class PettingZooEnv(TextMultiAgentEnv):
    """An AEC or a parallel environment of PettingZoo's, with text spaces, as RLlib's `MultiAgentEnv`.

    Of an AEC environment one agent acts at a time, of a parallel one all that are alive. Agents may come later and
    leave earlier; one that leaves gets a last observation. Characters that an action space does not have are left out
    of what a policy writes, and what is longer than it allows is cut off.

    Args:
        env: the environment. Its `possible_agents` are all that may ever take part.
        system_prompts: an instruction for each agent; one that is left out has none.

    Raises:
        ConfigError: no such environment, or a space of an agent that is no `gymnasium.spaces.Text`.
    """

    def __init__(self, env: Any, *, system_prompts: Mapping[str, str] | None = None) -> None:
        try:
            from pettingzoo import AECEnv, ParallelEnv
        except ImportError as e:
            raise MachineError('from_pettingzoo needs the pettingzoo package: pip install "rllm-gym[games]".') from e
        if not isinstance(env, AECEnv | ParallelEnv):
            raise ConfigError(f"from_pettingzoo: must be an AECEnv or a ParallelEnv; got {env!r}. Make one.")
        self._is_parallel = isinstance(env, ParallelEnv)
        possible = list(getattr(env, "possible_agents", ()))
        for agent in possible:
            for kind, space in (("observation", env.observation_space(agent)), ("action", env.action_space(agent))):
                if not isinstance(space, Text):
                    raise ConfigError(
                        f"from_pettingzoo: the {kind} space of {agent!r} must be a gymnasium.spaces.Text; got {space}. "
                        "Wrap the environment so that it speaks text."
                    )
        super().__init__(possible, system_prompts=system_prompts)
        self.env = env
        self.observation_spaces = {agent: env.observation_space(agent) for agent in possible}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Texts, Infos]:
        super().reset(seed=seed)
        if self._is_parallel:
            observations, infos = self.env.reset(seed=seed, options=options)
            self.agents = list(self.env.agents)
            return dict(observations), {agent: dict(infos.get(agent, {})) for agent in observations}
        self.env.reset(seed=seed, options=options)
        self._has_read: set[str] = set()
        self.agents = list(self.env.agents)
        return self._read([self.env.agent_selection])

    def step(self, action_dict: Texts) -> tuple[Texts, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        actions = {agent: _fitted(text, self.env.action_space(agent)) for agent, text in action_dict.items()}
        return self._step_all(actions) if self._is_parallel else self._step_one(actions)

    def close(self) -> None:
        self.env.close()

    def _step_all(self, actions: Texts) -> tuple[Texts, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
        self._take_part([*self.env.agents, *observations])
        return (
            dict(observations),
            {agent: float(reward) for agent, reward in rewards.items()},
            *self._ends(terminateds, truncateds, is_over=not self.env.agents),
            {agent: dict(infos.get(agent, {})) for agent in observations},
        )

    def _step_one(self, actions: Texts) -> tuple[Texts, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        if set(actions) != {self.env.agent_selection}:
            raise ValueError(
                f"PettingZooEnv: it is the turn of {self.env.agent_selection}; got actions of {sorted(actions)}."
            )
        self.env.step(actions[self.env.agent_selection])
        rewards = {agent: float(reward) for agent, reward in self.env.rewards.items()}
        terminateds, truncateds = dict(self.env.terminations), dict(self.env.truncations)
        ended = [agent for agent in terminateds if terminateds[agent] or truncateds[agent]]
        observations, infos = self._read([agent for agent in ended if agent in self._has_read])
        while self.env.agents and self.env.agent_selection in ended:  # PettingZoo takes a step of None from each
            self.env.step(None)
        if self.env.agents:
            next_observations, next_infos = self._read([self.env.agent_selection])
            observations, infos = {**observations, **next_observations}, {**infos, **next_infos}
        self._take_part([*self.env.agents, *observations])
        return observations, rewards, *self._ends(terminateds, truncateds, is_over=not self.env.agents), infos

    def _take_part(self, agents: list[str]) -> None:
        """Set who takes part: those who are alive, and in this step those who read their last observation."""
        self.agents = [agent for agent in self.possible_agents if agent in agents]

    def _read(self, agents: list[str]) -> tuple[Texts, Infos]:
        self._has_read.update(agents)
        return {a: self.env.observe(a) for a in agents}, {a: dict(self.env.infos.get(a, {})) for a in agents}

    def _ends(
        self, terminateds: Mapping[str, bool], truncateds: Mapping[str, bool], *, is_over: bool
    ) -> tuple[dict[str, bool], dict[str, bool]]:
        """Return both of RLlib's dictionaries; an episode that is over is terminated if anybody was."""
        is_terminated = any(terminateds.values())
        return (
            {**{agent: bool(flag) for agent, flag in terminateds.items()}, "__all__": is_over and is_terminated},
            {**{agent: bool(flag) for agent, flag in truncateds.items()}, "__all__": is_over and not is_terminated},
        )


def _fitted(text: str, space: Text) -> str:
    """Return the part of a text that is in a space."""
    cut = text[: space.max_length]
    return cut if cut in space else "".join(c for c in text if c in space.character_set)[: space.max_length]
