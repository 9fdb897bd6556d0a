"""The records that flow through the house: task group -> completion -> turn -> stream -> episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int64]  # shape [T]
Logps = npt.NDArray[np.float32]  # shape [T], natural logarithms
Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}

AGENT = "agent"  # the agent's name in an environment that has only one


@dataclass(frozen=True)
class TaskGroup:
    """One task to be played `size` times.

    Args:
        key: (run seed, train step, group index). Every random number of the group's episodes comes from
            `np.random.SeedSequence((*key, ...))`, so results do not depend on which runner plays it.
        item_id: what `reset(options={"item_id": ...})` gets; None lets `reset(seed)` draw a task.
        size: number of episodes.
        env_index: which of the run's environments plays it.
    """

    key: tuple[int, ...]
    item_id: str | int | None
    size: int
    env_index: int = 0


@dataclass(frozen=True)
class SamplingParams:
    """How completions are sampled. Temperature 0 is greedy; `max_new_tokens` bounds one turn."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt for an engine. Sampling stops after one of `stop_ids`, which is part of the completion."""

    request_id: str
    prompt_ids: list[int]
    stop_ids: tuple[int, ...]
    params: SamplingParams
    seed: int


@dataclass(frozen=True)
class Completion:
    """What an engine sampled: ids and their log-probabilities under the sampled distribution, equally long."""

    request_id: str
    token_ids: TokenIds
    logp: Logps
    num_cached_tokens: int = 0


class Engine(Protocol):
    """Samples completions for many requests at once. One engine serves one policy module."""

    policy_version: int
    max_context_tokens: int

    def submit(self, request: CompletionRequest) -> None:
        """Queue a request; returns at once."""

    def step(self) -> list[Completion]:
        """Advance every running request by at least one token; return those that finished, in a fixed order."""

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        """Replace the weights in place (Hugging Face parameter names to arrays) and drop cached prefixes."""

    def reset_prefix_cache(self) -> None:
        """Forget cached keys and values."""

    def close(self) -> None:
        """Free the engine; safe to call twice."""


@dataclass
class Turn:
    """One completion, and what the environment had added before it.

    `env_step` counts the environment's steps before this action, so that turns of several agents can be put in order.
    """

    observation_ids: TokenIds
    action_ids: TokenIds
    logp: Logps
    policy_version: int
    env_step: int
    reward: float = 0.0
    num_cached_tokens: int = 0


@dataclass
class Stream:
    """One agent's token stream in one episode: observation 0, action 0, observation 1, ..., final observation."""

    agent_id: str
    module_id: str
    turns: list[Turn] = field(default_factory=list)
    final_observation_ids: TokenIds = field(default_factory=lambda: np.zeros(0, np.int64))
    messages: list[Message] = field(default_factory=list)

    @property
    def total_reward(self) -> float:
        return float(sum(turn.reward for turn in self.turns))

    @property
    def num_tokens(self) -> int:
        """Tokens up to and including the last sampled one."""
        return sum(len(t.observation_ids) + len(t.action_ids) for t in self.turns)

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(t.action_ids) for t in self.turns)


@dataclass
class Episode:
    """One play of one task by one or several agents.

    `end_reason` is one of `terminated`, `horizon`, `context_limit` (no room for a whole turn), `truncated` (the
    environment said so), `error` (the environment failed after its retries; `error` holds the text, and nothing of it
    is trained). `info` is the last step's info of a single agent (`is_success`, `category`, ...), or {agent_id: info}
    of several. `timings` are seconds: `env_s`, `engine_s`, `total_s`.
    """

    episode_id: str
    group: TaskGroup
    member: int
    seed: int
    env_id: str = ""
    item_id: str | int | None = None
    streams: dict[str, Stream] = field(default_factory=dict)
    end_reason: str = ""
    error: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    num_env_steps: int = 0
    num_retries: int = 0

    @property
    def is_truncated(self) -> bool:
        return self.end_reason in ("horizon", "context_limit", "truncated")


@dataclass
class EpisodeGroup:
    """The episodes of one task, in member order; `failed` are those that ended in an error."""

    group: TaskGroup
    episodes: list[Episode]
    failed: list[Episode]


@dataclass(frozen=True)
class Sample:
    """One trainable sequence of an offline method.

    Args:
        token_ids: int64 [T].
        weights: float32 [T], how much each token counts in the loss; 0 is not trained.
    """

    token_ids: TokenIds
    weights: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.token_ids)
