"""Episodes whose actions come from a hand: somebody at a page, an expert that is asked, a model beside the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.loop import EpisodeInFlight, RolloutLoop
from rllm_gym.types import (
    AGENT,
    DEFAULT_MODULE,
    Completion,
    CompletionRequest,
    Episode,
    Logps,
    SamplingParams,
    TaskGroup,
    TokenIds,
)

NO_LIMIT = 2**31 - 1  # tokens of a context: a hand has none


class HandEngine:
    """An engine that gives each request back, and waits for `answer`. It takes one request at a time."""

    policy_version = 0
    max_context_tokens = NO_LIMIT

    def __init__(self) -> None:
        self.request: CompletionRequest | None = None  # what waits for an answer
        self._completions: list[Completion] = []

    def submit(self, request: CompletionRequest) -> None:
        self.request = request

    def answer(self, token_ids: TokenIds, logp: Logps) -> None:
        """Complete the request that waits."""
        assert self.request is not None
        self._completions.append(Completion(self.request.request_id, token_ids, logp))
        self.request = None

    def step(self) -> list[Completion]:
        done, self._completions = self._completions, []
        return done

    def abort(self, request_id: str) -> None:
        self.request = None

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        pass  # it has none

    def reset_prefix_cache(self) -> None:
        pass

    def close(self) -> None:
        pass


class PlayByHand:
    """Plays one episode at a time, each turn when its action is given. The episodes are those of the rollout loop.

    Args:
        make_env: makes the token-level environment, in a thread of its own, in which all its calls are made.
        horizon: in turns; None is no limit.
    """

    def __init__(self, make_env: Callable[[], Any], *, horizon: int | None) -> None:
        self._make, self._horizon = make_env, horizon
        self._engine = HandEngine()
        self._loop = RolloutLoop(
            self._make_env,
            {DEFAULT_MODULE: self._engine},
            module_of=lambda agent_id, episode: DEFAULT_MODULE,
            num_envs=1,
            params=SamplingParams(max_new_tokens=1),  # how long an action is, the hand decides
            max_model_len=NO_LIMIT,
            max_retries=0,
        )
        self._fault: ConfigError | None = None
        self._flight: EpisodeInFlight | None = None
        self._failed: Episode | None = None

    @property
    def request(self) -> CompletionRequest | None:
        """The prompt that waits for an action; None before the first episode and after the end of one."""
        return self._engine.request

    @property
    def episode(self) -> Episode:
        """The present episode, in flight or ended."""
        if self._failed is not None:
            return self._failed
        assert self._flight is not None
        return self._flight.episode

    @property
    def observation_ids(self) -> TokenIds:
        """The messages since the last action, without those that a rewritten history repeats."""
        if self._flight is None or self._failed is not None:
            return np.zeros(0, np.int64)
        if self.request is None:
            return self.episode.streams[AGENT].final_observation_ids
        agent = self._flight.agents[AGENT]
        assert agent.observation is not None
        return agent.observation[agent.num_repeated :]

    def begin(self, group: TaskGroup) -> Episode:
        """Begin the one episode of a group; return it, as far as it is.

        Raises:
            ConfigError: the environment cannot be made so.
        """
        if self.request is not None:
            raise ConfigError("play_by_hand: the present episode has not ended. Make another PlayByHand.")
        self._flight = self._failed = None
        self._loop.submit([group], max_episode_steps=self._horizon)
        return self._play()

    def act(self, token_ids: TokenIds, logp: Logps) -> Episode:
        """Take a turn; return the episode, as far as it is."""
        self._engine.answer(token_ids, logp)
        return self._play()

    def call(self, function: Callable[[Any], Any]) -> Any:
        """Call a function with the environment, in its own thread.

        Raises:
            EnvError: the function raised.
        """
        assert self._flight is not None
        return self._loop.call(self._flight, function)

    def close(self) -> None:
        self._loop.close()

    def _make_env(self, env_index: int) -> Any:
        try:
            return self._make()
        except ConfigError as error:
            self._fault = error
            raise

    def _play(self) -> Episode:
        for group in self._loop.finished_groups(pauses=self._is_asked):
            self._failed = next(iter(group.failed), None)
        if self._fault is not None:
            raise self._fault
        return self.episode

    def _is_asked(self) -> bool:
        for flight, *_ in self._loop.in_flight():
            self._flight = flight
        return self.request is not None
