"""Weights as a model's files hold them: transformers renames some as it loads them, and packs experts together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYER = re.compile(r".*?\.\d+\.")


def checkpoint_items(lm: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's weights under the names and in the shapes of its files, a layer at a time.

    Args:
        lm: says how; its own weights are not read, and may be on the meta device.
        weights: by the names in its `state_dict`; each is asked for once.
    """
    from transformers.core_model_loading import revert_weight_conversion

    layers: dict[str, list[str]] = {}
    for name in weights:
        layer = _LAYER.match(name)
        layers.setdefault(layer[0] if layer else name, []).append(name)
    for names in layers.values():  # no conversion goes beyond a layer
        yield from revert_weight_conversion(lm, {name: weights[name] for name in names}).items()
