"""Advantages: how much better a return was than expected."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rllm_gym.algorithms.functional.masking import as_float, hide
from rllm_gym.algorithms.functional.returns import discounted_return

EPSILON = 1e-6


def _group_index(group_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (index_N into the groups 0..G-1, size_G)."""
    _, index_N, size_G = torch.unique(group_N, return_inverse=True, return_counts=True)
    return index_N, size_G


def _group_sum(x_N: torch.Tensor, index_N: torch.Tensor, size_G: torch.Tensor) -> torch.Tensor:
    return x_N.new_zeros(len(size_G)).index_add(0, index_N, x_N)


def group_relative_advantage(return_N: torch.Tensor, group_N: torch.Tensor, *, normalize_std: bool) -> torch.Tensor:
    """Return each return minus its group's mean, over the group's standard deviation.

        A_n = (R_n - mean(R in group)) / (std(R in group) + 1e-6)

    Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 4.1.2; without the division
    (`normalize_std=False`) Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.

    Differs: a group of one episode has no mean to compare with and gets 0 (verl keeps its return).

    Args:
        return_N: float, one return per episode.
        group_N: int, which group each return belongs to; any labels, in any order.
        normalize_std: divide by the sample standard deviation (n - 1).

    Returns:
        float [N]; sums to 0 in every group, exactly 0 where all returns of the group are equal.
    """
    return_N = as_float(return_N)
    index_N, size_G = _group_index(group_N)
    mean_G = _group_sum(return_N, index_N, size_G) / size_G
    # Rounding in the mean of equal returns, over a deviation of 0, would pass for an advantage.
    centred_N = (return_N - mean_G[index_N]).masked_fill(~has_spread(return_N, group_N), 0.0)
    if not normalize_std:
        return centred_N
    variance_G = _group_sum(centred_N**2, index_N, size_G) / (size_G - 1).clamp(min=1)
    return centred_N / (variance_G.sqrt()[index_N] + EPSILON)


def leave_one_out_advantage(return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    """Return each return minus the mean of the others of its group.

        A_n = R_n - mean(R in group without n) = n/(n - 1) (R_n - mean(R in group))

    Source: Ahmadian et al. 2024 (RLOO), arXiv:2402.14740, section 4.2; Kool et al. 2019, "Buy 4 REINFORCE samples, get
    a baseline for free".

    Differs: a group of one episode has no others and gets 0 (verl keeps its return).

    Args:
        return_N: float, one return per episode.
        group_N: int, which group each return belongs to; any labels, in any order.

    Returns:
        float [N]; sums to 0 in every group.
    """
    index_N, size_G = _group_index(group_N)
    size_N = size_G[index_N]
    return group_relative_advantage(return_N, group_N, normalize_std=False) * size_N / (size_N - 1).clamp(min=1)


def greedy_baseline_advantage(
    return_N: torch.Tensor, group_N: torch.Tensor, greedy_return_G: torch.Tensor, greedy_group_G: torch.Tensor
) -> torch.Tensor:
    """Return each return minus that of the greedily decoded episode of the same task.

        A_n = R_n - R_greedy(group of n)

    Source: Li et al. 2023 (ReMax), arXiv:2310.10505, algorithm 2.

    Args:
        return_N, group_N: the sampled episodes' returns, and which group each belongs to.
        greedy_return_G, greedy_group_G: one greedy return per group, and its group; every group of `group_N` is there.

    Raises:
        ValueError: a group without a greedy return.
    """
    is_mine_NG = group_N[:, None] == greedy_group_G[None, :]
    if not is_mine_NG.any(1).all():
        missing = sorted(set(group_N.tolist()) - set(greedy_group_G.tolist()))
        raise ValueError(
            f"greedy_baseline_advantage: every group needs a greedy return; got none for {missing}. "
            "Play one greedy episode per group."
        )
    return return_N - greedy_return_G[is_mine_NG.int().argmax(1)]


def step_group_advantage(
    reward_NU: torch.Tensor,
    state_NU: torch.Tensor,
    mask_NU: torch.Tensor,
    group_N: torch.Tensor,
    *,
    gamma: float,
    normalize_std: bool,
    step_weight: float = 1.0,
) -> torch.Tensor:
    """Return one advantage per turn: the episode's among its group, plus the turn's among those from the same state.

        A_nu = A(R_n among group) + step_weight A(G_nu among the turns of the group with the same state)
        R_n = sum_u r_nu,  G_nu = r_nu + gamma G_n(u+1);  A(...) is `group_relative_advantage`

    Source: Feng et al. 2025 (GiGPO), arXiv:2505.10978.

    Args:
        reward_NU: float, [N episodes, U turns], the reward of each turn.
        state_NU: int, a label of the state that each turn began in; equal labels, equal states. Labels are compared
            within a group only.
        mask_NU: bool, True where the episode has a turn.
        group_N: int, which group each episode belongs to.
        gamma: discount per turn of the step return.
        normalize_std: divide both advantages by their groups' sample standard deviation.
        step_weight: weight of the turn's advantage (omega in the paper).

    Returns:
        float [N, U], 0 where the episode has no turn. A state met once adds nothing to the episode's advantage.
    """
    reward_NU = as_float(reward_NU)
    episode_N = group_relative_advantage(hide(reward_NU, mask_NU).sum(1), group_N, normalize_std=normalize_std)
    return_S = discounted_return(reward_NU, mask_NU, gamma=gamma)[mask_NU]
    # The unique pairs (group, state), numbered.
    pair_S2 = torch.stack([group_N[:, None].expand_as(state_NU)[mask_NU], state_NU[mask_NU]], dim=1)
    anchor_S = torch.unique(pair_S2, dim=0, return_inverse=True)[1]
    step_NU = torch.zeros_like(reward_NU)
    step_NU[mask_NU] = group_relative_advantage(return_S, anchor_S, normalize_std=normalize_std)
    return hide(episode_N[:, None] + step_weight * step_NU, mask_NU)


@torch.no_grad()
def whiten(
    x_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    all_reduce: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return x shifted and scaled to mean 0 and sample variance 1 over the masked-in values.

    Source: of advantages over the whole batch, Hu et al. 2025 (REINFORCE++), arXiv:2501.03262.

    Differs: from RLlib's `standardized`, which knows no mask and only its own learner's rows. A single value, or values
    that are all equal, have no deviation and come out as 0.

    Args:
        x_BT: float, any values; those that the mask hides do not count.
        mask_BT: bool, True where the policy sampled the token.
        all_reduce: returns a float64 tensor summed over all learners, to whiten over all their values; called twice.
            Every learner must take part, with an empty mask, too.

    Returns:
        float [B, T], 0 where the mask is False, without gradient.
    """
    reduce = all_reduce or (lambda tensor: tensor)
    x_BT = as_float(x_BT)
    hidden_BT = hide(x_BT, mask_BT).double()
    count, total = reduce(torch.stack([mask_BT.sum().double(), hidden_BT.sum()])).to(x_BT.device).unbind()
    centred_BT = hide(hidden_BT - total / count.clamp(min=1), mask_BT)
    squares = reduce((centred_BT**2).sum()).to(x_BT.device)
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    return (centred_BT / (deviation + 1e-8)).to(x_BT.dtype)


def has_spread(return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    """Return bool [N]: False where all returns of the group are equal, so that the group carries no signal.

    Source: the groups that dynamic sampling filters out, Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.2.
    """
    return_N = as_float(return_N)
    index_N, size_G = _group_index(group_N)
    lowest_G = torch.full((len(size_G),), torch.inf, dtype=return_N.dtype, device=return_N.device)
    lowest_G = lowest_G.scatter_reduce(0, index_N, return_N, "amin")
    highest_G = (-torch.full_like(lowest_G, torch.inf)).scatter_reduce(0, index_N, return_N, "amax")
    return (highest_G > lowest_G)[index_N]
