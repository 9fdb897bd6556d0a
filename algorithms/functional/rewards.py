"""Rewards: what shapes them, and which episodes they keep."""

from __future__ import annotations

import torch

from rllm_gym.algorithms.functional.losses import hide, kl_estimate
from rllm_gym.ties import reaches


def kl_shaped_reward(
    reward_BT: torch.Tensor,
    logp_BT: torch.Tensor,
    ref_logp_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    kl_coeff: float,
    kind: str = "k1",
) -> torch.Tensor:
    """Return the rewards less a penalty on every sampled token for straying from the reference.

        r'_bt = r_bt - kl_coeff KL_bt

    Source: Ziegler et al. 2019, arXiv:1909.08593, eq. 2; per token Ouyang et al. 2022 (InstructGPT), arXiv:2203.02155,
    section 3.5, and Hu et al. 2025 (REINFORCE++), arXiv:2501.03262.

    Args:
        reward_BT: float, the rewards, a turn's on its last token.
        logp_BT, ref_logp_BT: float, of the sampling policy (before the update) and of the reference.
        mask_BT: bool, True where the policy sampled the token.
        kl_coeff: weight of the penalty.
        kind: the estimator, see `kl_estimate`.

    Returns:
        float [B, T], without gradient: a reward is data.
    """
    kl_BT = kl_estimate(logp_BT.detach(), ref_logp_BT.detach(), kind=kind, mask_BT=mask_BT)
    return hide(reward_BT.detach(), mask_BT) - kl_coeff * kl_BT


def soft_overlong_penalty(num_tokens_N: torch.Tensor, *, max_tokens: int, buffer: int) -> torch.Tensor:
    """Return the penalty, -1 to 0, to add to the return of an episode that is nearly or entirely too long.

        0                                 n <= max_tokens - buffer
        (max_tokens - buffer - n) / buffer       up to max_tokens
        -1                                beyond

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.

    Args:
        num_tokens_N: int, sampled tokens of each episode.
        max_tokens: where the penalty is whole.
        buffer: over how many tokens it grows; 0 makes a step of it.
    """
    excess_N = (num_tokens_N - (max_tokens - buffer)).float()
    return -(excess_N / max(buffer, 1e-9)).clamp(0.0, 1.0)


def evolution_weight(
    return_N: torch.Tensor, *, kind: str, threshold: float = 1.0, size_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Return how much each sampled episode counts when the policy is trained on its own episodes.

        threshold: 1 where R >= threshold (within 1e-9, see `rllm_gym.ties`), else 0
        reward:    R held within 0 and 1: the chance that the episode is a success, given its reward

    Source: Xi et al. 2024 (AgentGym, AgentEvol), arXiv:2406.04151: its M-step weighs log-likelihoods by the reward,
    which for rewards of 0 and 1 keeps the successes.

    Args:
        size_N: float, how large the rewards were that a return sums up; None takes its own size.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind == "threshold":
        size_N = return_N.abs() if size_N is None else size_N
        return reaches(return_N, threshold, size_N).to(return_N.dtype)
    if kind == "reward":
        return return_N.clamp(0.0, 1.0)
    raise ValueError(f"evolution_weight: kind must be threshold or reward; got {kind!r}.")
