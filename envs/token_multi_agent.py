"""`TokenMultiAgentEnv`: a text environment of several agents, each with a token stream of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from rllm_gym.envs.token_level import MOST_TURNS, TokenLevel, TokenOptions, check_action, make_info
from rllm_gym.spaces import TokenSequence
from rllm_gym.tokens import Conversation
from rllm_gym.types import TokenIds


class TokenMultiAgentEnv(TokenLevel):
    """Wraps a text environment of several agents, so that actions and observations are token ids.

    The environment speaks RLlib's `MultiAgentEnv` dictionaries with strings for observations and actions
    (`TextMultiAgentEnv` does); this one speaks the same dictionaries with ids. It relies on those methods alone and
    does not need RLlib.

    Each agent has one conversation, with the rules of `TokenEnv`, also for what is taken out and cut off: its
    observations and actions, joined in order, are what the chat template renders for its `infos[agent]["messages"]`.
    The conversation opens with the agent's first observation, which may come after other agents have acted.

    The agents in the last observations that have not ended there act next, and only they: an agent gets one
    observation between two of its actions. An environment that has several things to tell an agent joins them into
    one text.

    Args:
        env: the environment. `env.system_prompts`, if there, maps agents to system prompts.
        options: see `TokenOptions`.
    """

    def __init__(self, env: Any, **options: Unpack[TokenOptions]):
        self._take_options(env, options)
        self.env = env
        self.possible_agents: list[str] = list(env.possible_agents)
        longest = self.max_tokens * (1 + 2 * MOST_TURNS) if self.chat.history == "as_template" else self.max_tokens
        space = TokenSequence(self.chat.vocab_size, longest)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = {agent: TokenSequence(space.vocab_size, self.max_tokens) for agent in self.possible_agents}
        self._conversations: dict[str, Conversation] = {}
        self._to_act: tuple[str, ...] = ()

    @property
    def agents(self) -> list[str]:
        """The agents of the running episode."""
        return self.env.agents

    @property
    def unwrapped(self) -> Any:
        """The text environment."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def spec(self) -> Any:
        return getattr(self.env, "spec", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, TokenIds], dict[str, Any]]:
        texts, infos = self.env.reset(seed=seed, options=options)
        prompts = getattr(self.env, "system_prompts", {})
        self._conversations = {agent: Conversation(self.chat, prompts.get(agent, "")) for agent in self.possible_agents}
        self._to_act = tuple(texts)
        return self._observe(texts, ended=()), self._with_messages(infos, texts)

    def step(
        self, action_dict: Mapping[str, Sequence[int] | TokenIds]
    ) -> tuple[dict[str, TokenIds], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        if set(action_dict) != set(self._to_act):
            raise ValueError(
                f"TokenMultiAgentEnv: the agents to act are those of the last observations, {sorted(self._to_act)}; "
                f"got actions of {sorted(action_dict)}. Give one for each of them."
            )
        for agent, action in action_dict.items():  # all of them before any is recorded
            check_action(action, self.action_spaces[agent], f"TokenMultiAgentEnv, agent {agent!r}")
        said = {agent: self._read_action(self._conversations[agent], action) for agent, action in action_dict.items()}
        texts, rewards, terminateds, truncateds, infos = self.env.step(said)
        is_over = terminateds.get("__all__", False)
        ended = [agent for agent in texts if is_over or terminateds.get(agent)]
        is_over = is_over or truncateds.get("__all__", False)
        self._to_act = tuple(a for a in texts if not (is_over or terminateds.get(a) or truncateds.get(a)))
        return self._observe(texts, ended), rewards, terminateds, truncateds, self._with_messages(infos, texts)

    def close(self) -> None:
        self.env.close()

    def _observe(self, texts: Mapping[str, str], ended: Iterable[str]) -> dict[str, TokenIds]:
        return {
            agent: self._hear(
                self._conversations[agent], text, who=f"TokenMultiAgentEnv, agent {agent!r}", terminated=agent in ended
            )
            for agent, text in texts.items()
        }

    def _with_messages(self, infos: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Any]:
        """Add the conversation to the info of everyone who heard something."""
        return {
            **infos,
            **{agent: {**infos.get(agent, {}), **make_info(self._conversations[agent])} for agent in texts},
        }
