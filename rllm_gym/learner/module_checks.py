"""What a learner asks of a module before it trains: its sizes, and whether rows may hold several sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rllm_gym.learner.batch import Batch, collate, split_into_micro_batches
from rllm_gym.types import Sample


def count_parameters(module: torch.nn.Module) -> tuple[int, int]:
    """Return the numbers of trainable and of frozen parameters."""
    sizes = [(parameter.requires_grad, parameter.numel()) for parameter in module.parameters()]
    return sum(n for trains, n in sizes if trains), sum(n for trains, n in sizes if not trains)


@torch.no_grad()
def packing_fault(engine: Any, dtype: str, device: Any = None) -> str | None:
    """Return why a policy does not keep sequences in one row apart by their positions, or None where it does.

    Args:
        engine: a DeepSpeed engine: model inputs -> `{"logp": [B, T]}`.
        dtype: of its weights.
    """
    samples = [Sample(np.arange(n) % 7, np.ones(n, np.float32)) for n in (6, 3, 3)]
    batch = Batch.from_mapping(collate(samples), device)
    try:
        # Three rows of one sequence, then one row of one and one of two.
        logps = []
        for is_packed in (False, True):
            [part] = split_into_micro_batches(batch, 64, is_packed=is_packed)
            logps.append(engine(part.model_inputs)["logp"].float())
        difference = (logps[0] - logps[1]).abs().max().item()
        # With other tokens before them in their rows, sequences must stay as they are, to the last bit.
        assert part.packing is not None
        is_first_B = part.packing.start == 0
        other_BT = torch.where(is_first_B[:, None], (part.batch.tokens + 1) % 7, part.batch.tokens)
        moved = engine({**part.model_inputs, "tokens": other_BT})["logp"].float()
        if not torch.equal(moved[~is_first_B], logps[1][~is_first_B]):
            return "a sequence reads the one before it in its row"
    except (TypeError, ValueError) as error:  # no position_ids, or none that begin anew
        return str(error)
    is_exact = dtype == "float32" and not engine.torch_autocast_enabled()
    return None if difference < (1e-3 if is_exact else 0.5) else f"log-probabilities differ by {difference:.2g}"
