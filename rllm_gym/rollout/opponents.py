"""Opponents that are no language models: the environment says what they may do, and an engine of theirs says it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError, nearest
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import MOVES, Completion, CompletionRequest

SCRIPTED = ("random", "expert")


class WithMoves:
    """A text environment of several agents that says what its scripted agents may do, in `info["rllm_gym/moves"]`.

    `random` may do all of `info["legal_actions"]`, `expert` what the environment's `expert_action(agent_id)` says.

    Args:
        env: the environment.
        players: agent to `random` or `expert`.

    Raises:
        ConfigError: an agent that the environment has not, or an expert where there is none.
    """

    def __init__(self, env: Any, players: Mapping[str, str]) -> None:
        self.env, self.players = env, dict(players)
        for agent_id, kind in self.players.items():
            if kind == "expert" and not hasattr(self.unwrapped, "expert_action"):
                raise ConfigError(
                    f"opponents: {agent_id}: expert needs an environment with expert_action(agent_id); "
                    f"{type(self.unwrapped).__name__} has none. Choose random or a frozen policy."
                )

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The environment itself."""
        return getattr(self.env, "unwrapped", self.env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, self._with_moves(observations, infos, {})

    def step(self, action_dict: Mapping[str, str]) -> tuple[Any, ...]:
        observations, rewards, terminateds, truncateds, infos = self.env.step(action_dict)
        ended = {a: terminateds.get(a) or truncateds.get(a) for a in ("__all__", *observations)}
        infos = infos if ended["__all__"] else self._with_moves(observations, infos, ended)
        return observations, rewards, terminateds, truncateds, infos

    def _with_moves(self, observations: Mapping[str, str], infos: Mapping[str, Any], ended: Mapping[str, Any]) -> Any:
        to_act = [agent for agent in observations if agent in self.players and not ended.get(agent)]
        return {**infos, **{a: {**infos.get(a, {}), MOVES: self._moves(a, infos.get(a, {}))} for a in to_act}}

    def _moves(self, agent_id: str, info: Mapping[str, Any]) -> tuple[str, ...]:
        if self.players[agent_id] == "expert":
            return (str(self.unwrapped.expert_action(agent_id)),)
        legal = info.get("legal_actions")
        if not isinstance(legal, list | tuple | np.ndarray) or not len(legal):
            raise ConfigError(
                f"opponents: {agent_id}: random chooses among info['legal_actions'], of which "
                f"{type(self.unwrapped).__name__} gives none. Choose expert or a frozen policy."
            )
        return tuple(map(str, legal))


def check_agents(opponents: Mapping[str, Any], env: Any) -> None:
    """Make sure that an environment has the agents that opponents are named for, and one for the learner.

    Raises:
        ConfigError: it has not.
    """
    agents, name = list(getattr(env, "possible_agents", ())), type(getattr(env, "unwrapped", env)).__name__
    for agent_id in opponents:
        if agent_id not in agents:
            hint = f"Did you mean {nearest(agent_id, agents)!r}?" if agents else "Leave opponents out."
            raise ConfigError(
                f"opponents: must name agents of the environment; {name} has {agents or 'only one'}, got "
                f"{agent_id!r}. {hint}"
            )
    if opponents and all(opponents[a].kind != "self" if a in opponents else False for a in agents):
        raise ConfigError(f"opponents: one agent of {name} must be left to the learner; got all of {agents}.")


class MovePlayer:
    """An engine that says one of the moves of a request, by the request's seed; its log-probabilities are 0."""

    policy_version = 0

    def __init__(self, chat: ChatTokenizer, *, max_context_tokens: int) -> None:
        self.chat, self.max_context_tokens = chat, max_context_tokens
        self._waiting: deque[CompletionRequest] = deque()

    def submit(self, request: CompletionRequest) -> None:
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        done, self._waiting = list(self._waiting), deque()
        return [self._say(request) for request in done]

    def _say(self, request: CompletionRequest) -> Completion:
        move = request.moves[int(np.random.default_rng(request.seed).integers(len(request.moves)))]
        ids = np.asarray(self.chat.encode_action(move) if isinstance(move, str) else move, np.int64)
        return Completion(request.request_id, ids, np.zeros(len(ids), np.float32))

    def abort(self, request_id: str) -> None:
        self._waiting = deque(request for request in self._waiting if request.request_id != request_id)

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        pass  # it has none

    def reset_prefix_cache(self) -> None:
        pass

    def close(self) -> None:
        self._waiting.clear()
