"""RolesEnv: an environment of one agent, in which others advise the one that acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from rllm_gym.envs.base import parse_action
from rllm_gym.envs.multi_agent import Infos, TextMultiAgentEnv, Texts
from rllm_gym.errors import ConfigError, nearest

ACTOR = "actor"
# What an adviser is told, behind the instruction of the one that acts.
ADVISERS = {
    "planner": "You do not act yourself. You read what the actor reads. Each turn, before the actor acts, write in one "
    "or two sentences what it should do now and why. It reads what you write.",
    "critic": "You do not act yourself. You read what the actor reads, and what it has done. Each turn, before the "
    "actor acts, write in one or two sentences what was wrong with its last action, if anything was, and what to do "
    "better. It reads what you write.",
}


class RolesEnv(TextMultiAgentEnv):
    """Lets several agents work on a task of one: advisers write a plan or a critique, then the actor acts.

    In every turn the advisers are asked one after the other, in the order of `roles`, and each reads what the
    environment said and what those before it have written. The actor then reads the same, and its text is the action.
    Everybody gets the environment's reward.

    Info keys: the environment's, of each agent that reads something, and `role`, which is its name.

    Args:
        env: an environment of one agent, of texts.
        roles: names of the agents, `planner` or `critic` before one `actor`, like ["planner", "actor"].

    Raises:
        ConfigError: other roles, or an environment that begins with turns of its own.
    """

    def __init__(self, env: gymnasium.Env[str, str], roles: Sequence[str]) -> None:
        names = [roles] if isinstance(roles, str) else list(roles)
        for name in names[:-1]:
            if name not in ADVISERS:
                raise ConfigError(
                    f"roles: those before the last must be of {', '.join(ADVISERS)}; got {name!r}. "
                    f"Did you mean {nearest(name, ADVISERS)!r}?"
                )
        if len(names) < 2 or names[-1] != ACTOR or len(set(names)) < len(names):
            raise ConfigError(
                f"roles: must be different advisers and then {ACTOR}; got {names!r}. Try [planner, actor]."
            )
        if env.has_wrapper_attr("preamble") and env.get_wrapper_attr("preamble"):
            raise ConfigError(
                "roles: are for the native protocol; got an environment that begins with turns of its own."
            )
        instruction = env.get_wrapper_attr("system_prompt") if env.has_wrapper_attr("system_prompt") else ""
        prompts = {name: "\n\n".join(filter(None, (instruction, ADVISERS[name]))) for name in names[:-1]}
        super().__init__(names, system_prompts={**prompts, ACTOR: instruction})
        self.env = env
        self.spec = env.spec
        self._turn = 0  # whose it is
        self._said = ""  # by the environment
        self._told = ""  # to advisers, who have not read what the actor did
        self._advice: list[str] = []

    @property
    def num_items(self) -> int | None:
        return getattr(self.env.unwrapped, "num_items", None)

    @property
    def item_ids(self) -> Any:
        return getattr(self.env.unwrapped, "item_ids", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Texts, Infos]:
        super().reset(seed=seed)
        self._said, self._info = self.env.reset(seed=seed, options=options)
        self._told = self._said
        self._turn, self._advice = 0, []
        return self._observe()

    def step(self, action_dict: Texts) -> tuple[Texts, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        agent = self.possible_agents[self._turn]
        if set(action_dict) != {agent}:
            raise ValueError(f"RolesEnv: it is the turn of {agent}; got actions of {sorted(action_dict)}.")
        text = action_dict[agent]
        reward, terminated, truncated = 0.0, False, False
        if agent == ACTOR:
            self._said, reward_now, terminated, truncated, self._info = self.env.step(text)
            reward = float(reward_now)
            self._told = f"The {ACTOR}: {parse_action(text)}\n{self._said}"
            self._turn, self._advice = 0, []
        else:
            self._advice.append(f"The {agent}: {text.strip()}")
            self._turn += 1
        rewards = dict.fromkeys(self.possible_agents, reward)
        keys = [*self.possible_agents, "__all__"]
        if terminated or truncated:
            observations = dict.fromkeys(self.possible_agents[:-1], self._told) | {ACTOR: self._said}
            infos = {name: self._info_of(name) for name in observations}
        else:
            observations, infos = self._observe()
        return observations, rewards, dict.fromkeys(keys, terminated), dict.fromkeys(keys, truncated), infos

    def expert_action(self, agent: str) -> str:
        """Return the action of the environment's expert; an adviser says it in words."""
        action = str(self.env.get_wrapper_attr("expert_action")())
        return action if agent == ACTOR else f"Do this now: {parse_action(action)}"

    def close(self) -> None:
        self.env.close()

    def _observe(self) -> tuple[Texts, Infos]:
        agent = self.possible_agents[self._turn]
        said = self._said if agent == ACTOR else self._told
        return {agent: "\n\n".join([said, *self._advice])}, {agent: self._info_of(agent)}

    def _info_of(self, agent: str) -> dict[str, Any]:
        # An adviser's text is no action of the environment's, and so never an invalid one.
        own = {} if agent == ACTOR else {"is_invalid_action": False}
        return {**self._info, **own, "role": agent}
