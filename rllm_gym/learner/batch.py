"""A module's padded token batch on a learner, and how it is cut into minibatches and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rllm_gym.learner.packing import Packing


@dataclass
class Batch:
    """Sequences of one train step, padded on the right.

    `tokens` int64, `mask` bool (True at sampled tokens) and every tensor in `per_token` are [B, T]; `lengths` int64 and
    every tensor in `per_sequence` are [B].
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    lengths: torch.Tensor
    per_token: dict[str, torch.Tensor] = field(default_factory=dict)
    per_sequence: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, tensors: Mapping[str, torch.Tensor], device: Any = None) -> Batch:
        """Read what the learner connector made."""
        moved = {name: value.to(device) for name, value in tensors.items()}
        tokens, mask, lengths = moved.pop("tokens"), moved.pop("mask"), moved.pop("length")
        return cls(
            tokens=tokens,
            mask=mask.bool(),
            lengths=lengths,
            per_token={name: value for name, value in moved.items() if value.dim() == 2},
            per_sequence={name: value for name, value in moved.items() if value.dim() == 1},
        )

    def select(self, rows: torch.Tensor) -> Batch:
        """Return these rows, cut to the longest of them."""
        width = max(2, int(self.lengths[rows].max())) if len(rows) else 2
        return Batch(
            tokens=self.tokens[rows, :width],
            mask=self.mask[rows, :width],
            lengths=self.lengths[rows],
            per_token={name: value[rows, :width] for name, value in self.per_token.items()},
            per_sequence={name: value[rows] for name, value in self.per_sequence.items()},
        )

    def cut(self, width: int) -> Batch:
        """Return the batch without what lies beyond the first `width` tokens."""
        return Batch(
            tokens=self.tokens[:, :width],
            mask=self.mask[:, :width],
            lengths=self.lengths.clamp(max=width),
            per_token={name: value[:, :width] for name, value in self.per_token.items()},
            per_sequence=self.per_sequence,
        )

    def minibatches(self, count: int) -> Iterator[Batch]:
        """Deal the sequences to `count` minibatches of about equal length; rows are sorted by length, so by strides."""
        if count == 1:
            yield self
            return
        units = self.units()
        for k in range(count):
            yield self.select(torch.tensor([row for unit in units[k::count] for row in unit], dtype=torch.long))

    def units(self) -> list[list[int]]:
        """Return the rows that no cut may part: those of a `pair`, where there are pairs, else each row by itself."""
        if "pair" not in self.per_sequence:
            return [[row] for row in range(len(self.lengths))]
        units: dict[int, list[int]] = {}
        for row, pair in enumerate(self.per_sequence["pair"].tolist()):
            units.setdefault(pair, []).append(row)
        return list(units.values())


@dataclass
class MicroBatch:
    """Rows of a batch that go through the model at once. A filler has no rows: it only keeps ranks in step."""

    batch: Batch
    rows: torch.Tensor
    is_filler: bool = False
    num_chunks: int = 1
    packing: Packing | None = None

    @classmethod
    def filler(cls, batch: Batch) -> MicroBatch:
        tokens = torch.zeros(1, 2, dtype=torch.long, device=batch.tokens.device)
        empty = Batch(
            tokens=tokens,
            mask=torch.zeros_like(tokens, dtype=torch.bool),
            lengths=torch.tensor([2]),
            per_token={name: value.new_zeros(1, 2) for name, value in batch.per_token.items()},
            per_sequence={name: value.new_zeros(1) for name, value in batch.per_sequence.items()},
        )
        return cls(empty, torch.zeros(0, dtype=torch.long), is_filler=True)

    def with_chunks(self, num_chunks: int) -> MicroBatch:
        return replace(self, num_chunks=num_chunks)

    @property
    def num_sampled_tokens(self) -> int:
        return int(self.batch.mask.sum())

    @property
    def model_inputs(self) -> dict[str, Any]:
        inputs = {"tokens": self.batch.tokens, "mask": self.batch.mask, "num_chunks": self.num_chunks}
        return inputs if self.packing is None else {**inputs, "packing": self.packing}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {"tokens": self.batch.tokens, "mask": self.batch.mask, **self.batch.per_token, **self.batch.per_sequence}


def split_into_micro_batches(batch: Batch, tokens_per_micro_batch: int) -> list[MicroBatch]:
    """Cut a batch into rows of similar length whose padded size is within the budget (one row may exceed it)."""
    order = torch.argsort(batch.lengths, stable=True)
    parts: list[list[int]] = []
    for row in order.tolist():
        longest = int(batch.lengths[row])  # rows come in order of length
        if parts and (len(parts[-1]) + 1) * longest <= tokens_per_micro_batch:
            parts[-1].append(row)
        else:
            parts.append([row])
    return [MicroBatch(batch.select(torch.tensor(rows)), torch.tensor(rows)) for rows in parts]
