"""Losses and their averages: golden values small enough to check by hand, with the arithmetic beside them."""

from __future__ import annotations

import math

import pytest
import torch

from rllm_gym.algorithms.functional import (
    Counts,
    adaptive_kl_coeff,
    aggregate,
    clipped_surrogate,
    clipped_value_loss,
    divergence,
    dpo_loss,
    importance_weight,
    kl_estimate,
    negative_log_likelihood,
    probability_ratio,
)

X = math.nan
# Each sign of the advantage, with the ratio within the clip, above it and below it; clip_low 0.2, clip_high 0.3.
SIGN_CASES = [
    (1.0, 2.0, 2.0, True),  # unclipped
    (1.5, 2.0, 1.3 * 2.0, False),  # raised too far and good: held at 1 + clip_high
    (0.5, 2.0, 0.5 * 2.0, True),  # lowered too far but good: may come back
    (1.0, -2.0, -2.0, True),  # unclipped
    (1.5, -2.0, 1.5 * -2.0, True),  # raised too far but bad: may come back
    (0.5, -2.0, 0.8 * -2.0, False),  # lowered too far and bad: held at 1 - clip_low
]
CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def tensor(values, **kwargs):
    return torch.tensor(values, dtype=torch.float64, **kwargs)


def policy_loss(log_ratio, advantage, mask=None, level="token", **kwargs):
    """Return the clipped surrogate per token and its gradient by the log-probabilities."""
    logp = tensor(log_ratio, requires_grad=True)
    mask = torch.ones(logp.shape, dtype=torch.bool) if mask is None else torch.tensor(mask)
    ratio = probability_ratio(logp, torch.zeros_like(logp), mask, level=level)
    loss = clipped_surrogate(ratio, tensor(advantage), mask, **CLIP, **kwargs)
    loss.sum().backward()
    return loss.tolist(), logp.grad.tolist()


# The surrogate.


@pytest.mark.parametrize(("ratio", "advantage", "gain", "flows"), SIGN_CASES)
def test_clipped_surrogate_in_every_sign_case(ratio, advantage, gain, flows):
    [[loss]], [[gradient]] = policy_loss([[math.log(ratio)]], [[advantage]])
    assert loss == pytest.approx(-gain)
    assert gradient == pytest.approx(-ratio * advantage if flows else 0.0)  # d ratio / d logp = ratio


@pytest.mark.parametrize(("ratio", "advantage", "gain", "flows"), SIGN_CASES)
def test_the_sequence_ratio_is_the_geometric_mean_over_all_turns_in_every_sign_case(ratio, advantage, gain, flows):
    # Sampled at 1, 3, 4: two turns, three tokens; log ratios 3 l, -l, l: mean l = log(ratio). Row 2 has no token.
    mask = [[False, True, False, True, True], [False] * 5]
    log_ratio = math.log(ratio)
    rows = [[X, 3 * log_ratio, X, -log_ratio, log_ratio], [X] * 5]
    logp = tensor(rows, requires_grad=True)
    old = torch.where(torch.tensor(mask), 0.0, X).double()
    ratios = probability_ratio(logp, old, torch.tensor(mask), level="sequence")
    assert ratios.tolist() == [pytest.approx([1.0, ratio, 1.0, ratio, ratio]), [1.0] * 5]
    loss = clipped_surrogate(ratios, tensor([[advantage], [X]]), torch.tensor(mask), **CLIP)
    (loss.sum() / 3).backward()
    assert loss.tolist() == [pytest.approx([0.0, -gain, 0.0, -gain, -gain]), [0.0] * 5]
    each = -ratio * advantage / 3 if flows else 0.0  # d ratio / d logp = ratio / 3
    assert logp.grad.tolist() == [pytest.approx([0.0, each, 0.0, each, each]), [0.0] * 5]


def test_in_a_sequence_every_tokens_own_advantage_is_its_credit():
    # GSPO-token. Log ratios .3, -.1, .1: s = e^.1 = 1.105171, within the clip; advantages 1, 1, -2. The mean advantage
    # is 0, and yet a good turn is reinforced and a bad one is not.
    [losses], [gradient] = policy_loss([[0.3, -0.1, 0.1]], [[1.0, 1.0, -2.0]], level="sequence")
    assert losses == pytest.approx([-1.105171, -1.105171, 2.210342], abs=1e-6)
    assert gradient == pytest.approx([-1.105171, -1.105171, 2.210342], abs=1e-6)  # d s_t / d logp_t = s
    # s = e^.4 = 1.491825, above 1.3: held for the good tokens, not for the bad one.
    [losses], [gradient] = policy_loss([[0.4, 0.0, 0.8]], [[1.0, 1.0, -2.0]], level="sequence")
    assert losses == pytest.approx([-1.3, -1.3, 2.983649], abs=1e-6)
    assert gradient == pytest.approx([0.0, 0.0, 2.983649], abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "flows"),
    [
        (1.5, -2.0, 3.0, True),  # below the dual clip: as without it
        (5.0, -2.0, 6.0, False),  # above it: 3 * 2 instead of 5 * 2
        (0.5, -2.0, 1.6, False),  # the lower clip stays: 0.8 * 2
        (5.0, 2.0, -2.6, False),  # a good token knows the upper clip only
        (0.5, 2.0, -1.0, True),
    ],
)
def test_the_dual_clip_limits_the_loss_of_bad_tokens_alone(ratio, advantage, loss, flows):
    [[out]], [[gradient]] = policy_loss([[math.log(ratio)]], [[advantage]], dual_clip=3.0)
    assert out == pytest.approx(loss)
    assert gradient == pytest.approx(-ratio * advantage if flows else 0.0)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("advantage", [2.0, -2.0, 0.0])
@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
def test_a_log_ratio_beyond_the_exponents_range_leaves_loss_and_gradient_finite(log_ratio, advantage, level):
    logp = torch.tensor([[log_ratio, log_ratio]], requires_grad=True)  # float32, whose exp ends at 88.7
    mask = torch.tensor([[True, True]])
    ratio = probability_ratio(logp, torch.zeros(1, 2), mask, level=level)
    assert ratio.tolist() == [pytest.approx([math.exp(math.copysign(20, log_ratio))] * 2)]
    loss = clipped_surrogate(ratio, torch.tensor([[advantage]]), mask, **CLIP)
    loss.sum().backward()
    held = {(100, 2): 1.3 * 2, (100, -2): -math.exp(20) * 2, (-100, 2): math.exp(-20) * 2, (-100, -2): 0.8 * -2}
    assert loss.tolist() == [pytest.approx([-held.get((log_ratio, advantage), 0.0)] * 2)]
    assert logp.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("garbage", [1e6, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_what_the_mask_hides_never_leaks(level, garbage):
    mask = [[False, True, False], [True, False, True]]
    clean = policy_loss([[0.0, 0.1, 0.0], [0.2, 0.0, -0.3]], [[1.0] * 3, [-2.0] * 3], mask, level)
    dirty = policy_loss(
        [[garbage, 0.1, garbage], [0.2, garbage, -0.3]],
        [[garbage, 1.0, garbage], [-2.0, garbage, -2.0]],
        mask,
        level,
    )
    assert dirty == clean


def test_a_mask_of_numbers_and_an_unknown_level_are_refused():
    x, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    counts = Counts(tokens=2, sequences=1, episodes=1)
    for call in (
        lambda mask: probability_ratio(x, x, mask),
        lambda mask: clipped_surrogate(x, x, mask, **CLIP),
        lambda mask: importance_weight(x, x, mask, level="token", mode="truncate", cap=2.0),
        lambda mask: kl_estimate(x, x, kind="k1", mask_BT=mask),
        lambda mask: clipped_value_loss(x, x, x, mask, clip=None),
        lambda mask: negative_log_likelihood(x, x, mask),
        lambda mask: aggregate(x, mask, over="tokens", counts=counts),
    ):
        call(mask)
        with pytest.raises(TypeError, match=r"masks are bool, True where sampled; got torch.int64. Pass mask.bool()"):
            call(mask.long())
    with pytest.raises(ValueError, match="probability_ratio: level must be token or sequence; got 'turn'"):
        probability_ratio(x, x, mask, level="turn")


# Averages.

# Rows 0 and 1 are one episode of 1 + 3 tokens, row 2 one of 2, row 3 has no token.
LOSS = [[X, 4.0, X], [1.0, 2.0, 3.0], [6.0, X, 10.0], [X, X, X]]
MASK = [[False, True, False], [True, True, True], [True, False, True], [False] * 3]
COUNTS = {"tokens": torch.tensor(6), "sequences": torch.tensor(3), "episodes": 2.0, "constant": 10}
EPISODE_TOKENS = torch.tensor([4, 4, 2, 0])
AVERAGES = [
    ("tokens", (4 + 1 + 2 + 3 + 6 + 10) / 6, [1 / 6] * 3),
    ("sequences", (4 / 1 + (1 + 2 + 3) / 3 + (6 + 10) / 2) / 3, [1 / 3, 1 / 9, 1 / 6]),
    ("episodes", ((4 + 1 + 2 + 3) / 4 + (6 + 10) / 2) / 2, [1 / 8, 1 / 8, 1 / 4]),
    ("constant", (4 + 1 + 2 + 3 + 6 + 10) / (3 * 10), [1 / 30] * 3),
]


@pytest.mark.parametrize(("over", "expected", "weights"), AVERAGES)
def test_aggregate_by_hand_and_how_much_each_rows_tokens_count(over, expected, weights):
    loss, mask = tensor(LOSS, requires_grad=True), torch.tensor(MASK)
    out = aggregate(loss, mask, over=over, counts=Counts(**COUNTS, episode_tokens_B=EPISODE_TOKENS))
    out.backward()
    assert out.item() == pytest.approx(expected)
    expected_gradient = torch.tensor([*weights, 0.0], dtype=torch.float64)[:, None] * mask
    assert loss.grad.numpy() == pytest.approx(expected_gradient.numpy())


@pytest.mark.parametrize("over", [over for over, *_ in AVERAGES])
def test_micro_batches_sum_to_the_whole_with_an_episode_split_between_them(over):
    loss, mask = tensor(LOSS), torch.tensor(MASK)

    def part(rows):
        counts = Counts(**COUNTS, episode_tokens_B=EPISODE_TOKENS[rows])
        return aggregate(loss[rows], mask[rows], over=over, counts=counts).item()

    # The two rows of the first episode come apart, beside the other episode and an empty row.
    assert part([0, 3]) + part([3]) + part([1, 2]) == pytest.approx(part([0, 1, 2, 3]), abs=1e-12)
    assert part([0]) != pytest.approx(part([1]))


@pytest.mark.parametrize("over", [over for over, *_ in AVERAGES])
def test_an_empty_minibatch_gives_0_with_a_gradient_of_0(over):
    loss, mask = torch.full((2, 3), X, requires_grad=True), torch.zeros(2, 3, dtype=torch.bool)
    nothing = {"tokens": torch.tensor(0), "sequences": 0, "episodes": torch.tensor(0.0), "constant": 10}
    out = aggregate(loss, mask, over=over, counts=Counts(**nothing, episode_tokens_B=torch.zeros(2)))
    out.backward()
    assert out.item() == 0.0
    assert loss.grad.tolist() == [[0.0] * 3] * 2


def test_an_average_over_nothing_known_is_refused():
    loss, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    counts = Counts(tokens=1, sequences=1, episodes=1)
    for over in ("words", "episodes", "constant"):  # of the last two the counts know nothing
        with pytest.raises(ValueError, match=rf"aggregate: over must be tokens, sequences, .* got '{over}'"):
            aggregate(loss, mask, over=over, counts=counts)


def test_at_ratio_one_the_gradient_is_reinforces():
    # d/dlogp of -(1/N) sum A logp is -A/N.
    logp = torch.zeros(2, 2, requires_grad=True)
    mask = torch.ones(2, 2, dtype=torch.bool)
    ratio = probability_ratio(logp, torch.zeros(2, 2), mask)
    loss = clipped_surrogate(ratio, torch.tensor([[3.0], [-1.0]]), mask, **CLIP)
    aggregate(loss, mask, over="tokens", counts=Counts(tokens=4, sequences=2, episodes=2)).backward()
    assert logp.grad.tolist() == [[-0.75, -0.75], [0.25, 0.25]]


# Importance weights.


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        # Ratios 0.5, 5, 2 and 0.25, 2: products 5 and 0.5.
        ("token", "truncate", [[0.5, 0.0, 3.0, 2.0], [0.0, 0.25, 2.0, 0.0]]),
        ("token", "mask", [[0.5, 0.0, 0.0, 2.0], [0.0, 0.25, 2.0, 0.0]]),
        ("sequence", "truncate", [[3.0, 0.0, 3.0, 3.0], [0.0, 0.5, 0.5, 0.0]]),
        ("sequence", "mask", [[0.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]]),
    ],
)
def test_importance_weights_of_tokens_and_sequences_truncated_and_masked(level, mode, expected):
    ratio = tensor([[0.5, X, 5.0, 2.0], [X, 0.25, 2.0, X]])
    logp = tensor([[-1.0, X, -2.0, -0.5], [X, -3.0, -0.1, X]], requires_grad=True)
    sampler = logp.detach() - ratio.log()
    options = {"level": level, "mode": mode, "cap": 3.0}
    weight = importance_weight(logp, sampler, ~ratio.isnan(), **options)
    assert weight.numpy() == pytest.approx(tensor(expected).numpy())
    assert not weight.requires_grad
    # A veto of 0.4 discards the second row for its 0.25, whatever its product; one of 0.2 discards none.
    vetoed = importance_weight(logp, sampler, ~ratio.isnan(), **options, veto=0.4)
    assert vetoed.numpy() == pytest.approx(tensor([expected[0], [0.0] * 4]).numpy())
    kept = importance_weight(logp, sampler, ~ratio.isnan(), **options, veto=0.2)
    assert kept.numpy() == pytest.approx(tensor(expected).numpy())


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_stay_finite_where_the_product_leaves_the_exponents_range(level):
    mask = torch.ones(2, 2, dtype=torch.bool)
    logp = torch.tensor([[60.0, 60.0], [-60.0, -60.0]])
    options = {"level": level, "cap": 2.0}
    out = importance_weight(logp, torch.zeros(2, 2), mask, mode="truncate", **options)
    assert out.tolist() == [[2.0, 2.0], pytest.approx([math.exp(-20)] * 2)]
    out = importance_weight(logp, torch.zeros(2, 2), mask, mode="mask", **options)
    assert out.tolist() == [[0.0, 0.0], pytest.approx([math.exp(-20)] * 2)]
    # The veto sees the ratio itself: e^-60 is below 1e-10, which the bound of e^-20 = 2e-9 is not.
    out = importance_weight(logp, torch.zeros(2, 2), mask, mode="truncate", veto=1e-10, **options)
    assert out.tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_a_sampled_token_without_a_probability_shows_in_its_weight():
    # Neither the cap nor the veto turns a nan into a number: the loss becomes nan, which stops the run.
    logp, sampler = torch.tensor([[0.0, 0.0]]), torch.tensor([[X, 0.0]])
    mask = torch.tensor([[True, True]])
    for mode in ("truncate", "mask"):
        out = importance_weight(logp, sampler, mask, level="token", mode=mode, cap=2.0, veto=1e-4)
        assert math.isnan(out[0, 0]) and out[0, 1] == 1.0


def test_unknown_levels_and_modes_of_importance_weights_are_refused():
    x, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    for level, mode in (("turn", "mask"), ("token", "clip")):
        with pytest.raises(ValueError, match=f"got level='{level}', mode='{mode}'"):
            importance_weight(x, x, mask, level=level, mode=mode, cap=2.0)


# The KL.


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


def test_no_kind_of_kl_lets_hidden_values_into_its_gradient():
    mask = torch.tensor([[True, False, False, False]])
    for kind in ("k1", "k2", "k3", "low_variance"):
        logp = tensor([[-1.0, X, math.inf, 1e6]], requires_grad=True)
        out = kl_estimate(logp, tensor([[-2.0, 0.0, -math.inf, -1e6]]), kind=kind, mask_BT=mask)
        out.sum().backward()
        assert out[0, 1:].tolist() == [0.0] * 3
        assert logp.grad[0, 1:].tolist() == [0.0] * 3
        assert logp.grad[0, 0] > 0  # k1 = 1: the policy is above the reference, all of them push down


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # exp(-20) - 1 + 20 and exp(20) - 1 - 20
        ("k3", [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 19.0, math.exp(20) - 21]),
        ("low_variance", [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 10.0, 10.0]),
    ],
)
def test_k3_and_the_low_variance_kl_stay_finite_in_value_and_gradient(kind, expected):
    logp = torch.tensor([0.5, -0.5, 100.0, -100.0], requires_grad=True)
    out = kl_estimate(logp, torch.zeros(4), kind=kind)
    out.sum().backward()
    assert out.tolist() == pytest.approx(expected)
    # d k3 / d k1 = 1 - exp(-k1)
    assert logp.grad.tolist() == pytest.approx([1 - math.exp(-0.5), 1 - math.exp(0.5), 0.0, 0.0])


def test_the_kl_coefficient_follows_the_target():
    # Error clipped to +-0.2 and a tenth of it applied: *1.02, *0.98; 10 % above: *1.01; on target: unchanged.
    for kl, factor in ((5.0, 1.02), (0.0, 0.98), (0.11, 1.01), (0.1, 1.0), (-3.0, 0.98)):
        assert adaptive_kl_coeff(0.5, kl, target=0.1) == pytest.approx(0.5 * factor)
    assert adaptive_kl_coeff(0.5, 0.11, target=0.1, rate=1.0) == pytest.approx(0.55)


# The critic, cloning, preferences.


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
    out = clipped_value_loss(value, tensor([[old, X]]), tensor([[target, X]]), mask, clip=0.2)
    out.sum().backward()
    assert out.tolist() == [pytest.approx([loss, 0.0])]
    assert value.grad.tolist() == [pytest.approx([gradient, 0.0])]


def test_the_value_loss_without_clip_is_half_the_square():
    value, mask = tensor([[1.5, 3.0]]), torch.tensor([[True, True]])
    out = clipped_value_loss(value, tensor([[0.0, 0.0]]), tensor([[2.0, 1.0]]), mask, clip=None)
    assert out.tolist() == [pytest.approx([0.25 / 2, 4.0 / 2])]


def test_cloning_counts_the_masked_in_tokens_and_weighs_sequences():
    logp = tensor([[X, -1.0, X, -2.0], [X, X, -4.0, X]], requires_grad=True)
    mask = torch.tensor([[False, True, False, True], [False, False, True, False]])
    loss = negative_log_likelihood(logp, torch.ones(2, 4), mask)
    assert loss.tolist() == [[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 4.0, 0.0]]
    weight = tensor([[0.0], [0.5]], requires_grad=True)
    loss = negative_log_likelihood(logp, weight, mask)
    loss.sum().backward()
    assert loss.tolist() == [[0.0] * 4, [0.0, 0.0, 2.0, 0.0]]
    assert logp.grad.tolist() == [[0.0] * 4, [0.0, 0.0, -0.5, 0.0]]
    assert weight.grad is None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_dpo_by_hand(sign):
    # Margin h: (-5 + 6) - (-3 + 2) = 2, or -2 with the pair the other way round.
    better, worse, ref_better, ref_worse = (tensor([v]) for v in (-5.0, -3.0, -6.0, -2.0))
    pair = (better, worse, ref_better, ref_worse) if sign > 0 else (worse, better, ref_worse, ref_better)
    plain = dpo_loss(*pair, beta=0.5, label_smoothing=0.0, kind="sigmoid")
    assert plain.tolist() == pytest.approx([math.log(1 + math.exp(-sign))])  # -log sigmoid(0.5 h)
    smooth = dpo_loss(*pair, beta=0.5, label_smoothing=0.1, kind="sigmoid")
    expected = 0.9 * math.log(1 + math.exp(-sign)) + 0.1 * math.log(1 + math.exp(sign))
    assert smooth.tolist() == pytest.approx([expected])
    ipo = dpo_loss(*pair, beta=0.5, label_smoothing=0.0, kind="ipo")
    assert ipo.tolist() == pytest.approx([(2 * sign - 1) ** 2])  # 1 / (2 * 0.5) = 1
    smooth = dpo_loss(*pair, beta=0.5, label_smoothing=0.1, kind="ipo")
    assert smooth.tolist() == pytest.approx([0.9 * (2 * sign - 1) ** 2 + 0.1 * (-2 * sign - 1) ** 2])


def test_dpo_keeps_pairs_apart_and_leaves_margins_beyond_the_exponents_range_finite():
    zero = torch.zeros(2, requires_grad=True)
    loss = dpo_loss(zero, torch.tensor([0.0, 2000.0]), torch.zeros(2), torch.zeros(2), beta=1.0)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([math.log(2), 2000])
    assert zero.grad.tolist() == pytest.approx([-0.5, -1.0])
    with pytest.raises(ValueError, match="kind must be sigmoid or ipo; got 'hinge'"):
        dpo_loss(zero, zero, zero, zero, beta=1.0, kind="hinge")


def test_divergences_are_those_of_hand_and_zero_of_equals():
    policy, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    forward = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    reverse = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5.0)
    assert divergence(policy, teacher, kind="forward_kl").tolist() == pytest.approx([forward])
    assert divergence(policy, teacher, kind="reverse_kl").tolist() == pytest.approx([reverse])
    mixed = [0.25 * 0.9 + 0.75 * 0.5, 0.25 * 0.1 + 0.75 * 0.5]  # beta is the teacher's share
    of_teacher = 0.9 * math.log(0.9 / mixed[0]) + 0.1 * math.log(0.1 / mixed[1])
    of_policy = 0.5 * math.log(0.5 / mixed[0]) + 0.5 * math.log(0.5 / mixed[1])
    jsd = 0.25 * of_teacher + 0.75 * of_policy
    assert divergence(policy, teacher, kind="jsd", beta=0.25).tolist() == pytest.approx([jsd])
    for kind in ("forward_kl", "reverse_kl", "jsd"):
        assert divergence(teacher, teacher, kind=kind).tolist() == pytest.approx([0.0], abs=1e-6)
    with pytest.raises(ValueError, match="must be forward_kl, reverse_kl or jsd"):
        divergence(policy, teacher, kind="kl")


def test_a_divergences_gradient_leads_to_the_teacher():
    logits = torch.zeros(1, 3, requires_grad=True)
    teacher = torch.tensor([[0.7, 0.2, 0.1]])
    divergence(torch.log_softmax(logits, -1), teacher.log(), kind="forward_kl").sum().backward()
    assert logits.grad.tolist()[0] == pytest.approx((1 / 3 - teacher).tolist()[0], abs=1e-6)


def test_a_token_that_the_teacher_excludes_costs_a_forward_divergence_nothing():
    policy, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 0.0]]).log()
    assert divergence(policy, teacher, kind="forward_kl").tolist() == pytest.approx([math.log(2)])
