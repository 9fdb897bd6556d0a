"""Attention over rows of several sequences, block by block: nothing is computed for what no token attends to.

A mask keeps a row's sequences apart, but PyTorch's attention on CPUs computes all that it hides, too. A row is made of
blocks instead: a sequence's own tokens, each of which attends to those before it, and for what branches off, its tokens
against each piece of its beginning. Each block goes through PyTorch's fused attention; the blocks of one query are then
put together by their log-sum-exps, as FlashAttention puts its tiles together.

Source: Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "rllm_gym_blocks"
# A block: its row, its queries from and to, its keys from and to, and whether the two are the same tokens, of which
# each attends to those before it. Models get them in place of an attention mask, int64 [1, 1, N, 6], and hand them on.
Block = tuple[int, int, int, int, int, int]


def attend_by_blocks(lm: PreTrainedModel) -> None:
    """Let a model take blocks for a mask, if it takes others' attention and all its layers see the whole row.

    Given a mask, or nothing, it computes what `sdpa` does.
    """
    if lm.config._attn_implementation != "sdpa" or not lm.is_backend_compatible() or sees_only_what_is_near(lm.config):
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    lm.set_attn_implementation(NAME)


def reads_blocks(lm: PreTrainedModel, device: torch.device) -> bool:
    """Return whether a model takes blocks there; PyTorch's attention on GPUs has another interface."""
    return lm.config._attn_implementation == NAME and device.type == "cpu"


def sees_only_what_is_near(config: Any) -> bool:
    """Return whether some of a model's layers attend to a window."""
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    return bool(kinds or getattr(config, "sliding_window", None))


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return the output for each query [R, H, W, D], as [R, W, H, D], the order that transformers wants."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if attention_mask is None or attention_mask.dtype != torch.long:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if torch.is_autocast_enabled("cpu"):  # which knows `sdpa`, but no function of ours
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    groups, size = query.shape[1] // key.shape[1], value.shape[-1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = _of_one_size(query, repeat_kv(key, groups), repeat_kv(value, groups))
    out = _BlockAttention.apply(query, key, value, attention_mask.view(-1, 6).tolist(), scaling)
    return out[..., :size].transpose(1, 2).contiguous(), None


def _of_one_size(*parts: torch.Tensor) -> list[torch.Tensor]:
    """Fill up heads with zeros, which change nothing: DeepSeek's values are smaller than its keys."""
    lacking = [max(other.shape[-1] for other in parts) - part.shape[-1] for part in parts]
    return [torch.nn.functional.pad(part, (0, n)) if n else part for part, n in zip(parts, lacking, strict=True)]


class _BlockAttention(torch.autograd.Function):
    """Attention [R, H, W, D] in blocks, of which each query's first is its own; a query in no block gets 0."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        query, key, value, blocks, scale = inputs
        out = torch.zeros_like(query)
        logsumexp = query.new_zeros(query.shape[:3], dtype=torch.float32)
        for row, query_from, query_to, key_from, key_to, is_own in blocks:
            at, to = _part(row, query_from, query_to), _part(row, key_from, key_to)
            attended, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[at], key[to], value[to], 0.0, bool(is_own), scale=scale
            )
            if is_own:
                out[at], logsumexp[at] = attended, lse
            else:  # the weight that this block has beside those before it
                share = torch.sigmoid(lse - logsumexp[at])[..., None]
                out[at] = torch.lerp(out[at].float(), attended.float(), share).to(out.dtype)
                logsumexp[at] = torch.logaddexp(logsumexp[at], lse)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.blocks, ctx.scale = blocks, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, out, logsumexp = ctx.saved_tensors
        of_query, of_key, of_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for row, query_from, query_to, key_from, key_to, is_own in ctx.blocks:
            at, to = _part(row, query_from, query_to), _part(row, key_from, key_to)
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradients[0][at],
                query[at],
                key[to],
                value[to],
                out[at],
                logsumexp[at],
                0.0,
                bool(is_own),
                scale=ctx.scale,
            )
            of_query[at] += parts[0]
            of_key[to] += parts[1]
            of_value[to] += parts[2]
        return of_query, of_key, of_value, None, None


def _part(row: int, start: int, end: int) -> tuple[slice, slice, slice]:
    """Return the index of a row's tokens in [R, H, W, D]."""
    return slice(row, row + 1), slice(None), slice(start, end)
