"""Activations that are computed again in the backward pass, to save memory (`gradient_checkpointing`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

# What `selective` keeps: products and attention, which take nearly all of the time.
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]


def recompute_activations(lm: Any, *, is_selective: bool) -> None:
    """Let each layer of a model, perhaps with peft's wrapper, keep its input alone, or (`is_selective`) KEPT, too."""
    how: dict[str, Any] = {"use_reentrant": False}
    if is_selective:
        how["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
    lm.enable_input_require_grads()
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
