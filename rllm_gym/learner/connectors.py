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

# Keys of a stream's `custom_data`: a float, or one per turn, or None where the stream is not trained on ...
ADVANTAGE = "advantage"
# ... and which streams it is compared with.
GROUP = "stream_group"


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
    """One trainable sequence. Arrays are as long as `tokens`; `mask` is True at the tokens that the policy sampled.

    `reward` is a turn's reward, at the turn's last token (where `is_turn_end`); `advantage` is the driver's, the
    same at all tokens of a turn. Sequences of one `group` (one agent's, of one task) are compared with each other.
    """

    tokens: np.ndarray
    mask: np.ndarray
    old_logp: np.ndarray
    reward: np.ndarray
    advantage: np.ndarray
    is_turn_end: np.ndarray
    group: int = 0
    is_terminated: bool = True


PER_TOKEN = {
    "tokens": torch.long,
    "mask": torch.bool,
    "old_logp": torch.float32,
    "reward": torch.float32,
    "advantage": torch.float32,
    "is_turn_end": torch.bool,
}
PER_SEQUENCE = {"group": torch.long, "is_terminated": torch.bool}


def row_of(stream: SingleAgentEpisode, *, has_final_observation: bool = False) -> Row:
    """Return observation 0, action 0, observation 1, ..., last action.

    Args:
        has_final_observation: append the final observation where the episode was truncated: nothing of it is trained,
            but a critic bootstraps from it.
    """
    parts: dict[str, list[np.ndarray]] = defaultdict(list)

    def append(ids: np.ndarray, logp: np.ndarray | float, advantage: float, *, is_sampled: bool) -> None:
        parts["tokens"].append(ids)
        parts["mask"].append(np.full(len(ids), is_sampled))
        parts["old_logp"].append(np.broadcast_to(np.asarray(logp, np.float32), len(ids)))
        parts["reward"].append(np.zeros(len(ids), np.float32))
        parts["advantage"].append(np.full(len(ids), advantage, np.float32))
        parts["is_turn_end"].append(np.zeros(len(ids), bool))

    actions, observations = stream.get_actions(), stream.get_observations()
    logps, rewards = stream.get_extra_model_outputs("action_logp"), stream.get_rewards()
    advantages = np.broadcast_to(np.asarray(stream.custom_data[ADVANTAGE], np.float32), len(actions))
    for k, action in enumerate(actions):
        append(observations[k], 0.0, 0.0, is_sampled=False)
        append(action, logps[k], advantages[k], is_sampled=True)
        parts["reward"][-1][-1:] = rewards[k]
        parts["is_turn_end"][-1][-1:] = True
    if has_final_observation and not stream.is_terminated:
        append(observations[len(actions)], 0.0, 0.0, is_sampled=False)
    return Row(
        **{name: np.concatenate(arrays) for name, arrays in parts.items()},
        group=stream.custom_data.get(GROUP, 0),
        is_terminated=stream.is_terminated,
    )


def _filler() -> Row:
    return Row(**{name: torch.zeros(2, dtype=dtype).numpy() for name, dtype in PER_TOKEN.items()})


def collate(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Pad rows on the right, shortest first, so that micro-batches of neighbours waste little.

    Returns:
        The fields of `Row`, each [B, T] or [B], and `length` int64 [B].
        Without rows: one row whose mask is empty, so that a learner without data takes part in collective operations.
    """
    rows = sorted(rows, key=lambda row: len(row.tokens)) or [_filler()]
    lengths = torch.tensor([len(row.tokens) for row in rows])
    out: dict[str, torch.Tensor] = {"length": lengths}
    for name, dtype in PER_SEQUENCE.items():
        out[name] = torch.tensor([getattr(row, name) for row in rows], dtype=dtype)
    for name, dtype in PER_TOKEN.items():
        out[name] = torch.zeros(len(rows), int(lengths.max()), dtype=dtype)
        for k, row in enumerate(rows):
            out[name][k, : lengths[k]] = torch.as_tensor(getattr(row, name), dtype=dtype)
    return out


class EpisodesToBatch(ConnectorV2):
    """Collates the streams that carry an advantage; streams without one (a group without spread) are left out.

    Args:
        has_final_observation: see `row_of`.
    """

    def __init__(self, *, has_final_observation: bool = False) -> None:
        super().__init__()
        self._has_final_observation = has_final_observation

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
            rows[stream.module_id or DEFAULT_MODULE_ID].append(
                row_of(stream, has_final_observation=self._has_final_observation)
            )
        return {module_id: collate(of_module) for module_id, of_module in rows.items()}


def trainable_streams(episodes: list[SingleAgentEpisode | MultiAgentEpisode]) -> Iterator[SingleAgentEpisode]:
    """Yield the streams that have an advantage."""
    for episode in episodes:
        for stream in streams(episode):
            if stream.custom_data.get(ADVANTAGE) is not None:
                yield stream
