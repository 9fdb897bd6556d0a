"""Activations that are computed again in the backward pass, to save memory (`gradient_checkpointing`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# What `selective` keeps: products and attention, which take nearly all of the time.
PRODUCTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1, torch.ops.aten.bmm.default: 0}  # their input
ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def recompute_activations(lm: Any, *, is_selective: bool) -> None:
    """Let each layer of a model, perhaps with peft's wrapper, keep its input alone, or (`is_selective`) products, too.

    Of the products those stay away that are narrower than what they are made from: a layer's last one, which nothing
    in the layer needs again, so that it is not computed again either; and keys and values that heads share.
    """
    how: dict[str, Any] = {"use_reentrant": False}
    if is_selective:
        how["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    lm.enable_input_require_grads()
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_kept = operation in ATTENTION
    if operation in PRODUCTS:
        at = PRODUCTS[operation]
        is_kept = args[at + 1].shape[-1] >= args[at].shape[-1]
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
