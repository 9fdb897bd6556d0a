"""What a sampler answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rllm_gym.types import Episode


@dataclass
class SampleResult:
    """What one runner sends to the driver: the episodes that were played, those that failed, and its metrics.

    `error` is the traceback of what went wrong in the runner itself: RLlib would lose an exception (it ends the actor,
    and the driver gets nothing). `groups_left` are the keys of those that it plays on.
    """

    worker_index: int
    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    metrics: Any = None
    error: str | None = None
    groups_left: frozenset[tuple[int, ...]] = frozenset()
