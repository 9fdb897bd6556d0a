"""Log-probabilities of sampled tokens, a chunk at a time, so that no [B, T, vocabulary] tensor ever exists."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 2**25  # 128 MiB in float32; softmax and its gradient take about four times that


def sampled_logps(
    hidden_NH: torch.Tensor,
    target_N: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    *,
    temperature: float,
    chunk_tokens: int,
    num_chunks: int = 1,
    has_entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each target's log-probability and the entropy of the distribution it was drawn from.

    The head is recomputed in the backward pass, so at most `chunk_tokens` rows of logits are alive.

    Args:
        hidden_NH: hidden state that predicts each target.
        target_N: int64, the sampled tokens.
        head: hidden states to logits, `[n, H] -> [n, V]`.
        temperature: what the sampler divided the logits by; 0 (greedy) counts as 1.
        chunk_tokens: rows of logits that are alive at once, see `tokens_per_chunk`.
        num_chunks: call the head at least so often, with nothing if need be: under ZeRO-3 every call gathers weights
            from all ranks, so all must make the same number.
        has_entropy_gradient: whether the loss uses the entropy. If it did not, what the backward pass recomputes for it
            would never be consumed, and stay alive to the end.

    Returns:
        (logp_N, entropy_N), float32.
    """
    logps, entropies = [], []
    for k in range(max(num_chunks, count_chunks(len(target_N), chunk_tokens))):
        part = slice(k * chunk_tokens, (k + 1) * chunk_tokens)
        logp, entropy = checkpoint(
            _chunk,
            hidden_NH[part],
            target_N[part],
            head,
            temperature or 1.0,
            has_entropy_gradient,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        logps.append(logp)
        entropies.append(entropy)
    return torch.cat(logps), torch.cat(entropies)


def tokens_per_chunk(vocab_size: int) -> int:
    """Return how many tokens' logits are computed at once."""
    return max(1, CHUNK_LOGITS // vocab_size)


def count_chunks(num_tokens: int, chunk_tokens: int) -> int:
    """Return how many chunks `num_tokens` sampled tokens make; at least one, so that every backward pass has a head."""
    return max(1, -(-num_tokens // chunk_tokens))


def _chunk(
    hidden_NH: torch.Tensor,
    target_N: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    temperature: float,
    has_entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    all_logp_NV = torch.log_softmax(head(hidden_NH).float() / temperature, -1)
    logp_N = all_logp_NV.gather(-1, target_N[:, None])[:, 0]
    with torch.set_grad_enabled(has_entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(all_logp_NV.exp() * all_logp_NV).sum(-1)
    return logp_N, entropy_N
