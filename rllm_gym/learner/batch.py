"""From samples to token batches: dealt to learners, collated, cut into minibatches; see `packing.py` for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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
PER_SAMPLE = {
    "pair": torch.long,
    "is_chosen": torch.bool,
    "ref_logp_sum": torch.float32,
    "lot": torch.long,
    "num_lots": torch.long,
}


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
        """Read a batch that `collate` made and RLlib has carried."""
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

    def minibatches(self, count: int, *, seed: int = 0, epoch: int = 0) -> Iterator[Batch]:
        """Deal the lots to `count` minibatches, shuffled anew in every epoch; a single one keeps the rows' order.

        Which lots these are follows from the seed alone, whatever rows of them this learner has (`number_lots`).
        """
        if count == 1:
            yield self
            return
        lots_B, num_lots = self._lots()
        order = np.random.default_rng(np.random.SeedSequence((seed, epoch))).permutation(num_lots)
        minibatch_of = torch.empty(num_lots, dtype=torch.long)
        minibatch_of[torch.from_numpy(order)] = torch.arange(num_lots) % count
        for k in range(count):
            yield self.select((minibatch_of[lots_B] == k).nonzero()[:, 0])

    def _lots(self) -> tuple[torch.Tensor, int]:
        """Return the lot of each row, int64 [B], and how many there are; without numbers each unit is one."""
        lots_B = self.per_sample["lot"].cpu()
        if (lots_B >= 0).all():
            return lots_B, max(1, int(self.per_sample["num_lots"].max()))
        units = self.units()
        for number, unit in enumerate(units):
            lots_B[unit] = number
        return lots_B, len(units)

    def units(self) -> list[list[int]]:
        """Return the rows that no minibatch may part: those of one episode, or of one pair."""
        units: dict[int, list[int]] = {}
        for row, episode in enumerate(self.episode.tolist()):
            units.setdefault(episode, []).append(row)
        return list(units.values())

    def counts(self) -> torch.Tensor:
        """Return float64 [3]: the sum of the tokens' weights, and how many sequences and episodes have any."""
        has_token_B = self.mask.any(1)
        weight = self.per_token["weight"].masked_fill(~self.mask, 0.0).double().sum()
        num_sequences, num_episodes = (
            len(number_B[has_token_B].unique()) for number_B in (self.per_sample["sequence"], self.episode)
        )
        return torch.tensor([weight, num_sequences, num_episodes], dtype=torch.float64)


def unit_of(sample: Sample, number: int) -> Any:
    """Return the key of samples that must stay together: an episode's contexts and agents, the two of a pair."""
    return sample.episode or (sample.pair if sample.pair >= 0 else (number,))


def number_lots(samples: Sequence[Sample], num_minibatches: int) -> None:
    """Number what minibatches are dealt from, module by module, before the samples go to several learners.

    A lot are the samples of a task: of all groups whose episodes have an agent in common. So what is shared, a prompt
    and a comparison, stays together. Where these are fewer than the minibatches, it is an episode, or a pair.
    """
    by_module: dict[str, list[int]] = {}
    for k, sample in enumerate(samples):
        by_module.setdefault(sample.module, []).append(k)
    for places in by_module.values():
        units = {k: unit_of(samples[k], k) for k in places}
        above: dict[Any, Any] = {}  # joins the groups that an episode's agents are in
        for k in places:
            above[_top(above, ("unit", units[k]))] = _top(above, ("group", samples[k].group))
        lots: list[Any] = [_top(above, ("group", samples[k].group)) for k in places]
        if len(set(lots)) < num_minibatches:
            lots = [units[k] for k in places]
        numbers: dict[Any, int] = {}
        for k, lot in zip(places, lots, strict=True):
            samples[k].lot = numbers.setdefault(lot, len(numbers))
        for k in places:
            samples[k].num_lots = len(numbers)


def _top(above: dict[Any, Any], key: Any) -> Any:
    while above.setdefault(key, key) != key:
        key = above[key]
    return key


def collate(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Pad samples on the right, shortest first, so that micro-batches of neighbours waste little.

    Returns:
        `tokens`, `mask`, `lengths`, `episode` and the columns of `PER_TOKEN` and `PER_SAMPLE`, see `Batch`; `index`,
        where in `samples` each row was; `sequence`, which agent's episode it belongs to; `sequence_tokens` and
        `episode_tokens`, how many tokens with a weight its whole sequence, and its whole episode, has. Without
        samples one row whose mask is empty, so that a learner without data takes part in collective operations.
    """
    numbers: dict[Any, int] = {}
    units = [numbers.setdefault(unit_of(sample, k), len(numbers)) for k, sample in enumerate(samples)]
    if not samples:
        filler = {name: torch.zeros(1, 2, dtype=dtype) for name, dtype in PER_TOKEN.items()}
        filler |= {name: torch.zeros(1, dtype=dtype) for name, dtype in PER_SAMPLE.items()}
        tokens, one = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        filler |= {"tokens": tokens, "mask": tokens.bool(), "lengths": one + 2, "episode": one, "index": one}
        return filler | {"sequence": one, "sequence_tokens": one.float(), "episode_tokens": one.float()}
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
    sequences: dict[Any, int] = {}
    keys = [(row.episode, row.agent) if row.episode else k for k, row in enumerate(rows)]
    out["sequence"] = torch.tensor([sequences.setdefault(key, len(sequences)) for key in keys])
    for name, number_B in (("sequence_tokens", out["sequence"]), ("episode_tokens", out["episode"])):
        num_tokens = torch.zeros(len(rows)).index_add(0, number_B, out["mask"].sum(1).float())
        out[name] = num_tokens[number_B]
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

    A unit are the samples of one episode, or of one pair. Samples get the numbers of their lots, if they have none.
    """
    if any(sample.lot < 0 for sample in samples):
        number_lots(samples, num_minibatches=2)
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
