"""Weights as they come from the learners: in the object store's own memory, which is only read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rllm_gym.models import BFLOAT16_BITS

warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)


class Tensors(Mapping[str, torch.Tensor]):
    """Arrays and tensors by name, all as tensors, without copies."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.as_tensor(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def received(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return weights as engines take them: bfloat16, whose bits came, as tensors."""
    return {
        name: torch.as_tensor(value).view(torch.bfloat16) if str(value.dtype) == BFLOAT16_BITS else value
        for name, value in weights.items()
    }
