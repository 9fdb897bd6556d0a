"""Losses over the sampled tokens of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it

from rllm_gym.algorithms.functional.masking import hide


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
        weight_BT: float, weights of the tokens (see `truncated_importance_weight` and `averaging_weight`); no gradient
            flows through them.

    Returns:
        float scalar.
    """
    # Masked before exp: a padding slot's garbage can overflow, and inf * 0 is nan.
    ratio_BT = _masked_difference(logp_BT, old_logp_BT, mask_BT).exp()
    advantage_BT = hide(advantage_BT.expand_as(mask_BT), mask_BT)
    gain_BT = torch.minimum(ratio_BT * advantage_BT, ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantage_BT)
    if weight_BT is not None:
        gain_BT = gain_BT * hide(weight_BT.detach(), mask_BT)
    return -_average(gain_BT, num_tokens)


def sequence_clipped_surrogate(
    logp_BT: torch.Tensor,
    old_logp_BT: torch.Tensor,
    advantage_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    num_sequences: float | torch.Tensor,
    weight_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the clipped loss with one ratio per sequence, averaged over the sequences of the whole train step.

        L = -(1/M) sum_b w_b min(s_b A_b, clip(s_b, 1 - clip_low, 1 + clip_high) A_b)
        s_b = exp(mean over the sampled tokens of b of (logp - old_logp))

    Source: Zheng et al. 2025 (GSPO), arXiv:2507.18071, eq. 5 and 7.

    Differs: a sequence is a whole episode; its length counts the sampled tokens of all its turns.

    Args:
        logp_BT, old_logp_BT: float, log-probability of the sampled token now and when it was sampled.
        advantage_B: float, one per sequence.
        mask_BT: bool, True where the policy sampled the token.
        clip_low, clip_high: how far the ratio may fall below and rise above 1; the paper's are 3e-4 and 4e-4.
        num_sequences: M, sequences with a sampled token over all micro-batches and ranks.
        weight_B: float, weights of the sequences; no gradient flows through them.

    Returns:
        float scalar; sequences without a sampled token add nothing.
    """
    is_sampled_B = mask_BT.any(1)
    ratio_B = sequence_ratio(logp_BT, old_logp_BT, mask_BT)
    advantage_B = hide(advantage_B, is_sampled_B)
    gain_B = torch.minimum(ratio_B * advantage_B, ratio_B.clamp(1 - clip_low, 1 + clip_high) * advantage_B)
    if weight_B is not None:
        gain_B = gain_B * hide(weight_B.detach(), is_sampled_B)
    return -_average(gain_B, num_sequences)


def sequence_ratio(logp_BT: torch.Tensor, old_logp_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return float [B], s_b of `sequence_clipped_surrogate`; 1 without a sampled token."""
    return (_masked_difference(logp_BT, old_logp_BT, mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)).exp()


def clipped_value_loss(
    value_BT: torch.Tensor,
    old_value_BT: torch.Tensor,
    return_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip: float | None,
    num_tokens: float | torch.Tensor,
) -> torch.Tensor:
    """Return the critic's loss, averaged over the tokens of the whole train step.

        L = (1/N) sum_bt m_bt max((V_bt - R_bt)^2, (clip(V_bt, V_old - clip, V_old + clip) - R_bt)^2) / 2

    Source: the value clipping of the PPO authors' code (openai/baselines, ppo2); Engstrom et al. 2020,
    arXiv:2005.12729, section 3.

    Differs: from RLlib's PPO, which clamps the squared error itself, so that a large error has no gradient at all.

    Args:
        value_BT, old_value_BT: float, the critic's values now and before the update.
        return_BT: float, the value targets (see `gae`).
        mask_BT: bool, True where the policy sampled the token.
        clip: how far a value may move from the old one; None does not clip.
        num_tokens: N, sampled tokens over all micro-batches and ranks.

    Returns:
        float scalar.
    """
    value_BT, old_value_BT, return_BT = (hide(x_BT, mask_BT) for x_BT in (value_BT, old_value_BT, return_BT))
    square_BT = (value_BT - return_BT) ** 2
    if clip is not None:
        clipped_BT = old_value_BT + (value_BT - old_value_BT).clamp(-clip, clip)
        square_BT = torch.maximum(square_BT, (clipped_BT - return_BT) ** 2)
    return _average(square_BT, num_tokens) / 2


def negative_log_likelihood(
    logp_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    num_tokens: float | torch.Tensor,
    weight_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the loss of behavioural cloning, averaged over the tokens of the whole train step.

        L = -(1/N) sum_bt m_bt w_bt logp_bt

    Args:
        logp_BT: float, log-probability of each token given those before it.
        mask_BT: bool, True at the tokens to imitate (the assistant's).
        num_tokens: N, masked-in tokens over all micro-batches and ranks.
        weight_BT: float, [B, T] or [B, 1], how much each token or sequence counts (see `evolution_weight`); no gradient
            flows through it.

    Returns:
        float scalar, nats per token.
    """
    logp_BT = hide(logp_BT, mask_BT)
    if weight_BT is not None:
        logp_BT = logp_BT * hide(weight_BT.detach().expand_as(mask_BT), mask_BT)
    return -_average(logp_BT, num_tokens)


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
    """Return the loss of direct preference optimization, averaged over the pairs.

        L = mean_b (1 - label_smoothing) f(h_b) + label_smoothing f(-h_b)
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
        float scalar; 0 without pairs.

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
    return _average((1 - label_smoothing) * loss_B + label_smoothing * flipped_B, len(margin_B))


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
    return hide(_masked_difference(logp_BT, sampler_logp_BT, mask_BT).exp().clamp(max=cap), mask_BT)


def averaging_weight(
    mask_BT: torch.Tensor,
    *,
    over: str,
    num_tokens: float | torch.Tensor,
    num_sequences: float | torch.Tensor,
    max_tokens: int | None = None,
) -> torch.Tensor:
    """Return w such that (1/N) sum_bt w_bt x_bt, the average that the losses here take, is one over something else.

        tokens:    w = 1                  all tokens count alike (DAPO)
        sequences: w = N / (M n_b)        all sequences count alike, n_b tokens each (GRPO as published)
        constant:  w = N / (M max_tokens) a sum over tokens, scaled by a constant (Dr. GRPO)

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.3; Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300,
    eq. 3; Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783, section 3.

    Args:
        mask_BT: bool, True where the policy sampled the token.
        over: `tokens`, `sequences` or `constant`.
        num_tokens: N, sampled tokens over all micro-batches and ranks.
        num_sequences: M, sequences with a sampled token over all micro-batches and ranks.
        max_tokens: of a sequence; for `constant`.

    Returns:
        float32 [B, T], 0 where the mask is False.

    Raises:
        ValueError: for an unknown `over`, or `constant` without `max_tokens`.
    """
    if over == "tokens":
        return mask_BT.float()
    if over == "sequences":
        return mask_BT * (num_tokens / (max(num_sequences, 1) * mask_BT.sum(1, keepdim=True).clamp(min=1))).float()
    if over == "constant" and max_tokens:
        return mask_BT * float(num_tokens / (max(num_sequences, 1) * max_tokens))
    raise ValueError(
        "averaging_weight: over must be tokens, sequences, or constant with max_tokens; got "
        f"over={over!r}, max_tokens={max_tokens}."
    )


def _masked_difference(a_BT: torch.Tensor, b_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    # Each side is masked on its own: nan - x is nan, and its gradient would be too.
    return hide(a_BT, mask_BT) - hide(b_BT, mask_BT)


def _average(x: torch.Tensor, count: float | torch.Tensor) -> torch.Tensor:
    """Return the sum over the count; of nothing 0, with a gradient of 0."""
    return x.sum() / max(count, 1)
