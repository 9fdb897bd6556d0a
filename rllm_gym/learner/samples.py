"""What offline methods train on: samples, or pairs of them, dealt to learners and collated into token batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData

from rllm_gym.types import Sample

EMPTY = Sample(np.zeros(2, np.int64), np.zeros(2, np.float32))


@dataclasses.dataclass(frozen=True)
class Pair:
    """A better and a worse sample of one task, with their log-probabilities under the frozen reference."""

    chosen: Sample
    rejected: Sample
    ref_chosen_logp: float = 0.0
    ref_rejected_logp: float = 0.0

    def __len__(self) -> int:
        return len(self.chosen) + len(self.rejected)


@dataclasses.dataclass
class SampleData(TrainingData):
    """Samples or pairs, under RLlib's name `episodes`, dealt to learners whole, about as many tokens to each."""

    def shard(
        self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any
    ) -> list[tuple[TrainingData, dict]]:
        return [(TrainingData(episodes=s), {"num_total_minibatches": 0}) for s in deal(self.episodes or [], num_shards)]


def deal(items: Sequence[Any], num_shards: int) -> list[list[Any]]:
    """Return the items in shards; sorted by length, so that every shard gets some of each."""
    order = sorted(range(len(items)), key=lambda k: -len(items[k]))
    return [[items[k] for k in order[shard::num_shards]] for shard in range(num_shards)]


class SamplesToBatch(ConnectorV2):
    """Collates samples or pairs for the one module that there is."""

    def __call__(
        self, *, rl_module: Any, batch: dict[str, Any], episodes: list[Any], **kwargs: Any
    ) -> dict[str, dict[str, torch.Tensor]]:
        items = sorted(episodes, key=len)
        is_pairs = bool(items) and isinstance(items[0], Pair)
        return {DEFAULT_MODULE_ID: collate_pairs(items) if is_pairs else collate_samples(items)}


def collate_samples(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Pad samples on the right.

    Returns:
        `tokens` int64, `mask` bool (True where the weight is not 0) and `weight` float32, all [B, T]; `length` int64
        [B]. Without samples: one row whose mask is empty, so that a learner without data takes part in collective
        operations.
    """
    samples = list(samples) or [EMPTY]
    lengths = torch.tensor([len(sample) for sample in samples])
    tokens = torch.zeros(len(samples), int(lengths.max()), dtype=torch.long)
    weight = torch.zeros(tokens.shape)
    for k, sample in enumerate(samples):
        tokens[k, : len(sample)] = torch.as_tensor(sample.token_ids)
        weight[k, : len(sample)] = torch.as_tensor(sample.weights)
    weight[:, 0] = 0.0  # nothing comes before the first token to predict it from
    return {"tokens": tokens, "mask": weight != 0, "weight": weight, "length": lengths}


def collate_pairs(pairs: Sequence[Pair]) -> dict[str, torch.Tensor]:
    """Pad the samples of pairs, each pair's chosen one first.

    Returns:
        What `collate_samples` does, and of [B] each row's `pair` (int64), `is_chosen` (bool) and `ref_logp` (float32).
    """
    count = len(pairs)
    return collate_samples([sample for pair in pairs for sample in (pair.chosen, pair.rejected)]) | {
        "pair": torch.arange(count).repeat_interleave(2),
        "is_chosen": torch.tensor([True, False] * count),
        "ref_logp": torch.tensor([x for p in pairs for x in (p.ref_chosen_logp, p.ref_rejected_logp)]).float(),
    }
