"""Who plays against the learner: what `opponents` says, and the pool of its own earlier selves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError, nearest

KINDS = ("self", "random", "expert", "frozen", "pool")
SAMPLING = ("uniform", "latest", "hardest")
NUM_RECENT = 5  # train steps whose returns against a snapshot are remembered


@dataclass(frozen=True)
class Opponent:
    """Who plays an agent.

    Args:
        kind: one of `KINDS`.
        source: of a frozen one: a checkpoint, a run, or a Hugging Face model.
        every, size, sampling: of a pool: train steps between two snapshots, most snapshots, and which one is played.
    """

    kind: str
    source: str = ""
    every: int = 10
    size: int = 5
    sampling: str = "uniform"

    @property
    def is_model(self) -> bool:
        """Whether it needs an engine of its own."""
        return self.kind in ("frozen", "pool")

    @property
    def hugging_face_model(self) -> str | None:
        """The name or folder of a frozen Hugging Face model; None of what has its weights from a run."""
        folder = Path(self.source)  # made absolute where it is a folder, which need not be there on every machine
        is_checkpoint = (folder.is_absolute() or folder.is_dir()) and not (folder / "config.json").is_file()
        return self.source if self.kind == "frozen" and not is_checkpoint else None

    def module_of(self, agent_id: str) -> str:
        """Return the module that stands for it in trajectories."""
        return f"opponent_{agent_id}" if self.is_model else self.kind


def parse_opponents(written: Mapping[str, Any] | None) -> dict[str, Opponent]:
    """Return who plays each agent.

    Raises:
        ConfigError: something else than an agent's opponent is written.
    """
    if not isinstance(written or {}, Mapping):
        raise ConfigError(f"opponents: must be a mapping of agents, as {{player_1: random}}; got {written!r}.")
    return {str(agent_id): _parse_opponent(str(agent_id), spec) for agent_id, spec in (written or {}).items()}


def _parse_opponent(agent_id: str, spec: Any) -> Opponent:
    who = f"opponents: {agent_id}:"
    kind, options = next(iter(spec.items())) if isinstance(spec, Mapping) and len(spec) == 1 else (spec, None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(
            f"{who} must be self, random, expert, {{frozen: CHECKPOINT}} or {{pool: {{every: 10, size: 5, sampling: "
            f"uniform}}}}; got {spec!r}. Did you mean {nearest(str(kind), KINDS)!r}?"
        )
    match kind, options:
        case "frozen", str():
            folder = Path(options)
            return Opponent("frozen", source=str(folder.absolute()) if folder.is_dir() else options)
        case "pool", Mapping():
            return _parse_pool(who, options)
        case (("self" | "random" | "expert"), None):
            return Opponent(kind)
    example = {"frozen": "{frozen: CHECKPOINT}", "pool": "{pool: {every: 10, size: 5, sampling: uniform}}"}
    raise ConfigError(f"{who} must be written as {example.get(kind, kind)}; got {spec!r}.")


def _parse_pool(who: str, options: Mapping[str, Any]) -> Opponent:
    for name in options:
        if name not in ("every", "size", "sampling"):
            raise ConfigError(f"{who} pool: unknown key {name!r}; known are every, size and sampling.")
    opponent = Opponent("pool", **options)
    for name, value in (("every", opponent.every), ("size", opponent.size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{who} pool: {name} must be a whole number of at least 1; got {value!r}.")
    if opponent.sampling not in SAMPLING:
        raise ConfigError(f"{who} pool: sampling must be one of {', '.join(SAMPLING)}; got {opponent.sampling!r}.")
    return opponent


@dataclass
class Snapshot:
    """A policy as it was.

    Args:
        step: how many train steps it had behind it.
        policy_version: its version then; it stands in the trajectories of what it plays.
        weights: what a sampler's engine loads, of LoRA the adapter's.
        returns: the learner's mean returns in its last train steps against it.
    """

    step: int
    policy_version: int
    weights: Mapping[str, Any]
    returns: list[float] = field(default_factory=list)

    def observe(self, value: float) -> None:
        self.returns = [*self.returns, value][-NUM_RECENT:]


@dataclass
class Pool:
    """Snapshots, the oldest first, and which of them plays now."""

    snapshots: list[Snapshot] = field(default_factory=list)
    playing: int = 0

    @property
    def opponent(self) -> Snapshot:
        return self.snapshots[self.playing]

    def copy(self) -> Pool:
        """Return the pool as it is, which later train steps do not change; the weights are the same."""
        return Pool([replace(snapshot) for snapshot in self.snapshots], self.playing)

    def add(self, snapshot: Snapshot, *, size: int) -> None:
        """Add the newest snapshot; of more than `size` the oldest goes."""
        self.snapshots = [*self.snapshots, snapshot][-size:]
        self.playing = len(self.snapshots) - 1

    def draw(self, sampling: str, rng: np.random.Generator) -> None:
        """Choose who plays next: any (`uniform`), the newest (`latest`), or who the learner does worst against.

        With `hardest` a snapshot that has not played yet comes first, the newest of them.
        """
        numbers = range(len(self.snapshots))
        if sampling == "uniform":
            self.playing = int(rng.integers(len(numbers)))
        elif sampling == "latest":
            self.playing = numbers[-1]
        else:
            means = [float(np.mean(s.returns)) if s.returns else -np.inf for s in self.snapshots]
            self.playing = min(reversed(numbers), key=means.__getitem__)
