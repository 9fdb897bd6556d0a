"""Appends the episodes that are played to a folder of trajectories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rllm_gym.data import EpisodeRecord, TrajectoryWriter, records_of
from rllm_gym.rollout.environments import TRAIN, EnvironmentSpec
from rllm_gym.types import Episode, Sample


class Recorder:
    """Stores episodes of a run's environments; the folder is made with the first ones.

    Args:
        environments: what a task group's `env_index` counts.
    """

    def __init__(self, folder: Path, environments: Sequence[EnvironmentSpec]) -> None:
        self._folder, self._names = folder, [environment.name for environment in environments]
        self._versions = [environment.version for environment in environments]
        self._splits = [str(environment.env_config.get("split") or TRAIN) for environment in environments]
        self._writer: TrajectoryWriter | None = None

    def append(
        self,
        episodes: Iterable[Episode],
        samples: Iterable[Sample] = (),
        *,
        train_step: int | None,
        horizons: Mapping[str, int | None],
        split: str | None = None,
    ) -> list[EpisodeRecord]:
        """Append episodes, with what `samples` hold of their tokens; returns their records.

        Args:
            horizons: by the environment's name.
            split: what was evaluated; None in training, whose episodes are of the environment's own split.
        """
        parts: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        for sample in samples:
            parts[sample.episode, sample.agent].append(sample)
        records = []
        for episode in episodes:
            index = episode.group.env_index
            records += records_of(
                episode,
                env_version=self._versions[index],
                train_step=train_step,
                max_episode_steps=horizons[self._names[index]],
                split=split or self._splits[index],
                is_evaluation=split is not None,
                samples={agent: parts[episode.episode_id, agent] for agent in episode.streams},
            )
        if self._writer is None:
            self._writer = TrajectoryWriter(self._folder)
        self._writer.append(records)
        return records

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
