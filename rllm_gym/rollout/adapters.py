"""What an engine gets from LoRA adapters: only they travel, and are added to the base model's weights here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rllm_gym.models import LORA_A, LORA_B


class AdaptedWeights(Mapping[str, torch.Tensor]):
    """The weights of a model with its adapter added, computed one at a time as they are asked for.

    Args:
        base: Hugging Face names to the base model's weights.
        adapter: `<name>.lora_A` and `<name>.lora_B` to the two factors of what is added to the weight `<name>`, scaled.
    """

    def __init__(self, base: Mapping[str, torch.Tensor], adapter: Mapping[str, Any]) -> None:
        self._base, self._adapter = base, {name: torch.as_tensor(value) for name, value in adapter.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self._base[name]
        if name + LORA_A not in self._adapter:
            return weight
        return weight + (self._adapter[name + LORA_B] @ self._adapter[name + LORA_A]).to(weight)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def difference(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the adapter that makes the weights of one policy of those of another, where both have one of their own.

    A = [A_theirs; A_mine],  B = [B_theirs, -B_mine],  so that  W_mine + B A = W_theirs
    """
    out = {}
    for name, value in theirs.items():
        a, b = torch.as_tensor(value), torch.as_tensor(mine[name])
        out[name] = torch.cat([a, b], 0) if name.endswith(LORA_A) else torch.cat([a, -b], 1)
    return out
