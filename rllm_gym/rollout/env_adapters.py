"""Environments of one or several agents, as the rollout loop sees them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, SupportsFloat

import numpy as np

from rllm_gym.errors import EnvError
from rllm_gym.types import AGENT, MOVES, EndReason, Logps, TokenIds


@dataclass(frozen=True)
class EnvStep:
    """An environment's answer to a reset or a step.

    Args:
        observations: new token ids by agent.
        rewards: finite floats by agent, acting or waiting.
        to_act: the agents whose actions the next step needs, in the environment's order; empty at the end.
        infos: info dictionaries by agent.
        end_reason: None while the episode goes on, else `TERMINATED` or `TRUNCATED`.
    """

    observations: dict[str, TokenIds]
    rewards: dict[str, float]
    to_act: tuple[str, ...]
    infos: dict[str, dict[str, Any]]
    end_reason: EndReason | None = None


class EnvAdapter(Protocol):
    """A token-level environment of one or several agents."""

    env_id: str
    agents: tuple[str, ...]
    is_multi_agent: bool
    wants_end: bool  # to be told where an episode ends that it has not ended itself

    def stop_ids(self, agent_id: str) -> tuple[int, ...]: ...

    def turn_length(self, ids: TokenIds) -> int:
        """Return how many of the sampled tokens are the turn, see `TokenEnv.turn_length`."""

    def take_logps(self, logp: Logps) -> None:
        """Hear the log-probabilities of the next action's tokens, where somebody may ask for them."""

    def early_end(self) -> Callable[[Sequence[int]], bool] | None:
        """Return the test of a turn that is being sampled, see `CompletionRequest`; None where there is none."""

    def reset(self, seed: int, item_id: str | int | None, seating: int = 0) -> EnvStep: ...

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep: ...

    def cut_short(self) -> EnvStep:
        """Tell an environment that `wants_end` that nobody acts any more; return what it says to that."""

    def call(self, function: Callable[[Any], Any]) -> Any:
        """Call a function of the environment itself."""

    def abandon(self) -> None:
        """Hear, while a call is under way in another thread, that nobody waits for it any more; returns at once."""

    def close(self) -> None: ...


def adapt_env(env: Any) -> EnvAdapter:
    """Wrap a token-level `gymnasium.Env`, or a multi-agent one (recognised by its `possible_agents`).

    An adapter is returned as it is.
    """
    if hasattr(env, "wants_end"):
        return env
    return MultiAgentAdapter(env) if hasattr(env, "possible_agents") else SingleAgentAdapter(env)


class SingleAgentAdapter:
    """A token-level `gymnasium.Env` as an environment of the one agent `AGENT`."""

    agents: tuple[str, ...] = (AGENT,)
    is_multi_agent = False

    def __init__(self, env: Any):
        self._env = env
        self._stop_ids = tuple(env.get_wrapper_attr("stop_ids"))
        self.turn_length = env.get_wrapper_attr("turn_length") if env.has_wrapper_attr("turn_length") else len
        self.take_logps = env.get_wrapper_attr("take_logps") if env.has_wrapper_attr("take_logps") else ignore
        self.early_end = env.get_wrapper_attr("early_end") if env.has_wrapper_attr("early_end") else ignore
        self.abandon = env.get_wrapper_attr("abandon") if env.has_wrapper_attr("abandon") else ignore
        self.env_id = _env_id(env)
        self.wants_end = env.has_wrapper_attr("cut_short")

    def stop_ids(self, agent_id: str) -> tuple[int, ...]:
        return self._stop_ids

    def cut_short(self) -> EnvStep:
        reward, info = self._env.get_wrapper_attr("cut_short")()
        return EnvStep({}, {AGENT: _finite(reward, self.env_id)}, (), {AGENT: info})

    def reset(self, seed: int, item_id: str | int | None, seating: int = 0) -> EnvStep:
        ids, info = self._env.reset(seed=seed, options=_options(item_id))
        return EnvStep({AGENT: _ids(ids)}, {}, (AGENT,), {AGENT: _info(info, self.env_id)})

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep:
        ids, reward, terminated, truncated, info = self._env.step(actions[AGENT])
        end_reason = _end_reason(terminated, truncated)
        rewards = {AGENT: _finite(reward, self.env_id)}
        return EnvStep(
            {AGENT: _ids(ids)}, rewards, () if end_reason else (AGENT,), {AGENT: _info(info, self.env_id)}, end_reason
        )

    def call(self, function: Callable[[Any], Any]) -> Any:
        return function(self._env)

    def close(self) -> None:
        self._env.close()


class MultiAgentAdapter:
    """A token-level environment with RLlib `MultiAgentEnv`'s dictionaries; whoever is in the last observations acts."""

    is_multi_agent = True
    wants_end = False

    def __init__(self, env: Any):
        self._env = env
        self.turn_length = getattr(env, "turn_length", len)
        self.take_logps = self.abandon = ignore
        self.early_end = getattr(env, "early_end", ignore)
        self.agents = tuple(env.possible_agents)
        self.env_id = _env_id(env)

    def stop_ids(self, agent_id: str) -> tuple[int, ...]:
        return tuple(self._env.stop_ids)

    def cut_short(self) -> EnvStep:
        raise NotImplementedError("an environment of several agents is not told")

    def reset(self, seed: int, item_id: str | int | None, seating: int = 0) -> EnvStep:
        options = _options(item_id)
        if getattr(getattr(self._env, "unwrapped", self._env), "rotates_seats", False):
            options = {**(options or {}), "seating": seating}
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._env_step(observations, {}, {}, {}, infos)

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep:
        return self._env_step(*self._env.step(dict(actions)))

    def call(self, function: Callable[[Any], Any]) -> Any:
        return function(self._env)

    def close(self) -> None:
        self._env.close()

    def _env_step(self, observations, rewards, terminateds, truncateds, infos) -> EnvStep:
        end_reason = _end_reason(terminateds.get("__all__", False), truncateds.get("__all__", False))
        to_act = tuple(a for a in observations if not (end_reason or terminateds.get(a) or truncateds.get(a)))
        if not (end_reason or to_act):
            raise EnvError(f"{self.env_id}: an episode that goes on needs an agent to act; got observations for none.")
        return EnvStep(
            {agent: _ids(ids) for agent, ids in observations.items()},
            {agent: _finite(reward, self.env_id) for agent, reward in rewards.items()},
            to_act,
            {agent: _info(infos[agent], self.env_id) for agent in self.agents if agent in infos},
            end_reason,
        )


class WithExperts:
    """An environment that tells each agent to act, in `info["rllm_gym/moves"]`, what its own expert would say.

    Args:
        adapter: the environment, which has an `expert_action`.
        horizon: in environment steps, after which nobody acts.
    """

    def __init__(self, adapter: EnvAdapter, *, horizon: int) -> None:
        self._adapter, self._horizon, self._num_steps = adapter, horizon, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)  # one in another process knows its agents after the first call only

    def reset(self, seed: int, item_id: str | int | None, seating: int = 0) -> EnvStep:
        self._num_steps = 0
        return self._with_moves(self._adapter.reset(seed, item_id, seating))

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep:
        self._num_steps += 1
        return self._with_moves(self._adapter.step(actions))

    def _with_moves(self, step: EnvStep) -> EnvStep:
        if self._num_steps >= self._horizon:
            return step
        infos = {agent: {**step.infos.get(agent, {}), MOVES: (self._move(agent),)} for agent in step.to_act}
        return replace(step, infos={**step.infos, **infos})

    def _move(self, agent_id: str) -> str | TokenIds:
        said = self.expert_action(agent_id)
        return said if self.is_multi_agent else self.call(lambda env: env.get_wrapper_attr("encode_action")(said))

    def expert_action(self, agent_id: str) -> str:
        """Return the expert's action for an agent.

        Raises:
            NotImplementedError: the environment has none.
        """
        agent = (agent_id,) if self.is_multi_agent else ()
        return self.call(functools.partial(_ask_expert, agent=agent))


def _ask_expert(env: Any, agent: tuple[str, ...]) -> str:
    if not hasattr(env.unwrapped, "expert_action"):
        raise NotImplementedError
    expert = env.unwrapped.expert_action if agent else env.get_wrapper_attr("expert_action")
    return expert(*agent)


def ignore(*args: Any) -> None:
    """Do nothing, for an environment that need not know."""


def _end_reason(terminated: bool, truncated: bool) -> EndReason | None:
    return EndReason.TERMINATED if terminated else EndReason.TRUNCATED if truncated else None


def _env_id(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def _options(item_id: str | int | None) -> dict[str, Any] | None:
    return None if item_id is None else {"item_id": item_id}


def _ids(ids: Any) -> TokenIds:
    return np.asarray(ids, np.int64)


def _info(info: Any, env_id: str) -> dict[str, Any]:
    if not isinstance(info, dict):
        raise EnvError(f"{env_id}: an info must be a dictionary; got {type(info).__name__}.")
    return info


def _finite(reward: SupportsFloat, env_id: str) -> float:
    value = math.nan
    if not isinstance(reward, str | bytes):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            value = float(reward)
    if not math.isfinite(value):
        raise EnvError(f"{env_id}: a reward must be a finite number; got {reward!s:.100}.")
    return value
