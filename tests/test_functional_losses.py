"""Losses beside the clipped surrogate: golden values with the arithmetic beside them."""

from __future__ import annotations

import math

import pytest
import torch

from rllm_gym.algorithms.functional import (
    adaptive_kl_coeff,
    averaging_weight,
    clipped_surrogate,
    clipped_value_loss,
    dpo_loss,
    kl_estimate,
    negative_log_likelihood,
    sequence_clipped_surrogate,
)

X = math.nan


def tensor(values, **kwargs):
    return torch.tensor(values, dtype=torch.float64, **kwargs)


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
def test_the_sequence_ratio_is_the_geometric_mean_over_all_turns_in_every_sign_case(ratio, advantage, gain, flows):
    # Sampled at 1, 3, 4: two turns, three tokens; log ratios 3 l, -l, l: mean l = log(ratio). Row 2 has no token.
    mask = torch.tensor([[False, True, False, True, True], [False] * 5])
    log_ratio = math.log(ratio)
    logp = tensor([[X, 3 * log_ratio, X, -log_ratio, log_ratio], [X] * 5], requires_grad=True)
    old = tensor([[X, 0.0, X, 0.0, 0.0], [X] * 5])
    loss = sequence_clipped_surrogate(
        logp, old, tensor([advantage, X]), mask, clip_low=0.2, clip_high=0.3, num_sequences=1
    )
    loss.backward()
    assert loss.item() == pytest.approx(-gain)
    each = -ratio * advantage / 3 if flows else 0.0  # d ratio / d logp = ratio / 3
    assert logp.grad[0].tolist() == pytest.approx([0.0, each, 0.0, each, each])
    assert logp.grad[1].tolist() == [0.0] * 5


def test_the_sequence_loss_averages_over_the_sequences_of_the_whole_step():
    # At ratio 1: -(2 - 1) / 2 whatever the lengths; of a step of 4 sequences half as much; weighted -(3 * 2 - 1) / 2.
    mask = torch.tensor([[True, False, False], [True, True, True]])
    zero, advantage = torch.zeros(2, 3), torch.tensor([2.0, -1.0])
    options = {"clip_low": 0.2, "clip_high": 0.2}
    assert sequence_clipped_surrogate(zero, zero, advantage, mask, **options, num_sequences=2).item() == -0.5
    assert sequence_clipped_surrogate(zero, zero, advantage, mask, **options, num_sequences=4).item() == -0.25
    weight = torch.tensor([3.0, 1.0])
    weighted = sequence_clipped_surrogate(zero, zero, advantage, mask, **options, num_sequences=2, weight_B=weight)
    assert weighted.item() == -2.5


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (1.1, 1.0, 2.0, 0.405, -0.9),  # within the clip: (0.9)^2 / 2
        (1.5, 1.0, 2.0, 0.32, 0.0),  # moved towards the target beyond the clip: (1.2 - 2)^2 / 2, no more to gain
        (0.5, 1.0, 2.0, 1.125, -1.5),  # moved away: the unclipped (0.5 - 2)^2 / 2 is the larger, it may come back
        (0.5, 1.0, 0.0, 0.32, 0.0),  # towards it from above: (0.8 - 0)^2 / 2
        (1.5, 1.0, 0.0, 1.125, 1.5),  # away from it from above: (1.5)^2 / 2
        (3.0, 1.0, 1.1, 1.805, 1.9),  # overshot: (1.9)^2 / 2
    ],
)
def test_the_value_loss_is_half_the_larger_square_in_every_case(value, old, target, loss, gradient):
    value = tensor([[value, X]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    out = clipped_value_loss(value, tensor([[old, X]]), tensor([[target, X]]), mask, clip=0.2, num_tokens=1)
    out.backward()
    assert out.item() == pytest.approx(loss)
    assert value.grad.tolist() == [pytest.approx([gradient, 0.0])]


def test_the_value_loss_without_clip_is_half_the_mean_square():
    value, mask = tensor([[1.5, 3.0]]), torch.tensor([[True, True]])
    out = clipped_value_loss(value, tensor([[0.0, 0.0]]), tensor([[2.0, 1.0]]), mask, clip=None, num_tokens=2)
    assert out.item() == pytest.approx((0.25 + 4.0) / 2 / 2)


def test_cloning_counts_the_masked_in_tokens_and_weighs_sequences():
    logp = tensor([[X, -1.0, X, -2.0], [X, X, -4.0, X]], requires_grad=True)
    mask = torch.tensor([[False, True, False, True], [False, False, True, False]])
    assert negative_log_likelihood(logp, mask, num_tokens=3).item() == pytest.approx((1 + 2 + 4) / 3)
    loss = negative_log_likelihood(logp, mask, num_tokens=3, weight_BT=tensor([[0.0], [0.5]]))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 4 / 3)
    assert logp.grad.tolist() == [[0.0] * 4, [0.0, 0.0, pytest.approx(-0.5 / 3), 0.0]]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_dpo_by_hand(sign):
    # Margin h: (-5 + 6) - (-3 + 2) = 2, or -2 with the pair the other way round.
    better, worse, ref_better, ref_worse = (tensor([v]) for v in (-5.0, -3.0, -6.0, -2.0))
    pair = (better, worse, ref_better, ref_worse) if sign > 0 else (worse, better, ref_worse, ref_better)
    plain = dpo_loss(*pair, beta=0.5, label_smoothing=0.0, kind="sigmoid")
    assert plain.item() == pytest.approx(math.log(1 + math.exp(-sign)))  # -log sigmoid(0.5 h)
    smooth = dpo_loss(*pair, beta=0.5, label_smoothing=0.1, kind="sigmoid")
    expected = 0.9 * math.log(1 + math.exp(-sign)) + 0.1 * math.log(1 + math.exp(sign))
    assert smooth.item() == pytest.approx(expected)
    ipo = dpo_loss(*pair, beta=0.5, label_smoothing=0.0, kind="ipo")
    assert ipo.item() == pytest.approx((2 * sign - 1) ** 2)  # 1 / (2 * 0.5) = 1
    assert dpo_loss(*pair, beta=0.5, label_smoothing=0.1, kind="ipo").item() == pytest.approx(
        0.9 * (2 * sign - 1) ** 2 + 0.1 * (-2 * sign - 1) ** 2
    )


def test_dpo_averages_over_pairs_and_leaves_margins_beyond_the_exponents_range_finite():
    zero = torch.zeros(2, requires_grad=True)
    loss = dpo_loss(zero, torch.tensor([0.0, 2000.0]), torch.zeros(2), torch.zeros(2), beta=1.0)
    loss.backward()
    assert loss.item() == pytest.approx((math.log(2) + 2000) / 2)
    assert zero.grad.tolist() == pytest.approx([-0.25, -0.5])
    with pytest.raises(ValueError, match="kind must be sigmoid or ipo; got 'hinge'"):
        dpo_loss(zero, zero, zero, zero, beta=1.0, kind="hinge")


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("tokens", -(1 * 2.0 + 3 * -1.0) / 4),  # all tokens alike
        ("sequences", -(2.0 - 1.0) / 2),  # the mean of each sequence's mean
        ("constant", -(1 * 2.0 + 3 * -1.0) / (2 * 10)),  # a sum over M * max_tokens
    ],
)
def test_averages_over_tokens_sequences_and_a_constant(over, expected):
    mask, zero = torch.tensor([[False, True, False], [True, True, True], [False] * 3]), torch.zeros(3, 3)
    counts = {"num_tokens": mask.sum(), "num_sequences": torch.tensor(2)}
    weight = averaging_weight(mask, over=over, **counts, max_tokens=10)
    assert (weight[~mask] == 0).all()
    options = {"clip_low": 0.2, "clip_high": 0.2, "num_tokens": counts["num_tokens"]}
    advantage = torch.tensor([[2.0], [-1.0], [X]])
    assert clipped_surrogate(zero, zero, advantage, mask, **options, weight_BT=weight).item() == pytest.approx(expected)


def test_an_average_over_nothing_known_is_refused():
    mask = torch.ones(1, 1, dtype=torch.bool)
    for wrong in ({"over": "words"}, {"over": "constant"}):
        with pytest.raises(ValueError, match="over must be tokens, sequences, or constant with max_tokens"):
            averaging_weight(mask, **wrong, num_tokens=1, num_sequences=1)


def test_no_kind_of_kl_lets_hidden_values_into_its_gradient():
    mask = torch.tensor([[True, False, False, False]])
    for kind in ("k1", "k2", "k3", "low_variance"):
        logp = tensor([[-1.0, X, math.inf, 1e6]], requires_grad=True)
        out = kl_estimate(logp, tensor([[-2.0, 0.0, -math.inf, -1e6]]), kind=kind, mask_BT=mask)
        out.sum().backward()
        assert out[0, 1:].tolist() == [0.0] * 3
        assert logp.grad[0, 1:].tolist() == [0.0] * 3
        assert logp.grad[0, 0] > 0  # k1 = 1: the policy is above the reference, all of them push down


def test_the_low_variance_kl_is_k3_and_stays_finite():
    difference = tensor([0.5, -0.5, 100.0, -100.0])
    out = kl_estimate(difference, torch.zeros(4), kind="low_variance")
    expected = [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 10.0, 10.0]  # exp(-20) - 1 + 20 = 19 is held at 10, too
    assert out.tolist() == pytest.approx(expected)


def test_the_kl_coefficient_follows_the_target():
    # Error clipped to +-0.2 and a tenth of it applied: *1.02, *0.98; 10 % above: *1.01; on target: unchanged.
    for kl, factor in ((5.0, 1.02), (0.0, 0.98), (0.11, 1.01), (0.1, 1.0), (-3.0, 0.98)):
        assert adaptive_kl_coeff(0.5, kl, target=0.1) == pytest.approx(0.5 * factor)
    assert adaptive_kl_coeff(0.5, 0.11, target=0.1, rate=1.0) == pytest.approx(0.55)
