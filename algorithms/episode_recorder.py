"""Episodes on their way to the trajectory store, with the advantages they were trained with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.data import TrajectoryWriter, records_of
from rllm_gym.learner.connectors import ADVANTAGE, streams
from rllm_gym.rollout.env_runner import RLlibEpisode
from rllm_gym.rollout.environments import EnvironmentSpec, Horizon, horizon_of
from rllm_gym.types import Episode


class EpisodeRecorder:
    """Appends episodes to the store in `folder`; nothing is made there before the first one."""

    def __init__(self, folder: Path, environments: Sequence[EnvironmentSpec]) -> None:
        self._folder = folder
        self._environments = environments
        self._writer: TrajectoryWriter | None = None

    def append(
        self,
        episodes: Sequence[Episode],
        rllib_episodes: Sequence[RLlibEpisode],
        *,
        train_step: int,
        max_episode_steps: Horizon,
    ) -> None:
        """Append episodes; `rllib_episodes` are those of them that carry advantages."""
        if self._writer is None:
            self._writer = TrajectoryWriter(self._folder)
        advantages = {
            episode.id_: {stream.agent_id or "": _mean_advantage(stream) for stream in streams(episode)}
            for episode in rllib_episodes
        }
        self._writer.append(
            record
            for episode in episodes
            for environment in [self._environments[episode.group.env_index]]
            for record in records_of(
                episode,
                env_version=_version_of(environment.env),
                train_step=train_step,
                max_episode_steps=horizon_of(max_episode_steps, environment.name),
                advantages=_by_agent(episode, advantages.get(episode.episode_id)),
            )
        )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _version_of(env: Any) -> str:
    return env.rsplit("-", 1)[-1] if isinstance(env, str) and "-v" in env else ""


def _mean_advantage(stream: SingleAgentEpisode) -> float | None:
    advantage = stream.custom_data.get(ADVANTAGE)
    return None if advantage is None else float(np.mean(advantage))


def _by_agent(episode: Episode, advantages: dict[str, float | None] | None) -> dict[str, float]:
    """Return {agent id: advantage}; RLlib names no agent in an episode that has only one."""
    if not advantages:
        return {}
    if len(episode.streams) == 1 and "" in advantages:
        advantages = dict.fromkeys(episode.streams, advantages[""])
    return {agent_id: advantage for agent_id, advantage in advantages.items() if advantage is not None}
