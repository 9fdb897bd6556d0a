"""Advantages of several agents: of a team that is compared as one, and of roles that can earn differently much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rllm_gym.algorithms.functional.advantages import Compare, tied


def joint_advantage(
    return_N: torch.Tensor,
    others_return_N: torch.Tensor,
    group_N: torch.Tensor,
    *,
    compare: Compare,
    size_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return one advantage for a team: how its joint return compares with those of the group's other episodes.

        A_n = A(R_n + sum of the returns of the episode's other agents, among group);  the same for every agent

    Source: Liu et al. 2025 (MAGRPO), arXiv:2508.04652; in the authors' code (CoMLRL, `advantage_mode: mean`) A is the
    return less the mean, without a division (`normalize_std=False`).

    Differs: the whole episode's return is compared; CoMLRL compares discounted returns turn by turn.

    Args:
        return_N: float, what the row's agent has earned.
        others_return_N: float, what all other agents of its episode have earned.
        group_N: int, which group each row belongs to: one role's rows of one task.
        compare: (returns, groups) to advantages, such as `group_relative_advantage`.
        size_N: float, how large the rewards were that both sum up, see `rllm_gym.ties`; None takes the returns' sizes.
    """
    size_N = return_N.abs() + others_return_N.abs() if size_N is None else size_N
    return compare(tied(return_N + others_return_N, size_N, group_N), group_N)


def role_advantage(
    return_N: torch.Tensor, roles: Sequence[str], baseline: Mapping[str, float], *, decay: float
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return each return less its role's baseline, a moving average of the role's returns; and the new baselines.

    One after another, for the roles of a game may differ in what they can earn:

        A_n = R_n - b_role;  then  b_role <- decay b_role + (1 - decay) R_n

    Source: Liu et al. 2025 (SPIRAL, role-conditioned advantage estimation), arXiv:2506.24119, in the order of the
    authors' code (`train_spiral.py`: "Get the baseline before updating to be unbiased"): with decay 0.95, baseline 0
    and return 1 the first advantage is 1.

    Differs: from the paper's algorithm, which moves the baseline first. That gives decay (R_n - b_role), here 0.95: the
    same up to the factor.

    Args:
        return_N: float, one return per row, in the order in which the baselines move.
        roles: the role of each row, such as game and seat.
        baseline: of each role; 0 for one that is not there.
        decay: 0 to 1, weight of the old baseline.

    Returns:
        (float64 [N], the baselines after all rows).
    """
    moved, advantages = dict(baseline), []
    for value, role in zip(return_N.tolist(), roles, strict=True):
        before = moved.get(role, 0.0)
        advantages.append(value - before)
        moved[role] = decay * before + (1 - decay) * value
    return torch.tensor(advantages, dtype=torch.float64), moved
