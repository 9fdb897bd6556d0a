"""Invariants of the mathematics on random cases, and what holds for all functions that take a mask."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.algorithms.functional import (
    averaging_weight,
    clipped_surrogate,
    clipped_value_loss,
    discounted_return,
    dpo_loss,
    gae,
    group_relative_advantage,
    kl_estimate,
    kl_shaped_reward,
    leave_one_out_advantage,
    negative_log_likelihood,
    sequence_clipped_surrogate,
    step_group_advantage,
    truncated_importance_weight,
    whiten,
)

examples = settings(max_examples=40, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**31)
factors = st.sampled_from([0.0, 0.5, 0.9, 1.0])
CLIP = {"clip_low": 0.2, "clip_high": 0.3}

# What takes a mask: name -> (function of (a_BT, b_BT, c_BT, mask_BT), whether the result is [B, T]).
MASKED = {
    "discounted_return": (lambda a, b, c, m: discounted_return(a, m, gamma=0.9), True),
    "gae advantage": (lambda a, b, c, m: gae(a, b, m, torch.ones(len(m)), gamma=0.9, lam=0.8)[0], True),
    "gae target": (lambda a, b, c, m: gae(a, b, m, torch.ones(len(m)), gamma=0.9, lam=0.8)[1], True),
    "gae by turns": (
        lambda a, b, c, m: gae(a, b, m, torch.ones(len(m)), gamma=0.9, lam=0.8, is_turn_end_BT=c.abs() > 1)[0],
        True,
    ),
    "whiten": (lambda a, b, c, m: whiten(a, m), True),
    "kl_shaped_reward": (lambda a, b, c, m: kl_shaped_reward(a, b, c, m, kl_coeff=0.1), True),
    "kl k1": (lambda a, b, c, m: kl_estimate(a, b, kind="k1", mask_BT=m), True),
    "kl k2": (lambda a, b, c, m: kl_estimate(a, b, kind="k2", mask_BT=m), True),
    "kl k3": (lambda a, b, c, m: kl_estimate(a, b, kind="k3", mask_BT=m), True),
    "kl low_variance": (lambda a, b, c, m: kl_estimate(a, b, kind="low_variance", mask_BT=m), True),
    "importance": (lambda a, b, c, m: truncated_importance_weight(a, b, m, cap=2.0), True),
    "step_group": (
        lambda a, b, c, m: step_group_advantage(
            a, torch.arange(m.shape[1]).expand_as(m), m, torch.arange(len(m)) // 3, gamma=0.9, normalize_std=True
        ),
        True,
    ),
    "surrogate": (lambda a, b, c, m: clipped_surrogate(a, b, c, m, **CLIP, num_tokens=m.sum(), weight_BT=c), False),
    "sequence surrogate": (
        lambda a, b, c, m: sequence_clipped_surrogate(
            a, b, torch.where(m.any(1), 1.5, math.nan), m, **CLIP, num_sequences=m.any(1).sum()
        ),
        False,
    ),
    "value": (lambda a, b, c, m: clipped_value_loss(a, b, c, m, clip=0.2, num_tokens=m.sum()), False),
    "value without clip": (lambda a, b, c, m: clipped_value_loss(a, b, c, m, clip=None, num_tokens=m.sum()), False),
    "cloning": (lambda a, b, c, m: negative_log_likelihood(a, m, num_tokens=m.sum(), weight_BT=c), False),
}


def case(seed, num_rows=6, num_columns=7, dtype=torch.float64, fill=0.5):
    """Return three random [B, T] and a mask; its last row is empty."""
    generator = torch.Generator().manual_seed(seed)
    a, b, c = torch.randn(3, num_rows, num_columns, generator=generator, dtype=dtype)
    mask = torch.rand(num_rows, num_columns, generator=generator) < fill
    mask[-1] = False
    return a, b, c, mask


def evaluate(function, a, b, c, mask):
    """Return the function's value and its gradient by each input that it lets one flow to."""
    inputs = [x.clone().requires_grad_() for x in (a, b, c)]
    out = function(*inputs, mask)
    if not out.requires_grad:
        return out, []
    return out.detach(), torch.autograd.grad(out.sum(), inputs, allow_unused=True)


@pytest.mark.parametrize("garbage", [1e6, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", MASKED)
def test_nothing_that_the_mask_hides_reaches_a_value_or_a_gradient(name, garbage):
    function, is_per_token = MASKED[name]
    a, b, c, mask = case(0)
    clean, clean_gradients = evaluate(function, a, b, c, mask)
    dirty, dirty_gradients = evaluate(function, *(x.masked_fill(~mask, garbage) for x in (a, b, c)), mask)
    assert torch.equal(clean, dirty)
    assert clean.abs().sum() > 0
    if is_per_token:
        assert (dirty[~mask] == 0).all()
    for ours, theirs in zip(clean_gradients, dirty_gradients, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or (torch.equal(ours, theirs) and (theirs[~mask] == 0).all())


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (2, 0), (0, 3)])
@pytest.mark.parametrize("name", MASKED)
def test_an_empty_mask_gives_0_and_no_gradient(name, shape):
    function, _ = MASKED[name]
    nothing, mask = torch.full(shape, math.nan), torch.zeros(shape, dtype=torch.bool)
    out, gradients = evaluate(function, nothing, nothing, nothing, mask)
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MASKED)
def test_one_token_is_enough_and_the_dtype_stays(name, dtype):
    function, _ = MASKED[name]
    mask = torch.tensor([[False, True, False]])
    value = torch.tensor([[math.nan, 0.5, math.nan]], dtype=dtype)
    out, gradients = evaluate(function, value, value, value, mask)
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("name", [name for name, (_, is_per_token) in MASKED.items() if not is_per_token])
@given(seed=seeds)
@examples
def test_micro_batches_sum_to_the_whole(name, seed):
    a, b, c, mask = case(seed)
    if "sequence" in name:

        def loss(rows):
            return sequence_clipped_surrogate(a[rows], b[rows], c[rows, 0], mask[rows], **CLIP, num_sequences=5)
    else:
        options = {
            "surrogate": lambda rows: clipped_surrogate(a[rows], b[rows], c[rows], mask[rows], **CLIP, num_tokens=20),
            "value": lambda rows: clipped_value_loss(a[rows], b[rows], c[rows], mask[rows], clip=0.2, num_tokens=20),
            "value without clip": lambda rows: clipped_value_loss(
                a[rows], b[rows], c[rows], mask[rows], clip=None, num_tokens=20
            ),
            "cloning": lambda rows: negative_log_likelihood(a[rows], mask[rows], num_tokens=20),
        }
        loss = options[name]
    whole = loss(slice(0, 6))
    parts = loss(slice(0, 1)) + loss(slice(1, 4)) + loss(slice(4, 6))
    assert parts.item() == pytest.approx(whole.item(), abs=1e-12)


@given(seed=seeds, gamma=factors, lam=factors)
@examples
def test_packing_the_sampled_tokens_together_changes_nothing(seed, gamma, lam):
    reward, value, bootstrap, mask = case(seed)
    bootstrap = bootstrap[:, 0]
    advantage, target = gae(reward, value, mask, bootstrap, gamma=gamma, lam=lam)
    returns = discounted_return(reward, mask, gamma=gamma)
    for row in range(len(mask) - 1):
        kept = mask[row]
        packed = reward[row][kept][None], value[row][kept][None], torch.ones(1, int(kept.sum()), dtype=torch.bool)
        one, other = gae(*packed, bootstrap[row : row + 1], gamma=gamma, lam=lam)
        assert torch.allclose(one[0], advantage[row][kept], atol=1e-12)
        assert torch.allclose(other[0], target[row][kept], atol=1e-12)
        assert torch.allclose(discounted_return(packed[0], packed[2], gamma=gamma)[0], returns[row][kept], atol=1e-12)


@given(seed=seeds, gamma=factors, width=st.integers(1, 70))
@examples
def test_gae_at_lambda_1_is_the_return_less_the_value_and_at_0_the_td_error(seed, gamma, width):
    reward, value, bootstrap, mask = case(seed, num_columns=width, fill=0.8)
    bootstrap = bootstrap[:, 0]
    # By the definition, one token at a time from the end.
    total, next_value = bootstrap.clone(), bootstrap.clone()
    by_return, by_td = torch.zeros_like(value), torch.zeros_like(value)
    for t in reversed(range(width)):
        here = mask[:, t]
        total = torch.where(here, reward[:, t] + gamma * total, total)
        by_return[:, t] = torch.where(here, total - value[:, t], 0.0)
        by_td[:, t] = torch.where(here, reward[:, t] + gamma * next_value - value[:, t], 0.0)
        next_value = torch.where(here, value[:, t], next_value)
    for lam, expected in ((1.0, by_return), (0.0, by_td)):
        advantage, target = gae(reward, value, mask, bootstrap, gamma=gamma, lam=lam)
        assert torch.allclose(advantage, expected, atol=1e-10)
        assert torch.allclose(target, (expected + value).masked_fill(~mask, 0.0), atol=1e-10)


@given(seed=seeds, gamma=factors, lam=factors)
@examples
def test_turns_of_one_token_are_tokens_and_one_turn_at_gamma_1_is_undiscounted(seed, gamma, lam):
    reward, value, bootstrap, mask = case(seed)
    plain = gae(reward, value, mask, bootstrap[:, 0], gamma=gamma, lam=lam)
    by_turns = gae(reward, value, mask, bootstrap[:, 0], gamma=gamma, lam=lam, is_turn_end_BT=mask)
    assert torch.equal(plain[0], by_turns[0])
    assert torch.equal(plain[1], by_turns[1])
    never = torch.zeros_like(mask)
    undiscounted = discounted_return(reward, mask, gamma=1.0)
    assert torch.allclose(discounted_return(reward, mask, gamma=gamma, is_turn_end_BT=never), undiscounted, atol=1e-12)


@given(seed=seeds, scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
@examples
def test_whitened_values_have_mean_0_and_variance_1_whatever_their_scale(seed, scale, shift):
    x, _, _, mask = case(seed, fill=0.7)
    out = whiten(x * scale + shift, mask)
    assert out[mask].mean().item() == pytest.approx(0.0, abs=1e-9)
    assert out[mask].var().item() == pytest.approx(1.0, abs=1e-3)  # the epsilon shows at the smallest scales
    assert torch.allclose(out, whiten(x, mask), atol=1e-3)


@given(seed=seeds, num_groups=st.integers(1, 6))
@examples
def test_group_advantages_sum_to_0_and_follow_their_episodes_in_any_order(seed, num_groups):
    generator = torch.Generator().manual_seed(seed)
    returns = torch.randn(15, generator=generator, dtype=torch.float64)
    groups = torch.randint(0, num_groups, (15,), generator=generator)
    order = torch.randperm(15, generator=generator)
    for function in (
        leave_one_out_advantage,
        lambda r, g: group_relative_advantage(r, g, normalize_std=False),
        lambda r, g: group_relative_advantage(r, g, normalize_std=True),
    ):
        advantage = function(returns, groups)
        sums = torch.zeros(num_groups, dtype=torch.float64).index_add(0, groups, advantage)
        assert sums.abs().max() < 1e-9
        assert torch.allclose(function(returns[order], groups[order]), advantage[order], atol=1e-12)
        assert torch.allclose(function(returns + 5.0, groups), advantage, atol=1e-9)


@given(seed=seeds)
@examples
def test_at_ratio_1_the_sequence_gradient_is_reinforces_by_sequence(seed):
    logp, advantage, _, mask = case(seed)
    logp.requires_grad_()
    options = {**CLIP, "num_sequences": 5}
    sequence_clipped_surrogate(logp, logp.detach().clone(), advantage[:, 0], mask, **options).backward()
    expected = -advantage[:, :1] / 5 / mask.sum(1, keepdim=True).clamp(min=1) * mask
    assert torch.allclose(logp.grad, expected, atol=1e-12)


@given(seed=seeds)
@examples
def test_weighted_averages_are_the_means_they_are_named_for(seed):
    x, _, _, mask = case(seed)
    num_tokens, has_token = mask.sum(), mask.any(1)
    if not has_token.any():
        return
    counts = {"num_tokens": num_tokens, "num_sequences": has_token.sum()}

    def average(over):
        weight = averaging_weight(mask, over=over, **counts, max_tokens=7).double()
        return -negative_log_likelihood(x, mask, num_tokens=num_tokens, weight_BT=weight).item()

    means = [row[kept].mean() for row, kept in zip(x, mask, strict=True) if kept.any()]
    assert average("tokens") == pytest.approx(x[mask].mean().item(), abs=1e-6)
    assert average("sequences") == pytest.approx((sum(means) / len(means)).item(), abs=1e-6)
    assert average("constant") == pytest.approx((x[mask].sum() / (len(means) * 7)).item(), abs=1e-6)


@given(seed=seeds, smoothing=st.floats(0.0, 0.5))
@examples
def test_dpo_with_a_pair_swapped_is_dpo_with_its_label_swapped(seed, smoothing):
    chosen, rejected, references, _ = case(seed)
    ref = references[0]
    for kind in ("sigmoid", "ipo"):
        options = {"beta": 0.3, "kind": kind}
        pair, swapped = (chosen[0], rejected[0], ref, -ref), (rejected[0], chosen[0], -ref, ref)
        one = dpo_loss(*pair, **options, label_smoothing=smoothing)
        other = dpo_loss(*swapped, **options, label_smoothing=1 - smoothing)
        assert one.item() == pytest.approx(other.item())
    same = dpo_loss(ref, -ref, ref, -ref, beta=0.3)
    assert same.item() == pytest.approx(math.log(2))
