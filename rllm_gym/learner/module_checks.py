"""What a learner asks of a module: its sizes, its gradient, and whether rows of it may hold several sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rllm_gym.learner.batch import Batch, collate, split_into_micro_batches
from rllm_gym.types import Sample


def count_parameters(module: torch.nn.Module) -> tuple[int, int]:
    """Return the numbers of trainable and of frozen parameters."""
    sizes = [(parameter.requires_grad, parameter.numel()) for parameter in module.parameters()]
    return sum(n for trains, n in sizes if trains), sum(n for trains, n in sizes if not trains)


def gradient_norm(module: torch.nn.Module) -> float | None:
    """Return the norm of the gradient, None where the parameters hold none: a 16-bit optimizer keeps it to itself."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    if not gradients:
        return None
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in gradients])))


def weights_are_finite(module: torch.nn.Module) -> bool:
    """Return whether all weights are, of sharded ones those of this rank."""
    return all(bool(torch.isfinite(getattr(p, "ds_tensor", p)).all()) for p in module.parameters())


@torch.no_grad()
def packing_fault(forward: Callable[[dict[str, Any]], Any], *, is_exact: bool, device: Any = None) -> str | None:
    """Return why a policy does not keep sequences in one row apart by their positions, or None where it does.

    Args:
        forward: the module: model inputs -> `{"logp": [B, T]}`.
        is_exact: it computes in float32.
    """
    samples = [Sample(np.arange(n) % 7, np.ones(n, np.float32)) for n in (6, 3, 3)]
    batch = Batch.from_mapping(collate(samples), device)
    try:
        # Three rows of one sequence, then one row of one and one of two.
        logps = []
        for is_packed in (False, True):
            [part] = split_into_micro_batches(batch, 64, is_packed=is_packed)
            logps.append(forward(part.model_inputs)["logp"].float())
        difference = (logps[0] - logps[1]).abs().max().item()
    except (TypeError, ValueError) as error:  # no position_ids, or none that begin anew
        return str(error)
    return None if difference < (1e-3 if is_exact else 0.5) else f"log-probabilities differ by {difference:.2g}"
