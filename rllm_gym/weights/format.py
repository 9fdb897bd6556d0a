"""Forms that weights take on their way: bfloat16 as bits, tied weights once, LoRA adapters without their base model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

# `<name>.lora_B @ <name>.lora_A` is what an adapter adds to the weight `<name>`.
LORA_A, LORA_B = ".lora_A", ".lora_B"
BFLOAT16_BITS = "uint16"  # the dtype of arrays that stand for bfloat16, which numpy lacks

# Ray's object store hands out arrays that are only read.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)


def arrays_to_send(state: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return arrays that Ray sends without another copy; tied weights share one. See `BFLOAT16_BITS`."""
    arrays: dict[tuple, np.ndarray] = {}
    for value in state.values():
        if (place := _place(value)) not in arrays:
            value = value.detach().cpu()
            bits = value.view(getattr(torch, BFLOAT16_BITS)) if value.dtype == torch.bfloat16 else value
            arrays[place] = bits.numpy()
    return {name: arrays[_place(value)] for name, value in state.items()}


def _place(value: torch.Tensor) -> tuple:
    return value.device, value.data_ptr(), value.shape, value.stride()


def received(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return weights as engines take them: bfloat16 as tensors, whose bits came as arrays."""
    return {
        name: torch.as_tensor(value).view(torch.bfloat16) if str(value.dtype) == BFLOAT16_BITS else value
        for name, value in weights.items()
    }


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


class AdaptedWeights(Mapping[str, torch.Tensor]):
    """The weights of a model with its adapter added, computed one at a time as they are asked for.

    Args:
        base: Hugging Face names to the base model's weights.
        adapter: `<name>.lora_A` and `<name>.lora_B` to the two factors of what is added to the weight `<name>`, scaled.
    """

    def __init__(self, base: Mapping[str, torch.Tensor], adapter: Mapping[str, Any]) -> None:
        self._base, self._adapter = base, {name: torch.as_tensor(value) for name, value in adapter.items()}
        for name in self._adapter:
            if name.removesuffix(LORA_A).removesuffix(LORA_B) not in base:
                raise KeyError(f"the adapter's {name} is of no weight of its base model")

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
