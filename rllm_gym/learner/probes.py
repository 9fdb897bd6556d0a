"""Probes of a module before it trains: its sizes, and whether rows may hold several sequences, and share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rllm_gym.learner.batch import Batch, collate
from rllm_gym.learner.block_attention import NAME, reads_blocks, sees_only_what_is_near
from rllm_gym.learner.packing import split_into_micro_batches
from rllm_gym.types import Sample

ATTENTION_SLOWNESS = 1.4  # an operation of attention under a mask by one of a layer's weights, on a CPU


def count_parameters(module: torch.nn.Module) -> tuple[int, int]:
    """Return the numbers of trainable and of frozen parameters."""
    sizes = [(parameter.requires_grad, parameter.numel()) for parameter in module.parameters()]
    return sum(n for trains, n in sizes if trains), sum(n for trains, n in sizes if not trains)


def row_faults(engines: Sequence[Any], config: Any, device: Any = None) -> tuple[str | None, str | None]:
    """Return why rows hold one sequence each, and why they read common beginnings again; None where they do not.

    Args:
        engines: the policies' DeepSpeed engines.
    """
    arguments = config.weight_dtype, device
    packing: str | None = "packing: false"
    if config.packing:
        packing = next(filter(None, (packing_fault(engine, *arguments) for engine in engines)), None)
    if packing or not config.share_prefixes:
        return packing, packing or "share_prefixes: false"
    if config.share_prefixes == "auto" and not all(reads_blocks(engine.module.bare_lm, device) for engine in engines):
        why = "share_prefixes: auto shares only where attention goes from block to block of a row, and here it does not"
        return packing, f"{why}; true shares all the same"
    return packing, next(filter(None, (sharing_fault(engine, *arguments) for engine in engines)), None)


def collect_notices(learner: Any) -> list[str]:
    """Return a line for each option that a learner cannot carry out as it says, or only slowly."""
    config, device = learner.config, learner._device
    notices = []
    if learner.packing_fault and config.packing == "auto":
        fault = learner.packing_fault
        notices.append(f"packing: auto: rows hold one sequence each, for base_model cannot tell more apart: {fault}")
    if learner.sharing_fault and config.share_prefixes is True:
        notices.append(f"share_prefixes: nothing is shared, for base_model cannot: {learner.sharing_fault}")
    for module_id, module in learner.module.items():
        sizes = [(weight.ndim, weight.numel()) for weight in module.bare_lm.parameters()]
        num_experts = sum(size for ndim, size in sizes if ndim > 2)
        if num_experts and module.model_config["lora"] is not None:
            share = num_experts / sum(size for _, size in sizes)
            notices.append(f"lora: {module_id} trains its linear layers; experts, {share:.0%} of it, stay as they are")
    lora_notice = notice_of_lora(config)
    if lora_notice and any(module.model_config["lora"] is not None for module in learner.module.values()):
        notices.append(lora_notice)
    has_16_bits = config.weight_dtype != "float32" or config.has_autocast
    if has_16_bits and device.type == "cpu" and not multiplies_in_16_bits(torch.cpu.get_capabilities()):
        notices.append(
            "dtype, deepspeed.torch_autocast: products in 16 bits take many times as long as in float32 on a learner's "
            "processor, which has no AVX-512. Leave both out, or set float32."
        )
    return notices


def notice_of_lora(config: Any) -> str | None:
    """Return how much of an adapter's effect rounding costs; see `benchmarks/lora_dtype.py`."""
    if config.weight_dtype != "float32":
        return (
            f"lora: in {config.weight_dtype} about half of a young adapter's effect is lost to rounding, in the "
            "sampler and in the trainer; in float32 none is. Set dtype: float32 where there is the memory."
        )
    if config.has_autocast:
        return (
            "lora: under deepspeed.torch_autocast about half of a young adapter's effect is lost to rounding, in the "
            "trainer alone, so that it trains on another policy than the sampler plays. Leave torch_autocast out."
        )
    return None


def multiplies_in_16_bits(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a processor does so faster than one number at a time; see `torch.cpu.get_capabilities`."""
    return capabilities.get("architecture") != "x86_64" or bool(capabilities.get("avx512_f"))


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
        # With other tokens before them in their rows, sequences must stay as they are: to the last bit, but where there
        # are experts, which round by how many tokens each gets.
        assert part.packing is not None
        is_first_B = part.packing.places[:, 0] % part.packing.width == 0
        other_BT = torch.where(is_first_B[:, None], (part.batch.tokens + 1) % 7, part.batch.tokens)
        moved = engine({**part.model_inputs, "tokens": other_BT})["logp"].float()
        has_experts = any(weight.ndim == 3 for weight in engine.module.parameters())
        most = 1e-5 if has_experts and _is_exact(engine, dtype) else 0.0
        if not torch.allclose(moved[~is_first_B], logps[1][~is_first_B], rtol=0.0, atol=most):
            return "a sequence reads the one before it in its row"
    except (RuntimeError, TypeError, ValueError) as error:  # no position_ids, or none that begin anew
        return " ".join(str(error).split())
    return _describe_fault(difference, engine, dtype)


@torch.no_grad()
def sharing_fault(engine: Any, dtype: str, device: Any = None) -> str | None:
    """Return why a policy does not read by a mask what sequences begin with in common, or None where it does."""
    config = engine.module.bare_lm.config
    if (attention := getattr(config, "_attn_implementation", None)) not in ("sdpa", NAME):
        return f"its attention is {attention}, which takes no such mask"
    if sees_only_what_is_near(config):
        return "some of its layers see only what is near"
    tokens = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 6], [0, 1, 2, 6, 5], [4, 3]]
    batch = Batch.from_mapping(collate([Sample(np.array(t), np.ones(len(t), np.float32)) for t in tokens]), device)
    logps = []
    for knee in (None, math.inf):
        [part] = split_into_micro_batches(batch, 64, is_packed=True, knee=knee)
        logp_BT = torch.zeros(batch.tokens.shape)
        logp_BT[part.rows, : part.batch.tokens.shape[1]] = engine(part.model_inputs)["logp"].float().cpu()
        logps.append(logp_BT)
    return _describe_fault((logps[0] - logps[1]).abs().max().item(), engine, dtype)


def _describe_fault(difference: float, engine: Any, dtype: str) -> str | None:
    return (
        None
        if difference < (1e-3 if _is_exact(engine, dtype) else 0.5)
        else f"log-probabilities differ by {difference:.2g}"
    )


def _is_exact(engine: Any, dtype: str) -> bool:
    return dtype == "float32" and not engine.torch_autocast_enabled()


def attention_knee(lm: Any, device: Any) -> float:
    """Return how long a row is whose attention costs as much as all else of it; see `packing.grow_trees`.

    A token costs 2 operations for each weight of the layers, and 4 W H of attention in each of L layers, which take
    longer. Where attention goes by blocks, no token attends to anything for nothing: the knee is infinite.
    """
    if reads_blocks(lm, device):
        return math.inf
    embeddings = {id(weight) for part in (lm.get_input_embeddings(), lm.get_output_embeddings()) if part is not None
                  for weight in part.parameters()}  # fmt: skip
    num_weights = sum(weight.numel() for weight in lm.parameters() if id(weight) not in embeddings)
    config = lm.config.get_text_config()
    return num_weights / (2.0 * ATTENTION_SLOWNESS * config.num_hidden_layers * config.hidden_size)
