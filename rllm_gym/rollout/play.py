"""What the rollout loop remembers of the episodes it is playing."""

from __future__ import annotations

from dataclasses import dataclass, field

from rllm_gym.rollout.env_pool import EnvSlot
from rllm_gym.types import Episode, Message, SamplingParams, Stream, TaskGroup, TokenIds


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
    yet, `prompts` both as text, `actions` what has been sampled for the coming environment step. Where an agent's
    history was rewritten, its context begins anew: `samples` counts them, and `num_repeated` are the tokens at the
    beginning of the observation that only repeat what was said before. `asked_s` is when the environment or the engine
    was asked last.
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
    prompts: dict[str, list[Message]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    num_repeated: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Whose completion an engine is sampling, and under which policy version it was submitted."""

    play: Play
    stream: Stream
    policy_version: int
