"""Advantages: how much better a return was than expected."""

from __future__ import annotations

import torch

EPSILON = 1e-6


def _group_index(group_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (index_N into the groups 0..G-1, size_G)."""
    _, index_N, size_G = torch.unique(group_N, return_inverse=True, return_counts=True)
    return index_N, size_G


def group_relative_advantage(return_N: torch.Tensor, group_N: torch.Tensor, *, normalize_std: bool) -> torch.Tensor:
    """Return each return minus its group's mean, over the group's standard deviation.

        A_n = (R_n - mean(R in group)) / (std(R in group) + 1e-6)

    Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 4.1.2; without the division
    (`normalize_std=False`) Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.

    Differs: a group of one episode has no mean to compare with and gets 0.

    Args:
        return_N: float, one return per episode.
        group_N: int, which group each return belongs to; any labels, in any order.
        normalize_std: divide by the sample standard deviation (n - 1).

    Returns:
        float [N]; sums to 0 in every group.
    """
    index_N, size_G = _group_index(group_N)
    zero_G = torch.zeros(len(size_G), dtype=return_N.dtype, device=return_N.device)
    mean_G = zero_G.index_add(0, index_N, return_N) / size_G
    centred_N = return_N - mean_G[index_N]
    if not normalize_std:
        return centred_N
    variance_G = zero_G.index_add(0, index_N, centred_N**2) / (size_G - 1).clamp(min=1)
    return centred_N / (variance_G.sqrt()[index_N] + EPSILON)


def has_spread(return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    """Return bool [N]: False where all returns of the group are equal, so that the group carries no signal.

    Source: the groups that dynamic sampling filters out, Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.2.
    """
    index_N, size_G = _group_index(group_N)
    lowest_G = torch.full((len(size_G),), torch.inf, dtype=return_N.dtype, device=return_N.device)
    lowest_G = lowest_G.scatter_reduce(0, index_N, return_N, "amin")
    highest_G = (-torch.full_like(lowest_G, torch.inf)).scatter_reduce(0, index_N, return_N, "amax")
    return (highest_G > lowest_G)[index_N]
