"""What the rollout loop remembers of the episodes it is playing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rllm_gym.rollout.env_pool import EnvSlot
from rllm_gym.types import Episode, SamplingParams, Stream, TaskGroup, TokenIds


class Clock:
    """Seconds during which the loop was driven: a pause between two calls must not time episodes out."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._since_s: float | None = None

    def start(self) -> None:
        self._since_s = time.perf_counter()

    def stop(self) -> None:
        self._elapsed_s, self._since_s = self.now(), None

    def now(self) -> float:
        return self._elapsed_s + (0.0 if self._since_s is None else time.perf_counter() - self._since_s)


@dataclass
class Progress:
    """The episodes of one group that have ended."""

    group: TaskGroup
    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)


@dataclass(eq=False)
class Play:
    """One attempt at an episode, while it is played.

    `contexts` are the tokens each agent has been asked with and has answered, `observations` those it has not answered
    yet, `actions` what has been sampled for the coming environment step.
    """

    progress: Progress
    episode: Episode
    slot: EnvSlot
    horizon: int | None
    params: dict[str, SamplingParams]
    begun_s: float
    asked_s: float = 0.0
    to_act: tuple[str, ...] = ()
    contexts: dict[str, list[int]] = field(default_factory=dict)
    observations: dict[str, TokenIds] = field(default_factory=dict)
    actions: dict[str, TokenIds] = field(default_factory=dict)
    early_rewards: dict[str, float] = field(default_factory=dict)

    def add_reward(self, agent_id: str, reward: float) -> None:
        """Add a reward to the agent's last turn; one that comes before its first turn waits for that."""
        stream = self.episode.streams.get(agent_id)
        if stream is not None and stream.turns:
            stream.turns[-1].reward += reward
        else:
            self.early_rewards[agent_id] = self.early_rewards.get(agent_id, 0.0) + reward

    def add_time(self, name: str, seconds: float) -> None:
        self.episode.timings[name] = self.episode.timings.get(name, 0.0) + seconds


@dataclass(frozen=True)
class Request:
    """Whose completion an engine is sampling, and under which policy version it was submitted."""

    play: Play
    stream: Stream
    policy_version: int
