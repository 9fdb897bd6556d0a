"""From samples to token batches: dealt to learners, collated, cut into minibatches; see `packing.py` for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.annotations import override

from rllm_gym.types import Sample

# Columns of a batch by the field of `Sample`; one that a sample lacks (None) is left out for all.
PER_TOKEN = {
    "weight": torch.float32,
    "old_logp": torch.float32,
    "advantage": torch.float32,
    "trainer_logp": torch.float32,
    "ref_logp": torch.float32,
    "value": torch.float32,
    "value_target": torch.float32,
}
PER_SAMPLE = {"pair": torch.long, "is_chosen": torch.bool, "ref_logp_sum": torch.float32}


@dataclass
class Batch:
    """Samples of one train step and one module, padded on the right.

    `tokens` int64, `mask` bool (True at tokens with a weight) and every tensor in `per_token` are [B, T]; `lengths`
    int64, `episode` int64 (numbers the episodes) and every tensor in `per_sample` are [B].
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    lengths: torch.Tensor
    episode: torch.Tensor
    per_token: dict[str, torch.Tensor] = field(default_factory=dict)
    per_sample: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, tensors: Mapping[str, torch.Tensor], device: Any = None) -> Batch:
        """Read what `collate` made, and RLlib has carried."""
        moved = {name: value.to(device) for name, value in tensors.items()}
        tokens, mask, lengths, episode = (moved.pop(name) for name in ("tokens", "mask", "lengths", "episode"))
        return cls(
            tokens=tokens,
            mask=mask.bool(),
            lengths=lengths,
            episode=episode,
            per_token={name: value for name, value in moved.items() if value.dim() == 2},
            per_sample={name: value for name, value in moved.items() if value.dim() == 1},
        )

    def select(self, rows: torch.Tensor) -> Batch:
        """Return these rows, cut to the longest of them."""
        width = max(2, int(self.lengths[rows].max())) if len(rows) else 2
        return Batch(
            tokens=self.tokens[rows, :width],
            mask=self.mask[rows, :width],
            lengths=self.lengths[rows],
            episode=self.episode[rows],
            per_token={name: value[rows, :width] for name, value in self.per_token.items()},
            per_sample={name: value[rows] for name, value in self.per_sample.items()},
        )

    def minibatches(self, count: int) -> Iterator[Batch]:
        """Deal the rows to `count` minibatches of about equal length: by strides, for rows are sorted by length."""
        if count == 1:
            yield self
            return
        units = self.units()
        for k in range(count):
            yield self.select(torch.tensor([row for unit in units[k::count] for row in unit], dtype=torch.long))

    def units(self) -> list[list[int]]:
        """Return the rows that no minibatch may part: those of one episode, or of one pair."""
        units: dict[int, list[int]] = {}
        for row, episode in enumerate(self.episode.tolist()):
            units.setdefault(episode, []).append(row)
        return list(units.values())

    def counts(self) -> torch.Tensor:
        """Return float64 [3]: the tokens with a weight, and the rows and episodes that have any."""
        has_token_B = self.mask.any(1)
        num_episodes = len(self.episode[has_token_B].unique())
        return torch.tensor([self.mask.sum(), has_token_B.sum(), num_episodes], dtype=torch.float64)


def unit_of(sample: Sample, number: int) -> Any:
    """Return what samples share that must stay together: an episode's contexts and agents, the two of a pair."""
    return sample.episode or (sample.pair if sample.pair >= 0 else (number,))


def collate(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Pad samples on the right, shortest first, so that micro-batches of neighbours waste little.

    Returns:
        `tokens`, `mask`, `lengths`, `episode` and the columns of `PER_TOKEN` and `PER_SAMPLE`, see `Batch`; `index`,
        where in `samples` each row was; `episode_tokens`, how many tokens with a weight its whole episode has. Without
        samples one row whose mask is empty, so that a learner without data takes part in collective operations.
    """
    numbers: dict[Any, int] = {}
    units = [numbers.setdefault(unit_of(sample, k), len(numbers)) for k, sample in enumerate(samples)]
    if not samples:
        filler = {name: torch.zeros(1, 2, dtype=dtype) for name, dtype in PER_TOKEN.items()}
        filler |= {name: torch.zeros(1, dtype=dtype) for name, dtype in PER_SAMPLE.items()}
        tokens, one = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        filler |= {"tokens": tokens, "mask": tokens.bool(), "lengths": one + 2, "episode": one, "index": one}
        return filler | {"episode_tokens": one.float()}
    # By the unit's longest sample: its rows stay together and in their order.
    longest = [0] * len(numbers)
    for unit, sample in zip(units, samples, strict=True):
        longest[unit] = max(longest[unit], len(sample.tokens))
    order = sorted(range(len(samples)), key=lambda k: (longest[units[k]], units[k]))
    rows = [samples[k] for k in order]
    lengths = [len(row.tokens) for row in rows]
    width = max(lengths)
    out = {
        "tokens": torch.zeros(len(rows), width, dtype=torch.long),
        "lengths": torch.tensor(lengths),
        "episode": torch.tensor([units[k] for k in order]),
    }
    columns = {"tokens": torch.long} | {
        name: dtype for name, dtype in PER_TOKEN.items() if all(getattr(row, name) is not None for row in rows)
    }
    for name, dtype in columns.items():
        out[name] = torch.zeros(len(rows), width, dtype=dtype)
        for k, row in enumerate(rows):
            out[name][k, : lengths[k]] = torch.as_tensor(getattr(row, name), dtype=dtype)
    for name, dtype in PER_SAMPLE.items():
        out[name] = torch.tensor([getattr(row, name) for row in rows], dtype=dtype)
    out["weight"][:, 0] = 0.0  # nothing comes before the first token to predict it from
    out["mask"] = out["weight"] != 0
    out["index"] = torch.tensor(order)
    num_tokens_E = torch.zeros(len(numbers)).index_add(0, out["episode"], out["mask"].sum(1).float())
    out["episode_tokens"] = num_tokens_E[out["episode"]]
    return out


@dataclass
class SampleData(TrainingData):
    """Samples under RLlib's name `episodes`. RLlib's own sharding would cut them; here each learner gets whole ones."""

    @override(TrainingData)
    def shard(
        self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any
    ) -> list[tuple[TrainingData, dict]]:
        samples = self.episodes or []
        return [
            (TrainingData(episodes=[samples[k] for k in indices]), {"num_total_minibatches": 0})
            for indices in deal(samples, num_shards)
        ]


def deal(samples: Sequence[Sample], num_shards: int) -> list[list[int]]:
    """Return which samples go to which learner: about as many tokens to each, and never a unit to two of them.

    A unit are the samples of one episode, or of one pair.
    """
    units: dict[Any, list[int]] = {}
    for k, sample in enumerate(samples):
        units.setdefault(unit_of(sample, k), []).append(k)
    sizes = {key: sum(len(samples[k].tokens) for k in unit) for key, unit in units.items()}
    shards: list[list[int]] = [[] for _ in range(num_shards)]
    loads = [0] * num_shards
    for key in sorted(units, key=lambda key: -sizes[key]):
        lightest = loads.index(min(loads))
        shards[lightest] += units[key]
        loads[lightest] += sizes[key]
    return shards


class SamplesToBatch(ConnectorV2):
    """The learner connector: collates the samples of each module that has any."""

    @override(ConnectorV2)
    def __call__(
        self, *, rl_module: Any, batch: dict[str, Any], episodes: list[Sample], **kwargs: Any
    ) -> dict[str, dict[str, torch.Tensor]]:
        return {
            module_id: collate([sample for sample in episodes if sample.module == module_id])
            for module_id, module in rl_module.items()
            if module.has_samples
        }


def make_learner_connector(*_: Any, **__: Any) -> SamplesToBatch:
    """RLlib calls this with spaces and a device; token batches need neither."""
    return SamplesToBatch()
