"""Golden values of the mathematics: cases small enough to check by hand, with the arithmetic beside them."""

from __future__ import annotations

import math

import pytest
import torch

from rllm_gym.algorithms.functional import (
    clipped_surrogate,
    group_relative_advantage,
    has_spread,
    kl_estimate,
    truncated_importance_weight,
)


def surrogate(log_ratio, advantage, mask=None, num_tokens=None, low=0.2, high=0.3, **kwargs):
    logp = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(logp.shape, dtype=torch.bool) if mask is None else torch.tensor(mask)
    loss = clipped_surrogate(
        logp,
        torch.zeros_like(logp),
        torch.tensor(advantage, dtype=torch.float64),
        mask,
        clip_low=low,
        clip_high=high,
        num_tokens=mask.sum() if num_tokens is None else num_tokens,
        **kwargs,
    )
    loss.backward()
    return loss.item(), logp.grad.tolist()


def test_group_relative_advantage_by_hand():
    # Group 7: returns 1, 0, 0 -> mean 1/3, sample variance (4/9 + 1/9 + 1/9) / 2 = 1/3, std 0.57735.
    # Group 2: returns 2, 4 -> mean 3, sample std sqrt(2).
    returns, groups = torch.tensor([1.0, 2.0, 0.0, 0.0, 4.0]), torch.tensor([7, 2, 7, 7, 2])
    plain = group_relative_advantage(returns, groups, normalize_std=False)
    assert plain.tolist() == pytest.approx([2 / 3, -1.0, -1 / 3, -1 / 3, 1.0])
    normalized = group_relative_advantage(returns, groups, normalize_std=True)
    expected = [2 / 3 / 0.5773503, -1 / 1.4142136, -1 / 3 / 0.5773503, -1 / 3 / 0.5773503, 1 / 1.4142136]
    assert normalized.tolist() == pytest.approx(expected, abs=1e-5)


def test_group_advantages_sum_to_zero_and_equal_returns_give_exactly_zero():
    torch.manual_seed(0)
    returns, groups = torch.randn(60, dtype=torch.float64), torch.randint(0, 7, (60,))
    advantage = group_relative_advantage(returns, groups, normalize_std=True)
    for group in range(7):
        assert advantage[groups == group].sum().item() == pytest.approx(0.0, abs=1e-9)
    same = group_relative_advantage(torch.tensor([0.5, 0.5, 3.0]), torch.tensor([0, 0, 1]), normalize_std=True)
    assert same.tolist() == [0.0, 0.0, 0.0]  # and a group of one has no mean to compare with


def test_has_spread_marks_the_groups_that_teach_something():
    returns, groups = torch.tensor([1.0, 0.0, 5.0, 5.0, 2.0]), torch.tensor([3, 3, 1, 1, 9])
    assert has_spread(returns, groups).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "flows"),
    [
        (1.0, 2.0, 2.0, True),  # unclipped
        (1.5, 2.0, 1.3 * 2.0, False),  # raised too far and good: held at 1 + clip_high
        (0.5, 2.0, 0.5 * 2.0, True),  # lowered too far but good: may come back
        (1.5, -2.0, 1.5 * -2.0, True),  # raised too far but bad: may come back
        (0.5, -2.0, 0.8 * -2.0, False),  # lowered too far and bad: held at 1 - clip_low
    ],
)
def test_clipped_surrogate_in_every_sign_case(ratio, advantage, gain, flows):
    loss, [[gradient]] = surrogate([[math.log(ratio)]], [[advantage]])
    assert loss == pytest.approx(-gain)
    assert gradient == pytest.approx(-ratio * advantage if flows else 0.0)  # d ratio / d logp = ratio


def test_clipped_surrogate_averages_over_the_tokens_of_the_whole_step():
    # Two episodes of 1 and 3 tokens at ratio 1: -(1*2 + 3*(-1)) / 4 tokens = 0.25; of a step of 8 tokens, half as much.
    mask = [[True, False, False], [True, True, True]]
    logp, advantage = [[0.0] * 3] * 2, [[2.0], [-1.0]]
    assert surrogate(logp, advantage, mask)[0] == pytest.approx(0.25)
    assert surrogate(logp, advantage, mask, num_tokens=8)[0] == pytest.approx(0.125)


@pytest.mark.parametrize("garbage", [1e6, math.inf, -math.inf, math.nan])
def test_what_the_mask_hides_never_leaks(garbage):
    mask = [[False, True, False], [True, False, True]]
    clean = surrogate([[0.0, 0.1, 0.0], [0.2, 0.0, -0.3]], [[1.0] * 3, [-2.0] * 3], mask)
    dirty = surrogate(
        [[garbage, 0.1, garbage], [0.2, garbage, -0.3]],
        [[garbage, 1.0, garbage], [-2.0, garbage, -2.0]],
        mask,
        weight_BT=torch.tensor([[garbage, 1.0, garbage], [1.0, garbage, 1.0]], dtype=torch.float64),
    )
    assert dirty == clean


def test_at_ratio_one_the_gradient_is_reinforces():
    # d/dlogp of -(1/N) sum A logp is -A/N.
    _, gradient = surrogate([[0.0, 0.0], [0.0, 0.0]], [[3.0], [-1.0]])
    assert gradient == [[-0.75, -0.75], [0.25, 0.25]]


def test_importance_weights_scale_tokens_and_are_capped():
    logp, sampler = torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[0.0, -2.0, math.log(2.0)]])
    weight = truncated_importance_weight(logp, sampler, torch.tensor([[True, True, True]]), cap=3.0)
    assert weight.tolist() == [pytest.approx([1.0, 3.0, 0.5])]  # e^0, e^2 = 7.4 capped, 1/2
    hidden = truncated_importance_weight(logp / 0, sampler, torch.tensor([[False, False, False]]), cap=3.0)
    assert hidden.tolist() == [[0.0, 0.0, 0.0]]
    loss, _ = surrogate([[0.0, 0.0, 0.0]], [[1.0]], weight_BT=weight.double())
    assert loss == pytest.approx(-(1.0 + 3.0 + 0.5) / 3)


def test_kl_estimates_by_hand_and_on_average():
    # p = (0.5, 0.5), q = (0.8, 0.2): KL(p||q) = 0.5 ln(0.5/0.8) + 0.5 ln(0.5/0.2) = 0.2231436
    logp, ref = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.8, 0.2]).log()
    assert kl_estimate(logp, ref, kind="k1").mean().item() == pytest.approx(0.2231436, abs=1e-6)
    # k3 is unbiased too: 0.5 (0.8/0.5 - 1) + 0.5 (0.2/0.5 - 1) = 0 is all that it adds.
    assert kl_estimate(logp, ref, kind="k3").mean().item() == pytest.approx(0.2231436, abs=1e-6)
    assert kl_estimate(logp, ref, kind="k3").min().item() > 0
    # k2 of the first: ln(0.5/0.8)^2 / 2 = 0.1104517
    assert kl_estimate(logp, ref, kind="k2")[0].item() == pytest.approx(0.1104517, abs=1e-6)
    with pytest.raises(ValueError, match="kind must be k1, k2, k3 or low_variance; got 'k4'"):
        kl_estimate(logp, ref, kind="k4")
