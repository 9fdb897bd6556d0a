"""How far the policy is from its reference, and how strongly it is held there."""

from __future__ import annotations

import torch

from rllm_gym.algorithms.functional.masking import hide

KL_KINDS = ("k1", "k2", "k3", "low_variance")


def kl_estimate(
    logp_BT: torch.Tensor, ref_logp_BT: torch.Tensor, *, kind: str, mask_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """Return per-token estimates of KL(policy || reference) for tokens that the policy sampled.

        k1 = logp - ref_logp;  k2 = k1^2 / 2;  k3 = exp(-k1) - 1 + k1
        low_variance = min(k3, 10) with k1 held within +-20

    Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html); k3, never negative and of low
    variance, is the one of DeepSeekMath, arXiv:2402.03300, eq. 4; `low_variance` is verl's `low_var_kl`, which stays
    finite where the reference all but excludes a token. As a loss only k2 has the gradient of the KL, as a penalty in
    the reward k1 is the unbiased one: Tang and Munos 2025, arXiv:2506.09477.

    Args:
        logp_BT, ref_logp_BT: float, log-probability of the sampled token under the policy and the reference.
        kind: `k1`, `k2`, `k3` or `low_variance`.
        mask_BT: bool, True where the policy sampled the token; without it the caller masks.

    Returns:
        float, the shape of the inputs.

    Raises:
        ValueError: for an unknown kind.
    """
    if mask_BT is not None:
        logp_BT, ref_logp_BT = hide(logp_BT, mask_BT), hide(ref_logp_BT, mask_BT)
    k1_BT = logp_BT - ref_logp_BT
    if kind == "k1":
        return k1_BT
    if kind == "k2":
        return k1_BT**2 / 2
    if kind == "k3":
        return torch.expm1(-k1_BT) + k1_BT
    if kind == "low_variance":
        k1_BT = k1_BT.clamp(-20.0, 20.0)
        return (torch.expm1(-k1_BT) + k1_BT).clamp(max=10.0)
    raise ValueError(
        f"kl_estimate: kind must be k1, k2, k3 or low_variance; got {kind!r}. k3 is the one of DeepSeekMath."
    )


def adaptive_kl_coeff(kl_coeff: float, kl: float, *, target: float, rate: float = 0.1) -> float:
    """Return the coefficient of the next train step: larger where the policy strayed beyond the target, else smaller.

        e = clip(kl / target - 1, -0.2, 0.2);  kl_coeff' = kl_coeff (1 + rate e)

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2; rate 0.1 is theirs. TRL and verl write `rate` as samples
    per step / horizon.

    Args:
        kl_coeff: the coefficient of this train step.
        kl: its mean KL to the reference, nats per token, over all learners.
        target: the KL to hold, above 0.
        rate: how much of the clipped error is applied.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coeff * (1 + rate * error)
