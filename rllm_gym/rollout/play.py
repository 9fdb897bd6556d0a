"""What the rollout loop remembers of the episodes it is playing."""

from __future__ import annotations

from dataclasses import dataclass, field

from rllm_gym.rollout.env_pool import EnvSlot
from rllm_gym.types import Episode, SamplingParams, Stream, TaskGroup, TokenIds


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
    yet, `actions` what has been sampled for the coming environment step. `asked_s` is when the environment or the
    engine was asked last.
    """

    progress: Progress
    episode: Episode
    slot: EnvSlot
    horizon: int | None
    params: dict[str, SamplingParams]
    begun_s: float
    asked_s: float
    to_act: tuple[str, ...] = ()
    contexts: dict[str, list[int]] = field(default_factory=dict)
    observations: dict[str, TokenIds] = field(default_factory=dict)
    actions: dict[str, TokenIds] = field(default_factory=dict)
    early_rewards: dict[str, float] = field(default_factory=dict)

    def add_time(self, name: str, seconds: float) -> None:
        """Add to one of the episode's timings."""
        self.episode.timings[name] = self.episode.timings.get(name, 0.0) + seconds


@dataclass(frozen=True)
class Request:
    """Whose completion an engine is sampling, and under which policy version it was submitted."""

    play: Play
    stream: Stream
    policy_version: int
