"""Log-probabilities of sampled tokens, a chunk at a time, so that no [B, T, vocabulary] tensor ever exists."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 1024


def sampled_logps(
    hidden_NH: torch.Tensor,
    target_N: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    *,
    temperature: float,
    num_chunks: int = 1,
    chunk_tokens: int = CHUNK_TOKENS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each target's log-probability and the entropy of the distribution it was drawn from.

    The head is recomputed in the backward pass, so at most `chunk_tokens` rows of logits are alive.

    Args:
        hidden_NH: hidden state that predicts each target.
        target_N: int64, the sampled tokens.
        head: hidden states to logits, `[n, H] -> [n, V]`.
        temperature: what the sampler divided the logits by; 0 (greedy) counts as 1.
        num_chunks: call the head at least so often, with nothing if need be: under ZeRO-3 every call gathers weights
            from all ranks, so all must make the same number.

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
            use_reentrant=False,
            preserve_rng_state=False,
        )
        logps.append(logp)
        entropies.append(entropy)
    return torch.cat(logps), torch.cat(entropies)


def count_chunks(num_tokens: int, chunk_tokens: int = CHUNK_TOKENS) -> int:
    """Return how many chunks `num_tokens` sampled tokens make; at least one, so that every backward pass has a head."""
    return max(1, -(-num_tokens // chunk_tokens))


def _chunk(
    hidden_NH: torch.Tensor, target_N: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    all_logp_NV = torch.log_softmax(head(hidden_NH).float() / temperature, -1)
    logp_N = all_logp_NV.gather(-1, target_N[:, None])[:, 0]
    return logp_N, -(all_logp_NV.exp() * all_logp_NV).sum(-1)
