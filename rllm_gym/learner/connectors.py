"""Learner connector: whole RLlib episodes to padded token batches, one per module."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

ADVANTAGE = "advantage"


def streams(episode: SingleAgentEpisode | MultiAgentEpisode) -> list[SingleAgentEpisode]:
    """Return the token streams of an episode: one per agent."""
    return list(episode.agent_episodes.values()) if isinstance(episode, MultiAgentEpisode) else [episode]


def num_tokens(stream: SingleAgentEpisode) -> int:
    """Tokens that take part in training: up to and including the last sampled one."""
    actions = stream.get_actions()
    return sum(map(len, actions)) + sum(map(len, stream.get_observations()[: len(actions)]))


@dataclasses.dataclass
class EpisodeData(TrainingData):
    """Training data dealt to learners in whole episodes; RLlib's own sharding cuts them and loses `custom_data`."""

    def shard(
        self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any
    ) -> list[tuple[TrainingData, dict]]:
        sizes = [sum(map(num_tokens, streams(episode))) for episode in self.episodes]
        order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        return [
            (TrainingData(episodes=[self.episodes[i] for i in order[k::num_shards]]), {"num_total_minibatches": 0})
            for k in range(num_shards)
        ]


@dataclasses.dataclass
class Row:
    """One trainable sequence. Arrays are as long as `tokens`; `mask` is True at the tokens that the policy sampled."""

    tokens: np.ndarray
    mask: np.ndarray
    old_logp: np.ndarray
    advantage: float


def row_of(stream: SingleAgentEpisode) -> Row:
    """Return observation 0, action 0, observation 1, ..., last action; the final observation teaches nothing."""
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    actions = stream.get_actions()
    logps = stream.get_extra_model_outputs("action_logp")
    for observation, action, logp in zip(stream.get_observations(), actions, logps, strict=False):
        parts["tokens"] += [observation, action]
        parts["mask"] += [np.zeros(len(observation), bool), np.ones(len(action), bool)]
        parts["old_logp"] += [np.zeros(len(observation), np.float32), logp]
    return Row(
        **{name: np.concatenate(arrays) for name, arrays in parts.items()}, advantage=stream.custom_data[ADVANTAGE]
    )


FILLER = Row(np.zeros(2, np.int64), np.zeros(2, bool), np.zeros(2, np.float32), 0.0)


def collate(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Pad rows on the right, shortest first, so that micro-batches of neighbours waste little.

    Returns:
        `tokens` int64, `mask` bool, `old_logp` float32, each [B, T]; `advantage` float32 [B]; `length` int64 [B].
        Without rows: one row whose mask is empty, so that a learner without data takes part in collective operations.
    """
    rows = sorted(rows, key=lambda row: len(row.tokens)) or [FILLER]
    lengths = torch.tensor([len(row.tokens) for row in rows])
    out: dict[str, torch.Tensor] = {
        "advantage": torch.tensor([row.advantage for row in rows], dtype=torch.float32),
        "length": lengths,
    }
    for name, dtype in (("tokens", torch.long), ("mask", torch.bool), ("old_logp", torch.float32)):
        out[name] = torch.zeros(len(rows), int(lengths.max()), dtype=dtype)
        for k, row in enumerate(rows):
            out[name][k, : lengths[k]] = torch.as_tensor(getattr(row, name), dtype=dtype)
    return out


class EpisodesToBatch(ConnectorV2):
    """Collates the streams that carry an advantage; streams without one (a group without spread) are left out."""

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: list[SingleAgentEpisode | MultiAgentEpisode],
        explore: bool | None = None,
        shared_data: dict | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, torch.Tensor]]:
        rows: dict[str, list[Row]] = {module_id: [] for module_id, _ in rl_module.items()}
        for stream in trainable_streams(episodes):
            rows[stream.module_id or DEFAULT_MODULE_ID].append(row_of(stream))
        return {module_id: collate(of_module) for module_id, of_module in rows.items()}


def trainable_streams(episodes: list[SingleAgentEpisode | MultiAgentEpisode]) -> Iterator[SingleAgentEpisode]:
    """Yield the streams that have an advantage."""
    for episode in episodes:
        for stream in streams(episode):
            if stream.custom_data.get(ADVANTAGE) is not None:
                yield stream
