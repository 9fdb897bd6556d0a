"""Invariants of the mathematics on random cases, and what holds for all functions that take a mask."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.algorithms.functional import (
    Counts,
    aggregate,
    clipped_surrogate,
    clipped_value_loss,
    discounted_return,
    dpo_loss,
    gae,
    group_relative_advantage,
    importance_weight,
    kl_estimate,
    kl_shaped_reward,
    leave_one_out_advantage,
    negative_log_likelihood,
    probability_ratio,
    step_group_advantage,
    whiten,
)

examples = settings(max_examples=40, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**31)
factors = st.sampled_from([0.0, 0.5, 0.9, 1.0])
CLIP = {"clip_low": 0.2, "clip_high": 0.3}

OVER = ("tokens", "sequences", "episodes", "constant")


def surrogate(logp, old, advantage, mask, level="token", **options):
    return clipped_surrogate(probability_ratio(logp, old, mask, level=level), advantage, mask, **CLIP, **options)


def average(loss, mask, over):
    """Return the average over a minibatch whose episodes are pairs of neighbouring rows."""
    return aggregate(loss, mask, over=over, counts=counts_of(mask))


def counts_of(mask):
    tokens, episode = mask.sum(1), torch.arange(len(mask)) // 2
    episode_tokens = torch.zeros(len(mask), dtype=torch.long).index_add(0, episode, tokens)
    return Counts(
        tokens=mask.sum(),
        sequences=(tokens > 0).sum(),
        episodes=(episode_tokens > 0).sum(),
        episode_tokens_B=episode_tokens[episode],
        constant=7.0,
    )


# What takes a mask: a function of (a_BT, b_BT, c_BT, mask_BT), whose result is [B, T] or, of an average, a scalar.
MASKED = {
    "discounted_return": lambda a, b, c, m: discounted_return(a, m, gamma=0.9),
    "gae advantage": lambda a, b, c, m: gae(a, b, m, torch.ones(len(m)), gamma=0.9, lam=0.8)[0],
    "gae target": lambda a, b, c, m: gae(a, b, m, torch.ones(len(m)), gamma=0.9, lam=0.8)[1],
    "gae by turns": lambda a, b, c, m: gae(a, b, m, torch.ones(len(m)), gamma=0.9, lam=0.8, is_turn_end_BT=c.abs() > 1)[
        0
    ],
    "whiten": lambda a, b, c, m: whiten(a, m),
    "kl_shaped_reward": lambda a, b, c, m: kl_shaped_reward(a, b, c, m, kl_coeff=0.1),
    "step_group": lambda a, b, c, m: step_group_advantage(
        a, torch.arange(m.shape[1]).expand_as(m), m, torch.arange(len(m)) // 3, gamma=0.9, normalize_std=True
    ),
    "surrogate": surrogate,
    "surrogate of any ratio": lambda a, b, c, m: clipped_surrogate(a.abs(), b, m, **CLIP),
    "sequence surrogate": lambda a, b, c, m: surrogate(a, b, c, m, level="sequence"),
    "dual clip": lambda a, b, c, m: surrogate(a, b, c, m, dual_clip=1.5),
    "value": lambda a, b, c, m: clipped_value_loss(a, b, c, m, clip=0.2),
    "value without clip": lambda a, b, c, m: clipped_value_loss(a, b, c, m, clip=None),
    "cloning": lambda a, b, c, m: negative_log_likelihood(a, c, m),
    **{
        f"kl {kind}": lambda a, b, c, m, kind=kind: kl_estimate(a, b, kind=kind, mask_BT=m)
        for kind in ("k1", "k2", "k3", "low_variance")
    },
    **{
        f"importance {level} {mode}": lambda a, b, c, m, level=level, mode=mode: importance_weight(
            a, b, m, level=level, mode=mode, cap=2.0, veto=0.05
        )
        for level in ("token", "sequence")
        for mode in ("truncate", "mask")
    },
    **{f"average over {over}": lambda a, b, c, m, over=over: average(a, m, over) for over in OVER},
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
    function = MASKED[name]
    a, b, c, mask = case(0)
    clean, clean_gradients = evaluate(function, a, b, c, mask)
    dirty, dirty_gradients = evaluate(function, *(x.masked_fill(~mask, garbage) for x in (a, b, c)), mask)
    assert torch.equal(clean, dirty)
    assert clean.abs().sum() > 0
    if dirty.shape == mask.shape:
        assert (dirty[~mask] == 0).all()
    for ours, theirs in zip(clean_gradients, dirty_gradients, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or (torch.equal(ours, theirs) and (theirs[~mask] == 0).all())


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (2, 0), (0, 3)])
@pytest.mark.parametrize("name", MASKED)
def test_an_empty_mask_gives_0_and_no_gradient(name, shape):
    function = MASKED[name]
    nothing, mask = torch.full(shape, math.nan), torch.zeros(shape, dtype=torch.bool)
    out, gradients = evaluate(function, nothing, nothing, nothing, mask)
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MASKED)
def test_one_token_is_enough_and_the_dtype_stays(name, dtype):
    function = MASKED[name]
    mask = torch.tensor([[False, True, False]])
    value = torch.tensor([[math.nan, 0.5, math.nan]], dtype=dtype)
    out, gradients = evaluate(function, value, value, value, mask)
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("over", OVER)
@given(seed=seeds)
@examples
def test_an_average_is_the_mean_that_it_is_named_for_and_its_micro_batches_sum_to_it(over, seed):
    x, _, _, mask = case(seed)
    if not mask.any():
        return
    kept = [row[here] for row, here in zip(x, mask, strict=True)]
    pairs = [torch.cat(kept[i : i + 2]) for i in range(0, 6, 2)]
    groups = {"tokens": [torch.cat(kept)], "sequences": kept, "episodes": pairs, "constant": kept}[over]
    groups = [group for group in groups if len(group)]
    means = [group.sum() / 7 if over == "constant" else group.mean() for group in groups]
    whole = average(x, mask, over).item()
    assert whole == pytest.approx((sum(means) / len(means)).item(), abs=1e-12)
    counts, parts = counts_of(mask), 0.0
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):  # an episode is two rows: the first and the second are cut
        of_part = replace(counts, episode_tokens_B=counts.episode_tokens_B[rows])
        parts += aggregate(x[rows], mask[rows], over=over, counts=of_part).item()
    assert parts == pytest.approx(whole, abs=1e-12)


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


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("over", OVER)
@given(seed=seeds)
@examples
def test_at_ratio_1_the_gradient_is_reinforces(over, level, seed):
    logp, advantage, _, mask = case(seed)
    advantage = advantage[:, :1]
    logp.requires_grad_()
    average(surrogate(logp, logp.detach().clone(), advantage, mask, level=level), mask, over).backward()
    reinforce = logp.detach().clone().requires_grad_()
    average(-advantage * reinforce, mask, over).backward()
    assert torch.allclose(logp.grad, reinforce.grad, atol=1e-12)


@given(seed=seeds)
@examples
def test_gspo_by_token_is_gspo_by_sequence_in_value_and_gradient(seed):
    logp, old, advantage, mask = case(seed)
    if not mask.any():
        return
    logp.requires_grad_()
    by_token = average(surrogate(logp, old, advantage[:, :1], mask, level="sequence"), mask, "sequences")
    (by_token_gradient,) = torch.autograd.grad(by_token, logp)
    terms = []  # Zheng et al. 2025, eq. 5: one per sequence
    for row, here in enumerate(mask):
        if here.any():
            ratio = (logp[row][here] - old[row][here]).mean().exp()
            terms.append(torch.minimum(ratio * advantage[row, 0], ratio.clamp(0.8, 1.3) * advantage[row, 0]))
    by_sequence = -sum(terms) / len(terms)
    (by_sequence_gradient,) = torch.autograd.grad(by_sequence, logp)
    assert by_token.item() == pytest.approx(by_sequence.item(), abs=1e-12)
    assert torch.allclose(by_token_gradient, by_sequence_gradient, atol=1e-12)


@given(seed=seeds, scale=st.sampled_from([1.0, 30.0, 1000.0]))
@examples
def test_losses_and_weights_stay_finite_however_far_the_log_probabilities_part(seed, scale):
    *log_probs, mask = case(seed, dtype=torch.float32)
    logp, old, advantage = (log_probs[0] * scale).requires_grad_(), *log_probs[1:]
    for level in ("token", "sequence"):
        for dual_clip in (None, 3.0):
            loss = surrogate(logp, old, advantage, mask, level=level, dual_clip=dual_clip)
            if dual_clip:
                assert (loss <= 3.0001 * advantage.abs()).all()
            for mode in ("truncate", "mask"):
                weight = importance_weight(logp, old, mask, level=level, mode=mode, cap=2.0)
                assert ((weight >= 0) & (weight <= 2)).all()
                total = average(loss * weight, mask, "tokens")
                (gradient,) = torch.autograd.grad(total, logp, retain_graph=True)
                assert total.isfinite() and gradient.isfinite().all()
    for kind in ("k3", "low_variance"):
        kl = kl_estimate(logp, old, kind=kind, mask_BT=mask)
        (gradient,) = torch.autograd.grad(kl.sum(), logp)
        assert kl.isfinite().all() and gradient.isfinite().all() and (kl >= 0).all()


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
        assert one.tolist() == pytest.approx(other.tolist())
    same = dpo_loss(ref, -ref, ref, -ref, beta=0.3)
    assert same.tolist() == pytest.approx([math.log(2)] * len(ref))
