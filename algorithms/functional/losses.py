"""Losses per sampled token, and `aggregate`, which makes one number of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it

KL_KINDS = ("k1", "k2", "k3", "low_variance")
# Logarithms of ratios are held within +-20 before exp, as in verl: e^20 is 5e8, e^89 overflows float32.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Counts:
    """The divisors of a loss: counts of the whole minibatch, over all micro-batches and ranks.

    Attributes:
        tokens: sampled tokens; where they have weights, the sum of these.
        sequences: sequences with a sampled token. One is what an agent has sampled in an episode, in however many rows.
        episodes: episodes with a sampled token; an episode may be several rows, not all of them in this micro-batch.
        episode_tokens_B: int, the sampled tokens of the whole episode that each row of this micro-batch belongs to; for
            `over="episodes"`.
        sequence_tokens_B: int, those of the whole sequence that each row belongs to, for `over="sequences"`; None where
            every row is a sequence.
        constant: tokens, the longest that a sequence may be; for `over="constant"`.
    """

    tokens: torch.Tensor | float
    sequences: torch.Tensor | float
    episodes: torch.Tensor | float
    episode_tokens_B: torch.Tensor | None = None  # noqa: N815  a shape letter
    sequence_tokens_B: torch.Tensor | None = None  # noqa: N815
    constant: float | None = None


def aggregate(
    loss_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    over: Literal["tokens", "sequences", "episodes", "constant"],
    counts: Counts,
) -> torch.Tensor:
    """Return the average of a loss per token. What this gives for the micro-batches sums to the whole minibatch's.

        tokens:    (1/N) sum_bt                              all tokens count alike (DAPO)
        sequences: (1/M) sum_b (1/n_sequence(b)) sum_t       all sequences count alike, over their rows together (GRPO)
        episodes:  (1/E) sum_b (1/n_episode(b)) sum_t        all episodes count alike, over their rows together
        constant:  (1/(M c)) sum_bt                          a sum over tokens, scaled by a constant (Dr. GRPO)

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.3; Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300,
    eq. 3; Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783, section 3.

    Differs: from RLlib's PPO, which averages over the rows of a minibatch; N, M and E count all micro-batches and
    ranks, so that gradient accumulation equals one large batch.

    Args:
        loss_BT: float, the loss of each token.
        mask_BT: bool, True where the policy sampled the token (not prompt, env reply or padding).
        over: what counts alike.
        counts: N, M, E, n_sequence, n_episode and c.

    Returns:
        float scalar; 0, with a gradient of 0, where the mask is empty.

    Raises:
        ValueError: for an unknown `over`, or where `counts` lacks what it needs.
    """
    loss_BT = hide(loss_BT, mask_BT)
    if over == "tokens":
        return loss_BT.sum() / _or_1(counts.tokens)
    if over == "sequences":
        num_tokens_B = mask_BT.sum(1) if counts.sequence_tokens_B is None else counts.sequence_tokens_B
        return (loss_BT.sum(1) / num_tokens_B.clamp(min=1)).sum() / _or_1(counts.sequences)
    if over == "episodes" and counts.episode_tokens_B is not None:
        return (loss_BT.sum(1) / counts.episode_tokens_B.clamp(min=1)).sum() / _or_1(counts.episodes)
    if over == "constant" and counts.constant:
        return loss_BT.sum() / (_or_1(counts.sequences) * counts.constant)
    raise ValueError(
        "aggregate: over must be tokens, sequences, episodes (with counts.episode_tokens_B) or constant (with "
        f"counts.constant); got {over!r}."
    )


def probability_ratio(
    logp_BT: torch.Tensor,
    old_logp_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    level: Literal["token", "sequence"] = "token",
) -> torch.Tensor:
    """Return how much likelier the policy makes each sampled token than it did when it sampled it.

        token:    r_bt = exp(logp_bt - old_logp_bt)
        sequence: s_bt = sg[s_b] pi_bt / sg[pi_bt],  s_b = exp(mean over the sampled tokens of b of (logp - old_logp))

    Source: Schulman et al. 2017, arXiv:1707.06347, section 3; for sequences Zheng et al. 2025 (GSPO), arXiv:2507.18071,
    GSPO-token, eq. 13 to 17 (sg stops the gradient): s_bt has the value of s_b, its gradient is the token's own, and so
    advantages may differ within a sequence. Where they do not, the clipped surrogate averaged over the tokens of a
    sequence is that of GSPO's eq. 5, gradient included.

    Differs: the logarithm is held within +-20, beyond which no gradient flows; verl does so for tokens, and for
    sequences holds it below 10. A sequence's length counts the sampled tokens of all turns in its row.

    Args:
        logp_BT, old_logp_BT: float, log-probability of the sampled token now and when it was sampled.
        mask_BT: bool, True where the policy sampled the token.
        level: whether a token's ratio is its own or its sequence's.

    Returns:
        float [B, T], 1 where the mask is False.

    Raises:
        ValueError: for an unknown level.
    """
    log_ratio_BT = hide(logp_BT - old_logp_BT, mask_BT)  # before exp: inf * 0 is nan
    if level == "sequence":
        mean_B1 = log_ratio_BT.detach().sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
        log_ratio_BT = hide(mean_B1 + (log_ratio_BT - log_ratio_BT.detach()), mask_BT)
    elif level != "token":
        raise ValueError(f"probability_ratio: level must be token or sequence; got {level!r}.")
    return log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(
    ratio_BT: torch.Tensor,
    advantage_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """Return the PPO-clip loss of each token.

        L_bt = -min(r_bt A_bt, clip(r_bt, 1 - clip_low, 1 + clip_high) A_bt);  for A_bt < 0 at most dual_clip |A_bt|

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; two clip values: Yu et al. 2025 (DAPO), arXiv:2503.14476,
    eq. 8; the dual clip, theirs at 3: Ye et al. 2020, arXiv:1912.09729.

    Args:
        ratio_BT: float, see `probability_ratio`.
        advantage_BT: float, [B, T] or [B, 1].
        mask_BT: bool, True where the policy sampled the token.
        clip_low, clip_high: how far the ratio may fall below and rise above 1.
        dual_clip: the largest ratio that counts against a bad token, above 1 + clip_high; None sets no limit.

    Returns:
        float [B, T], 0 where the mask is False.
    """
    ratio_BT, advantage_BT = hide(ratio_BT, mask_BT), hide(advantage_BT.expand_as(mask_BT), mask_BT)
    loss_BT = -torch.minimum(ratio_BT * advantage_BT, ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantage_BT)
    if dual_clip is not None:
        loss_BT = torch.where(advantage_BT < 0, torch.minimum(loss_BT, -dual_clip * advantage_BT), loss_BT)
    return loss_BT


@torch.no_grad()
def importance_weight(
    logp_BT: torch.Tensor,
    sampler_logp_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    level: Literal["token", "sequence"],
    mode: Literal["truncate", "mask"],
    cap: float,
    veto: float | None = None,
) -> torch.Tensor:
    """Return each token's factor of the loss where the sampler's probabilities differ from the trainer's.

        token:    w_bt = exp(logp_bt - sampler_logp_bt)
        sequence: w_b  = exp(sum over the sampled tokens of b of (logp - sampler_logp)), at each of them
        truncate: min(w, cap);  mask: w where w <= cap, else 0
        veto:     0 throughout a row where any exp(logp - sampler_logp) < veto

    Source: truncation: Espeholt et al. 2018 (IMPALA), arXiv:1802.01561, eq. 1; Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training". Masking, and whole sequences: Liu et al. 2025, "When speed
    kills stability" (richardli.xyz/rl-collapse). The veto: verl's `rollout_token_veto_threshold`, 1e-4 to 1e-6 there.

    Differs: masking has no lower bound, as in Liu et al. and in TRL's `token_mask` and `sequence_mask`: a small weight
    does no harm, and of long sequences many would fall below any bound. IcePop (Ling Team 2025, arXiv:2510.18855) masks
    tokens below a bound of their own, too, verl's rejection what lies below 1 / cap. verl also takes what it rejects
    out of the mask, so that averages are over the tokens that are left; here it stays in the counts, with a loss of 0.

    Args:
        logp_BT: float, the trainer's log-probabilities before the update.
        sampler_logp_BT: float, as recorded by the sampler.
        mask_BT: bool, True where the policy sampled the token.
        level: one weight per token or one per sequence.
        mode: what becomes of a weight above the cap.
        cap: the largest weight; verl's guide has 1.5 to 5 for tokens, 2 to 10 for sequences.
        veto: the smallest ratio, below 1, of a token that does not discard its row; None discards none.

    Returns:
        float [B, T], without gradient, 0 where the mask is False.

    Raises:
        ValueError: for an unknown level or mode.
    """
    if level not in ("token", "sequence") or mode not in ("truncate", "mask"):
        raise ValueError(
            "importance_weight: level must be token or sequence and mode truncate or mask; got "
            f"level={level!r}, mode={mode!r}."
        )
    log_ratio_BT = hide(logp_BT - sampler_logp_BT, mask_BT)
    if veto is not None:
        mask_BT = mask_BT & ~(log_ratio_BT.exp() < veto).any(1, keepdim=True)
    if level == "sequence":
        log_ratio_BT = log_ratio_BT.sum(1, keepdim=True).expand_as(mask_BT)
    weight_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weight_BT = weight_BT.clamp(max=cap) if mode == "truncate" else weight_BT.masked_fill(weight_BT > cap, 0.0)
    return hide(weight_BT, mask_BT)


def kl_estimate(
    logp_BT: torch.Tensor, ref_logp_BT: torch.Tensor, *, kind: str, mask_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """Return per-token estimates of KL(policy || reference) for tokens that the policy sampled.

        k1 = logp - ref_logp;  k2 = k1^2 / 2;  k3 = exp(-k1) - 1 + k1 with k1 held within +-20
        low_variance = min(k3, 10)

    Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html); k3, never negative and of low
    variance, is the one of DeepSeekMath, arXiv:2402.03300, eq. 4; `low_variance` is verl's `low_var_kl`. As a loss only
    k2 has the gradient of the KL, as a penalty in the reward k1 is the unbiased one: Tang and Munos 2025,
    arXiv:2506.09477.

    Differs: k3 stays finite where the reference is all but certain of a token that the policy all but excludes; beyond
    its bounds no gradient flows.

    Args:
        logp_BT, ref_logp_BT: float, log-probability of the sampled token under the policy and the reference.
        kind: `k1`, `k2`, `k3` or `low_variance`.
        mask_BT: bool, True where the policy sampled the token; without it the caller masks.

    Returns:
        float, the shape of the inputs; 0 where a mask is False.

    Raises:
        ValueError: for an unknown kind.
    """
    k1_BT = logp_BT - ref_logp_BT
    if mask_BT is not None:
        k1_BT = hide(k1_BT, mask_BT)
    if kind == "k1":
        return k1_BT
    if kind == "k2":
        return k1_BT**2 / 2
    k1_BT = k1_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3_BT = torch.expm1(-k1_BT) + k1_BT
    if kind == "k3":
        return k3_BT
    if kind == "low_variance":
        return k3_BT.clamp(max=10.0)
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


def clipped_value_loss(
    value_BT: torch.Tensor,
    old_value_BT: torch.Tensor,
    return_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip: float | None,
) -> torch.Tensor:
    """Return the critic's loss of each token.

        L_bt = max((V_bt - R_bt)^2, (clip(V_bt, V_old - clip, V_old + clip) - R_bt)^2) / 2

    Source: the value clipping of the PPO authors' code (openai/baselines, ppo2); Engstrom et al. 2020,
    arXiv:2005.12729, section 3.

    Differs: from RLlib's PPO, which clamps the squared error itself, so that a large error has no gradient at all.

    Args:
        value_BT, old_value_BT: float, the critic's values now and before the update.
        return_BT: float, the value targets (see `gae`).
        mask_BT: bool, True where the policy sampled the token.
        clip: how far a value may move from the old one; None does not clip.

    Returns:
        float [B, T], 0 where the mask is False.
    """
    value_BT, old_value_BT, return_BT = (hide(x_BT, mask_BT) for x_BT in (value_BT, old_value_BT, return_BT))
    square_BT = (value_BT - return_BT) ** 2
    if clip is not None:
        clipped_BT = old_value_BT + (value_BT - old_value_BT).clamp(-clip, clip)
        square_BT = torch.maximum(square_BT, (clipped_BT - return_BT) ** 2)
    return square_BT / 2


def negative_log_likelihood(logp_BT: torch.Tensor, weight_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the loss of behavioural cloning of each token: -w_bt logp_bt.

    Args:
        logp_BT: float, log-probability of each token given those before it.
        weight_BT: float, [B, T] or [B, 1], how much each token or sequence counts (see `evolution_weight`); no gradient
            flows through it.
        mask_BT: bool, True at the tokens to imitate (the assistant's).

    Returns:
        float [B, T], nats, 0 where the mask is False.
    """
    return -hide(logp_BT, mask_BT) * hide(weight_BT.detach().expand_as(mask_BT), mask_BT)


def dpo_loss(
    chosen_logp_B: torch.Tensor,
    rejected_logp_B: torch.Tensor,
    ref_chosen_logp_B: torch.Tensor,
    ref_rejected_logp_B: torch.Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    kind: str = "sigmoid",
) -> torch.Tensor:
    """Return the loss of direct preference optimization of each pair.

        L_b = (1 - label_smoothing) f(h_b) + label_smoothing f(-h_b)
        h = (chosen_logp - ref_chosen_logp) - (rejected_logp - ref_rejected_logp)
        sigmoid: f(h) = -log sigmoid(beta h);  ipo: f(h) = (h - 1 / (2 beta))^2

    Source: Rafailov et al. 2023 (DPO), arXiv:2305.18290, eq. 7; Azar et al. 2023 (IPO), arXiv:2310.12036, eq. 17;
    label smoothing: Mitchell 2023, "A note on DPO with noisy preferences".

    Differs: TRL's `ipo` takes log-probabilities averaged over tokens, here the caller decides what it hands in; and it
    ignores label smoothing, which here means the same in both kinds: the chance that the pair is the other way round.

    Args:
        chosen_logp_B, rejected_logp_B: float, log-probability of the better and of the worse episode, summed over the
            sampled tokens of all its turns.
        ref_chosen_logp_B, ref_rejected_logp_B: the same under the frozen reference.
        beta: how strongly the policy is held to the reference.
        label_smoothing: 0 to 0.5.
        kind: `sigmoid` or `ipo`.

    Returns:
        float [B].

    Raises:
        ValueError: for an unknown kind.
    """
    margin_B = (chosen_logp_B - ref_chosen_logp_B) - (rejected_logp_B - ref_rejected_logp_B)
    if kind == "sigmoid":
        loss_B, flipped_B = -F.logsigmoid(beta * margin_B), -F.logsigmoid(-beta * margin_B)
    elif kind == "ipo":
        loss_B, flipped_B = (margin_B - 1 / (2 * beta)) ** 2, (-margin_B - 1 / (2 * beta)) ** 2
    else:
        raise ValueError(f"dpo_loss: kind must be sigmoid or ipo; got {kind!r}.")
    return (1 - label_smoothing) * loss_B + label_smoothing * flipped_B


def hide(x_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return x with 0 where the mask is False; neither hidden values nor their gradients get through, nan included."""
    check_mask(mask_BT)
    return x_BT.masked_fill(~mask_BT, 0.0)


def check_mask(mask_BT: torch.Tensor) -> None:
    """Raise TypeError unless the mask is bool; 0 and 1 as integers would index instead of select."""
    if mask_BT.dtype != torch.bool:
        raise TypeError(f"mask_BT: masks are bool, True where sampled; got {mask_BT.dtype}. Pass mask.bool().")


def _or_1(count: torch.Tensor | float) -> torch.Tensor:
    """Return the count, or 1 where nothing was counted: the sum over nothing is 0 whatever divides it."""
    counted = torch.as_tensor(count)
    return counted + (counted == 0)


def divergence(logp_NV: torch.Tensor, teacher_logp_NV: torch.Tensor, *, kind: str, beta: float = 0.5) -> torch.Tensor:
    """Return how far each next-token distribution of a policy is from a teacher's, in nats, [N].

        forward_kl = KL(teacher || policy);  reverse_kl = KL(policy || teacher)
        jsd = beta KL(teacher || m) + (1 - beta) KL(policy || m),  m = beta teacher + (1 - beta) policy

    Source: Agarwal et al. 2023 (GKD), arXiv:2306.13649, section 3; `jsd` is its generalised Jensen-Shannon divergence.

    Args:
        logp_NV, teacher_logp_NV: float, log-probabilities over the vocabulary.
        kind: `forward_kl`, `reverse_kl` or `jsd`.
        beta: the teacher's share of the mixture, between 0 and 1.

    Raises:
        ValueError: an unknown kind.
    """

    def kl(logp_NV: torch.Tensor, other_NV: torch.Tensor) -> torch.Tensor:
        term_NV = logp_NV.exp() * (logp_NV - other_NV)
        return term_NV.masked_fill(logp_NV == -torch.inf, 0.0).sum(-1)  # 0 log 0 = 0

    match kind:
        case "forward_kl":
            return kl(teacher_logp_NV, logp_NV)
        case "reverse_kl":
            return kl(logp_NV, teacher_logp_NV)
        case "jsd":
            mixture_NV = torch.logaddexp(teacher_logp_NV + math.log(beta), logp_NV + math.log1p(-beta))
            return beta * kl(teacher_logp_NV, mixture_NV) + (1 - beta) * kl(logp_NV, mixture_NV)
    raise ValueError(f"divergence: kind must be forward_kl, reverse_kl or jsd; got {kind!r}.")
