"""Returns and generalised advantages over the sampled tokens, which alone are time steps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rllm_gym.algorithms.functional.masking import Sampled, as_float, hide

EPSILON = 1e-12


@torch.no_grad()
def discounted_return(
    reward_BT: torch.Tensor, mask_BT: torch.Tensor, *, gamma: float, is_turn_end_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the discounted sum of rewards from each sampled token on.

        G_k = r_k + gamma G_(k+1),  k over the sampled tokens of a row

    Source: Hu et al. 2025 (REINFORCE++), arXiv:2501.03262; once per turn, as a step's return, Feng et al. 2025
    (GiGPO), arXiv:2505.10978.

    Differs: from single-turn implementations, which discount over every position: the tokens of an environment's reply
    are no time steps, so a longer reply discounts nothing.

    Args:
        reward_BT: float, the rewards; only those on sampled tokens count.
        mask_BT: bool, True where the policy sampled the token.
        gamma: discount per sampled token, 0 to 1.
        is_turn_end_BT: bool, True at the last sampled token of each turn: gamma then counts once per turn, there, and
            is 1 within it.

    Returns:
        float [B, T], without gradient.
    """
    sampled = Sampled(mask_BT)
    reward_BK = sampled.gather(as_float(reward_BT))
    discount_BK = torch.ones_like(reward_BK).masked_fill(_steps(sampled, is_turn_end_BT), gamma)
    return sampled.scatter(_backward_sum(reward_BK, discount_BK))


@torch.no_grad()
def gae(
    reward_BT: torch.Tensor,
    value_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    bootstrap_B: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    is_turn_end_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return generalised advantages and the value targets.

        delta_k = r_k + gamma V_(k+1) - V_k,  k over the sampled tokens of a row; V after the last one is the bootstrap
        A_k = delta_k + gamma lam A_(k+1)
        target_k = A_k + V_k

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.

    Differs: from single-turn implementations: the last token of a turn bootstraps from the first sampled token of the
    next turn, since the environment's reply between them is no time step. verl's walks in the same way but has no
    bootstrap, so that a truncated episode counts as terminated, and whitens the advantages at once.

    Args:
        reward_BT: float, the rewards; only those on sampled tokens count.
        value_BT: float, the value of the state in which each token was sampled.
        mask_BT: bool, True where the policy sampled the token.
        bootstrap_B: float, the value after the last sampled token: 0 where the episode terminated, the critic's where
            it was truncated.
        gamma, lam: discount and trace decay per sampled token, 0 to 1.
        is_turn_end_BT: bool, True at the last sampled token of each turn: gamma and lam then count once per turn,
            there, and are 1 within it.

    Returns:
        (advantage, target), float [B, T], without gradient.
    """
    sampled = Sampled(mask_BT)
    value_BK, steps_BK = sampled.gather(as_float(value_BT)), _steps(sampled, is_turn_end_BT)
    gamma_BK = torch.ones_like(value_BK).masked_fill(steps_BK, gamma)
    decay_BK = torch.ones_like(value_BK).masked_fill(steps_BK, gamma * lam)
    next_value_BK = torch.where(sampled.is_last_BK, bootstrap_B[:, None].to(value_BK.dtype), value_BK.roll(-1, dims=1))
    delta_BK = sampled.gather(reward_BT) + gamma_BK * next_value_BK - value_BK
    advantage_BK = _backward_sum(hide(delta_BK, sampled.is_filled_BK), decay_BK)
    return sampled.scatter(advantage_BK), sampled.scatter(advantage_BK + value_BK)


@torch.no_grad()
def explained_variance(
    value_BT: torch.Tensor,
    return_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    all_reduce: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> float:
    """Return how much of the returns' variance the values account for.

        1 - Var(R - V) / Var(R)

    1 is a perfect critic, 0 one that is no better than a constant, below 0 a worse one; 0 where all returns are equal.

    Args:
        value_BT, return_BT: float, the critic's values and the value targets (see `gae`).
        mask_BT: bool, True where the policy sampled the token.
        all_reduce: returns a float64 tensor summed over all learners; called twice. Every learner must take part.
    """
    reduce = all_reduce or (lambda tensor: tensor)
    return_BT, value_BT = hide(return_BT, mask_BT).double(), hide(value_BT, mask_BT).double()
    both_2BT = torch.stack([return_BT - value_BT, return_BT])
    count = mask_BT.sum().double()
    total_3 = reduce(torch.stack([count, *both_2BT.sum((1, 2))])).to(both_2BT.device)
    mean_2 = total_3[1:] / total_3[0].clamp(min=1)
    squares_2 = reduce((hide(both_2BT - mean_2[:, None, None], mask_BT) ** 2).sum((1, 2)))
    error, variance = squares_2.tolist()
    is_spread = variance > EPSILON * total_3[0].item()  # not by rounding alone
    return 1 - error / variance if is_spread else 0.0


def _steps(sampled: Sampled, is_turn_end_BT: torch.Tensor | None) -> torch.Tensor:
    """Return bool [B, K], True where a time step ends: after every sampled token, or after each turn's last one."""
    return sampled.is_filled_BK if is_turn_end_BT is None else sampled.gather(is_turn_end_BT)


def _backward_sum(x_BK: torch.Tensor, discount_BK: torch.Tensor) -> torch.Tensor:
    """Return y_k = x_k + discount_k y_(k+1), with 0 after the last column."""
    # By doubling: before each pass y_k sums `reach` steps from k on, and discount_k leads over as many. Twelve passes
    # over 4,096 columns take a tenth of the time of a loop over the columns.
    y_BK, discount_BK, reach = x_BK.clone(), discount_BK.clone(), 1
    while reach < x_BK.shape[1]:
        y_BK[:, :-reach] += discount_BK[:, :-reach] * y_BK[:, reach:]
        discount_BK[:, :-reach] = discount_BK[:, :-reach] * discount_BK[:, reach:]
        reach *= 2
    return y_BK
