"""Advantages: how much better a return was than expected; and the returns and value targets beside them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from rllm_gym.algorithms.functional.losses import check_mask, hide
from rllm_gym.ties import TIE, tie

EPSILON = 1e-6  # beside a deviation; 1 % of one of 1e-4
Compare = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (return_N, group_N) -> advantage_N


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
        float [N]; sums to 0 in every group, exactly 0 where all returns of the group are equal (see `has_spread`). The
        epsilon is the published one: it takes 1 % off advantages where the deviation is 1e-4, half where it is 1e-6.
    """
    centred_N = _centred(return_N, group_N)
    return centred_N / (_deviation(centred_N, group_N) + EPSILON) if normalize_std else centred_N


def group_deviation(return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    """Return the sample standard deviation (n - 1) of each return's group, float [N]; 0 where all are equal."""
    return _deviation(_centred(return_N, group_N), group_N)


def _centred(return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    return_N = _as_float(return_N)
    index_N, size_G = _group_index(group_N)
    mean_G = _group_sum(return_N, index_N, size_G) / size_G
    # Rounding in the mean of equal returns, over a deviation of 0, would pass for an advantage.
    return (return_N - mean_G[index_N]).masked_fill(~has_spread(return_N, group_N), 0.0)


def _deviation(centred_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    index_N, size_G = _group_index(group_N)
    variance_G = _group_sum(centred_N**2, index_N, size_G) / (size_G - 1).clamp(min=1)
    return variance_G.sqrt()[index_N]


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
    return_N: torch.Tensor,
    group_N: torch.Tensor,
    greedy_return_G: torch.Tensor,
    greedy_group_G: torch.Tensor,
    *,
    size_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return each return minus that of the greedily decoded episode of the same task.

        A_n = R_n - R_greedy(group of n)

    Source: Li et al. 2023 (ReMax), arXiv:2310.10505, algorithm 2.

    Args:
        return_N, group_N: the sampled episodes' returns, and which group each belongs to.
        greedy_return_G, greedy_group_G: one greedy return per group, and its group; every group of `group_N` is there.
        size_N: float, how large the rewards were that a return sums up (see `rllm_gym.ties`); None takes its own size.

    Returns:
        float [N]; exactly 0 where the returns are equal within 1e-9 of their size.

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
    baseline_N = greedy_return_G[is_mine_NG.int().argmax(1)]
    size_N = (return_N.abs() if size_N is None else size_N) + baseline_N.abs()
    difference_N = return_N - baseline_N
    return difference_N.masked_fill(difference_N.abs() <= TIE * size_N, 0.0)


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
    reward_NU = _as_float(reward_NU)
    compare = functools.partial(group_relative_advantage, normalize_std=normalize_std)
    hidden_NU = hide(reward_NU, mask_NU)
    episode_N = compare(tied(hidden_NU.sum(1), hidden_NU.abs().sum(1), group_N), group_N)
    step_NU = turn_advantage(reward_NU, state_NU, mask_NU, group_N, gamma=gamma, compare=compare)
    return hide(episode_N[:, None] + step_weight * step_NU, mask_NU)


def turn_advantage(
    reward_NU: torch.Tensor,
    label_NU: torch.Tensor,
    mask_NU: torch.Tensor,
    group_N: torch.Tensor,
    *,
    gamma: float,
    compare: Compare,
) -> torch.Tensor:
    """Return how each turn's return compares with those of the group's turns that have the same label.

        A_nu = A(G_nu among the turns of the group with the label of turn nu),  G_nu = r_nu + gamma G_n(u+1)

    Source: with the turn's number as the label, and groups by task and agent, the agent- and turn-wise groups of Zhao
    et al. 2025 (AT-GRPO), arXiv:2510.11062; with a state as the label, the step-level groups of GiGPO.

    Differs: AT-GRPO branches at every turn, so that a group's turns have the same past, and compares a turn's own
    reward (gamma 0). Here whole episodes are sampled and turns of equal number may have different pasts.

    Args:
        reward_NU: float, [N rows, U turns], the reward of each turn.
        label_NU: int, compared within a group only.
        mask_NU: bool, True where the row has a turn.
        group_N: int, which group each row belongs to.
        gamma: discount per turn.
        compare: (returns [S], groups [S]) to advantages [S], such as `leave_one_out_advantage`.

    Returns:
        float [N, U], 0 where the row has no turn. What `compare` gives to a turn that is alone with its label stays.
    """
    reward_NU = _as_float(reward_NU)
    return_S, size_S = (discounted_return(x, mask_NU, gamma=gamma)[mask_NU] for x in (reward_NU, reward_NU.abs()))
    # The unique pairs (group, label), numbered.
    pair_S2 = torch.stack([group_N[:, None].expand_as(label_NU)[mask_NU], label_NU[mask_NU]], dim=1)
    anchor_S = torch.unique(pair_S2, dim=0, return_inverse=True)[1]
    advantage_NU = torch.zeros_like(reward_NU)
    advantage_NU[mask_NU] = compare(tied(return_S, size_S, anchor_S), anchor_S)
    return advantage_NU


def tied(return_N: torch.Tensor, size_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    """Return the returns, without gradient, with those of a group made equal that tie; see `rllm_gym.ties.tie`."""
    tied_N = tie(*(x_N.detach().cpu().numpy() for x_N in (return_N, size_N, group_N)))
    return torch.from_numpy(tied_N).to(return_N)


def has_spread(return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
    """Return bool [N]: False where all returns of the group are equal, so that the group carries no signal.

    Equal is what differs by no more than 1e-9 of the largest of them, which is rounding in the sums (`rllm_gym.ties`).

    Source: the groups that dynamic sampling filters out, Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.2.
    """
    return_N = _as_float(return_N)
    index_N, size_G = _group_index(group_N)
    lowest_G = torch.full((len(size_G),), torch.inf, dtype=return_N.dtype, device=return_N.device)
    lowest_G = lowest_G.scatter_reduce(0, index_N, return_N, "amin")
    highest_G = (-torch.full_like(lowest_G, torch.inf)).scatter_reduce(0, index_N, return_N, "amax")
    return (highest_G - lowest_G > TIE * torch.maximum(highest_G.abs(), lowest_G.abs()))[index_N]


@torch.no_grad()
def whiten(x_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return x shifted and scaled to mean 0 and sample variance 1 over the masked-in values.

    Source: of advantages over the whole batch, Hu et al. 2025 (REINFORCE++), arXiv:2501.03262.

    Differs: from RLlib's `standardized`, which knows no mask. A single value, or values that are all equal, or differ
    by their rounding alone (`rllm_gym.ties`), have no deviation and come out as 0.

    Args:
        x_BT: float, any values; those that the mask hides do not count.
        mask_BT: bool, True where the policy sampled the token.

    Returns:
        float [B, T], 0 where the mask is False, without gradient.
    """
    x_BT = _as_float(x_BT)
    hidden_BT, count = hide(x_BT, mask_BT).double(), mask_BT.sum()
    centred_BT = hide(hidden_BT - hidden_BT.sum() / count.clamp(min=1), mask_BT)
    deviation = ((centred_BT**2).sum() / (count - 1).clamp(min=1)).sqrt()
    root_mean_square = hidden_BT.norm() / count.clamp(min=1).sqrt()
    is_noise = deviation <= TIE * root_mean_square
    return (centred_BT / (deviation + 1e-8)).masked_fill(is_noise, 0.0).to(x_BT.dtype)


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
    sampled = _Sampled(mask_BT)
    reward_BK = sampled.gather(_as_float(reward_BT))
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
        bootstrap_B: float, the value after the last sampled token of the row: 0 where the episode ended, the critic's
            where it goes on, in another row or beyond a truncation.
        gamma, lam: discount and trace decay per sampled token, 0 to 1.
        is_turn_end_BT: bool, True at the last sampled token of each turn: gamma and lam then count once per turn,
            there, and are 1 within it.

    Returns:
        (advantage, target), float [B, T], without gradient.
    """
    sampled = _Sampled(mask_BT)
    value_BK, steps_BK = sampled.gather(_as_float(value_BT)), _steps(sampled, is_turn_end_BT)
    gamma_BK = torch.ones_like(value_BK).masked_fill(steps_BK, gamma)
    decay_BK = torch.ones_like(value_BK).masked_fill(steps_BK, gamma * lam)
    next_value_BK = torch.where(sampled.is_last_BK, bootstrap_B[:, None].to(value_BK.dtype), value_BK.roll(-1, dims=1))
    delta_BK = sampled.gather(reward_BT) + gamma_BK * next_value_BK - value_BK
    advantage_BK = _backward_sum(hide(delta_BK, sampled.is_filled_BK), decay_BK)
    return sampled.scatter(advantage_BK), sampled.scatter(advantage_BK + value_BK)


@torch.no_grad()
def explained_variance(value_BT: torch.Tensor, return_BT: torch.Tensor, mask_BT: torch.Tensor) -> float:
    """Return how much of the returns' variance the values account for.

        1 - Var(R - V) / Var(R)

    1 is a perfect critic, 0 one that is no better than a constant, below 0 a worse one; 0 where all returns are equal.

    Args:
        value_BT, return_BT: float, the critic's values and the value targets (see `gae`).
        mask_BT: bool, True where the policy sampled the token.
    """
    check_mask(mask_BT)
    return_N, value_N = return_BT[mask_BT].double(), value_BT[mask_BT].double()
    if not len(return_N):
        return 0.0
    variance, error = return_N.var(correction=0).item(), (return_N - value_N).var(correction=0).item()
    return 1 - error / variance if variance > 1e-12 else 0.0  # not by rounding alone


def _steps(sampled: _Sampled, is_turn_end_BT: torch.Tensor | None) -> torch.Tensor:
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


class _Sampled:
    """A view of [B, T] by sampled tokens alone: [B, K], each row's sampled tokens in order, then padding.

    To the methods only sampled tokens are time steps; here neighbours in time are neighbours in memory.
    """

    def __init__(self, mask_BT: torch.Tensor) -> None:
        check_mask(mask_BT)
        self.mask_BT = mask_BT
        self.num_B = mask_BT.sum(1)
        width = max(self.num_B.tolist(), default=0)
        slot_K = torch.arange(width, device=mask_BT.device)
        self.is_filled_BK = slot_K < self.num_B[:, None]
        self.is_last_BK = slot_K == self.num_B[:, None] - 1

    def gather(self, x_BT: torch.Tensor) -> torch.Tensor:
        """Return [B, K], 0 in the padding."""
        x_BK = x_BT.new_zeros(self.is_filled_BK.shape)
        x_BK[self.is_filled_BK] = x_BT.expand_as(self.mask_BT)[self.mask_BT]
        return x_BK

    def scatter(self, x_BK: torch.Tensor) -> torch.Tensor:
        """Return [B, T], 0 where the mask is False."""
        x_BT = x_BK.new_zeros(self.mask_BT.shape)
        x_BT[self.mask_BT] = x_BK[self.is_filled_BK]
        return x_BT


def _group_index(group_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (index_N into the groups 0..G-1, size_G)."""
    _, index_N, size_G = torch.unique(group_N, return_inverse=True, return_counts=True)
    return index_N, size_G


def _group_sum(x_N: torch.Tensor, index_N: torch.Tensor, size_G: torch.Tensor) -> torch.Tensor:
    return x_N.new_zeros(len(size_G)).index_add(0, index_N, x_N)


def _as_float(x: torch.Tensor) -> torch.Tensor:
    """Return x itself, or as floats what holds integers, of which a mean or a discount would be cut to integers."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())
