"""Losses and estimators over the sampled tokens of a batch."""

from __future__ import annotations

import torch


def clipped_surrogate(
    logp_BT: torch.Tensor,
    old_logp_BT: torch.Tensor,
    advantage_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    num_tokens: float | torch.Tensor,
    weight_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the PPO-clip loss, averaged over the tokens of the whole train step.

        L = -(1/N) sum_bt m_bt w_bt min(r_bt A_bt, clip(r_bt, 1 - clip_low, 1 + clip_high) A_bt)
        r_bt = exp(logp_bt - old_logp_bt)

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; two clip values and the average over tokens rather than over
    sequences: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 8.

    Differs: from RLlib's PPO, which averages over the rows of a minibatch; N counts the tokens of all micro-batches and
    ranks.

    Args:
        logp_BT, old_logp_BT: float, log-probability of the sampled token now and when it was sampled.
        advantage_BT: float, [B, T] or [B, 1].
        mask_BT: bool, True where the policy sampled the token (not prompt, env reply or padding).
        clip_low, clip_high: how far the ratio may fall below and rise above 1.
        num_tokens: N, sampled tokens over all micro-batches and ranks, so that gradient accumulation equals one large
            batch.
        weight_BT: float, importance weights of the tokens (see `truncated_importance_weight`); no gradient flows
            through them.

    Returns:
        float scalar.
    """
    # Masked before exp: a padding slot's garbage can overflow, and inf * 0 is nan.
    log_ratio_BT = _masked_difference(logp_BT, old_logp_BT, mask_BT)
    advantage_BT = advantage_BT.expand_as(mask_BT).masked_fill(~mask_BT, 0.0)
    ratio_BT = log_ratio_BT.exp()
    gain_BT = torch.minimum(ratio_BT * advantage_BT, ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantage_BT)
    if weight_BT is not None:
        gain_BT = gain_BT * weight_BT.detach().masked_fill(~mask_BT, 0.0)
    return -gain_BT.sum() / num_tokens


def kl_estimate(logp_BT: torch.Tensor, ref_logp_BT: torch.Tensor, *, kind: str) -> torch.Tensor:
    """Return per-token estimates of KL(policy || reference) for tokens that the policy sampled.

        k1 = logp - ref_logp;  k2 = k1^2 / 2;  k3 = exp(-k1) - 1 + k1

    Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html); k3, never negative and of low
    variance, is the one of DeepSeekMath, arXiv:2402.03300, eq. 4.

    Returns:
        float, the shape of the inputs; the caller masks.

    Raises:
        ValueError: for an unknown kind.
    """
    difference_BT = logp_BT - ref_logp_BT
    if kind == "k1":
        return difference_BT
    if kind == "k2":
        return difference_BT**2 / 2
    if kind == "k3":
        return torch.expm1(-difference_BT) + difference_BT
    raise ValueError(f"kl_estimate: kind must be k1, k2 or k3; got {kind!r}. k3 is the low-variance one.")


def truncated_importance_weight(
    logp_BT: torch.Tensor, sampler_logp_BT: torch.Tensor, mask_BT: torch.Tensor, *, cap: float
) -> torch.Tensor:
    """Return min(exp(logp - sampler_logp), cap): corrects for a sampler whose probabilities differ from the trainer's.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training" (truncated
    importance sampling); Espeholt et al. 2018 (IMPALA), arXiv:1802.01561, rho-bar in eq. 1.

    Args:
        logp_BT: float, the trainer's log-probabilities before the update.
        sampler_logp_BT: float, as recorded by the sampler.
        mask_BT: bool, True where the policy sampled the token.
        cap: the largest weight.

    Returns:
        float [B, T], 0 where the mask is False.
    """
    log_ratio_BT = _masked_difference(logp_BT, sampler_logp_BT, mask_BT)
    return log_ratio_BT.exp().clamp(max=cap) * mask_BT


def _masked_difference(a_BT: torch.Tensor, b_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    # Each side is masked on its own: nan - x is nan, and its gradient would be too.
    return a_BT.masked_fill(~mask_BT, 0.0) - b_BT.masked_fill(~mask_BT, 0.0)
