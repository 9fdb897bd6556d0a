"""Samples as the rows that advantages are computed from."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rllm_gym.ties import tie
from rllm_gym.types import Sample


@dataclass
class Advantages:
    """The advantages of rows, and what came of computing them.

    Args:
        advantage: one number per row [N], or one per token [N, K].
        columns: further fields of the samples, by name, of either shape.
        metrics: logged under the module.
    """

    advantage: torch.Tensor
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


class AdvantageRows:
    """Samples of one module as N rows, one per agent and episode, each with the sampled tokens of all its parts.

    Only sampled tokens are time steps here: the value after the last token of a turn, or of a part, is the one before
    the first token of the next. Tensors are [N, K], padded on the right and 0 there, or [N]; what is made of rewards is
    float64, the rest float32.

    Args:
        samples: in any order; the parts of an agent's episode are put in theirs.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        rows: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        for sample in samples:
            rows[sample.episode, sample.agent].append(sample)
        self.samples = [sorted(of_row, key=lambda sample: sample.context_index) for of_row in rows.values()]

    def __len__(self) -> int:
        return len(self.samples)

    @functools.cached_property
    def mask_NK(self) -> torch.Tensor:
        """Bool, True where a row has a token."""
        lengths_N = torch.tensor([sum(int((part.weight != 0).sum()) for part in row) for row in self.samples])
        return torch.arange(int(lengths_N.max())) < lengths_N[:, None]

    def column(self, name: str) -> torch.Tensor:
        """Return a field of the samples, [N, K]."""
        columns = [torch.as_tensor(np.concatenate([getattr(p, name)[p.weight != 0] for p in r])) for r in self.samples]
        out_NK = torch.zeros(self.mask_NK.shape, dtype=columns[0].dtype)
        out_NK[self.mask_NK] = torch.cat(columns)
        return out_NK

    def set_column(self, name: str, value: torch.Tensor) -> None:
        """Write a field of the samples: one value per token [N, K], or one per row [N]."""
        value_NK = value[:, None].expand(self.mask_NK.shape) if value.dim() == 1 else value
        for row, value_K in zip(self.samples, value_NK.float().numpy(), strict=True):
            begin = 0
            for part in row:
                is_sampled = part.weight != 0
                end = begin + int(is_sampled.sum())
                of_part = np.zeros(len(part), np.float32)
                of_part[is_sampled] = value_K[begin:end]
                setattr(part, name, of_part)
                begin = end

    @functools.cached_property
    def reward_NK(self) -> torch.Tensor:
        return self.column("reward")

    @property
    def return_N(self) -> torch.Tensor:
        """Float64, the sum of the rewards; equal within a group where it ties, see `rllm_gym.ties`."""
        return torch.from_numpy(tie(self.reward_NK.double().sum(1), self.reward_size_N, self.group_N))

    @property
    def reward_size_N(self) -> torch.Tensor:
        """Float64, how large the rewards were, whatever their signs."""
        return self.reward_NK.double().abs().sum(1)

    @property
    def others_return_N(self) -> torch.Tensor:
        """Float64, what the other agents of each row's episode have earned."""
        return torch.tensor([row[0].others_return for row in self.samples], dtype=torch.float64)

    @property
    def others_size_N(self) -> torch.Tensor:
        """Float64, how large their rewards were."""
        return torch.tensor([row[0].others_size for row in self.samples], dtype=torch.float64)

    @property
    def group_N(self) -> torch.Tensor:
        return torch.tensor([row[0].group for row in self.samples])

    @property
    def is_terminated_N(self) -> torch.Tensor:
        return torch.tensor([row[-1].is_terminated for row in self.samples])

    @property
    def is_success_N(self) -> torch.Tensor:
        return torch.tensor([row[-1].is_success for row in self.samples])

    @property
    def final_value_N(self) -> torch.Tensor:
        return torch.tensor([row[-1].final_value for row in self.samples])

    @property
    def num_tokens_N(self) -> torch.Tensor:
        """Int64, the tokens of each row's longest part up to the last sampled one."""
        return torch.tensor([max(int(p.weight.nonzero()[0][-1]) + 1 for p in row) for row in self.samples])

    # --- turns ---

    @functools.cached_property
    def turn_NK(self) -> torch.Tensor:
        """Int64, which of its row's turns a token belongs to."""
        is_end_NK = self.column("is_turn_end").long()
        return (is_end_NK.cumsum(1) - is_end_NK) * self.mask_NK

    @property
    def turn_mask_NU(self) -> torch.Tensor:
        """Bool, True where a row has a turn."""
        num_turns_N = self.column("is_turn_end").sum(1)
        return torch.arange(int(num_turns_N.max())) < num_turns_N[:, None]

    @property
    def turn_reward_NU(self) -> torch.Tensor:
        """Float64, the reward of each turn."""
        zero_NU = torch.zeros(self.turn_mask_NU.shape, dtype=torch.float64)
        return zero_NU.scatter_add(1, self.turn_NK, self.reward_NK.double() * self.mask_NK)

    @property
    def turn_state_NU(self) -> torch.Tensor:
        """Int64, a label of the observation that each turn began with: equal labels, equal observations.

        They are compared by their text; where only tokens are known, without the end of a turn that was cut.
        """
        labels: dict[Any, int] = {}
        lasts = [int(part.tokens[end]) for row in self.samples for part in row for end in _turn_ends(part)]
        end_of_turn = max(set(lasts), key=lasts.count, default=-1)
        out_NU = torch.zeros(self.turn_mask_NU.shape, dtype=torch.long)
        for n, row in enumerate(self.samples):
            states = [state for part in row for state in part.states or _observations(part, end_of_turn)]
            out_NU[n, : len(states)] = torch.tensor([labels.setdefault(state, len(labels)) for state in states])
        return out_NU

    def of_turns(self, value_NU: torch.Tensor) -> torch.Tensor:
        """Return [N, K], each token's turn's value."""
        return value_NU.gather(1, self.turn_NK) * self.mask_NK


def _turn_ends(sample: Sample) -> np.ndarray:
    assert sample.is_turn_end is not None
    return np.flatnonzero(sample.is_turn_end)


def _observations(sample: Sample, end_of_turn: int) -> list[bytes]:
    """Return the tokens before each turn of a sample, less the end of a turn that the turn before lacks."""
    is_sampled, ends, found = sample.weight != 0, _turn_ends(sample), []
    begin = 0
    for end in ends:
        ids = sample.tokens[begin : begin + int(is_sampled[begin : end + 1].argmax())]
        is_cut = begin > 0 and sample.tokens[begin - 1] != end_of_turn and ids[:1].tolist() == [end_of_turn]
        found.append(ids[int(is_cut) :].tobytes())
        begin = int(end) + 1
    return found
