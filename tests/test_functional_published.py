"""Our numbers beside those of published implementations, computed once with them and written down here.

verl 0.9.1 (`verl.trainer.ppo.core_algos`) and TRL 1.16.0 (`DPOTrainer`, `get_soft_overlong_punishment`), in float64, on
two rows of two turns and one of one. They multiply by a mask of numbers, so their hidden slots hold 9 and ours nan.
"""

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
    discounted_return,
    dpo_loss,
    gae,
    group_relative_advantage,
    kl_estimate,
    leave_one_out_advantage,
    probability_ratio,
    soft_overlong_penalty,
    whiten,
)

X = math.nan


def tensor(values, **kwargs):
    return torch.tensor(values, dtype=torch.float64, **kwargs)


def assert_close(ours, theirs, abs=1e-7):
    assert ours.detach().numpy() == pytest.approx(tensor(theirs).numpy(), abs=abs)


LOGP = [[X, -1.0, -0.5, X, X, -2.0, -0.1, X], [X, -0.3, X, X, -1.2, -0.7, -0.2, -0.4], [X, X, -0.9, -1.5, X, X, X, X]]
OLD = [[X, -1.3, -0.4, X, X, -1.7, -0.2, X], [X, -0.6, X, X, -1.0, -0.9, -0.2, -0.1], [X, X, -0.4, -1.4, X, X, X, X]]
MASK = ~tensor(LOGP).isnan()
REWARD = tensor([[X, 0, 0.5, X, X, 0, 1.0, X], [X, -0.25, X, X, 0, 0, 0, 2.0], [X, X, 0, -1.0, X, X, X, X]])
VALUE = tensor([[X, 0.1, 0.2, X, X, 0.3, 0.4, X], [X, -0.5, X, X, 0.6, 0.7, -0.8, 0.9], [X, X, 1.1, -0.2, X, X, X, X]])
ADVANTAGE = tensor([[1.0], [-0.5], [2.0]])
COUNTS = Counts(tokens=MASK.sum(), sequences=3, episodes=3, constant=8)  # verl's constant is the width

GAE_TARGET = [
    [0, 0.8454528, 1.12424, 0, 0, 0.792, 1.0, 0],
    [0, 0.4720137, 0, 0, 0.8527968, 1.00944, 1.602, 2.0],
    [0, 0, -0.756, -1.0, 0, 0, 0, 0],
]


def policy_loss(logp, over, level="token"):
    ratio = probability_ratio(logp, tensor(OLD), MASK, level=level)
    loss = clipped_surrogate(ratio, ADVANTAGE, MASK, clip_low=0.2, clip_high=0.28)
    return aggregate(loss, MASK, over=over, counts=COUNTS)


def test_gae_is_verls_and_so_is_its_whitening():
    advantage, target = gae(REWARD, VALUE, MASK, torch.zeros(3), gamma=0.9, lam=0.8)
    assert_close(target, GAE_TARGET)
    whitened = [
        [0, 0.25617054, 0.42091677, 0, 0, 0.02262254, 0.12214081, 0],
        [0, 0.46493858, 0, 0, -0.19779495, -0.1456002, 1.78262157, 0.58287354],
        [0, 0, -2.14097837, -1.16791084, 0, 0, 0, 0],
    ]
    assert_close(whiten(advantage, MASK), whitened)


def test_the_reinforce_pp_return_and_advantage_are_verls():
    returns = discounted_return(REWARD, MASK, gamma=0.9)
    expected = [
        [0, 1.179, 1.31, 0, 0, 0.9, 1.0, 0],
        [0, 1.0622, 0, 0, 1.458, 1.62, 1.8, 2.0],
        [0, 0, -0.9, -1.0, 0, 0, 0, 0],
    ]
    assert_close(returns, expected)
    whitened = [
        [0, 0.23139411, 0.36267961, 0, 0, -0.04821394, 0.052004, 0],
        [0, 0.11433956, 0, 0, 0.51100215, 0.67335521, 0.8537475, 1.05418337],
        [0, 0, -1.85213681, -1.95235475, 0, 0, 0, 0],
    ]
    assert_close(whiten(returns, MASK), whitened)


def test_group_advantages_are_verls():
    returns, groups = tensor([1.0, 0.0, 0.25, 0.5, 2.0]), torch.tensor([0, 0, 1, 1, 1])
    assert_close(leave_one_out_advantage(returns, groups), [1.0, -1.0, -1.0, -0.625, 1.625])
    # verl takes the deviation in float32.
    normalized = [0.70710578, -0.70710578, -0.70435998, -0.44022499, 1.14458497]
    assert_close(group_relative_advantage(returns, groups, normalize_std=True), normalized)
    # REINFORCE++ with the group's mean for a baseline: that, whitened over the tokens.
    mask = torch.tensor([[True, False], [True, True], [True, True], [True, False], [True, True]])
    centred = group_relative_advantage(returns, groups, normalize_std=False)[:, None].expand(5, 2)
    expected = [[0.66219671, 0], [-0.63516827] * 2, [-0.85139577] * 2, [-0.52705452, 0], [1.41899295] * 2]
    assert_close(whiten(centred, mask), expected)


@pytest.mark.parametrize(
    ("over", "loss", "gradient"),
    [
        (
            "tokens",  # token-mean
            -0.40532423,
            [
                [0, 0, -0.08225795, 0, 0, -0.06734711, -0.10047008, 0],
                [0, 0.06135722, 0, 0, 0.03721503, 0.05551831, 0.04545455, 0],
                [0, 0, -0.1102783, -0.16451589, 0, 0, 0, 0],
            ],
        ),
        (
            "sequences",  # seq-mean-token-mean
            -0.66669183,
            [
                [0, 0, -0.07540312, 0, 0, -0.06173485, -0.09209758, 0],
                [0, 0.04499529, 0, 0, 0.02729103, 0.04071343, 0.03333333, 0],
                [0, 0, -0.20217689, -0.30161247, 0, 0, 0, 0],
            ],
        ),
        (
            "constant",  # seq-mean-token-sum-norm
            -0.18577361,
            [
                [0, 0, -0.03770156, 0, 0, -0.03086743, -0.04604879, 0],
                [0, 0.02812206, 0, 0, 0.01705689, 0.02544589, 0.02083333, 0],
                [0, 0, -0.05054422, -0.07540312, 0, 0, 0, 0],
            ],
        ),
    ],
)
def test_the_clipped_surrogate_and_its_averages_are_verls(over, loss, gradient):
    logp = tensor(LOGP, requires_grad=True)
    ours = policy_loss(logp, over)
    ours.backward()
    assert ours.item() == pytest.approx(loss, abs=1e-7)
    assert_close(logp.grad, gradient)


def test_the_sequence_surrogate_is_verls_with_the_mean_over_sequences():
    logp = tensor(LOGP, requires_grad=True)
    loss = policy_loss(logp, "sequences", level="sequence")
    loss.backward()
    assert loss.item() == pytest.approx(-0.66054548, abs=1e-7)
    high, low, clipped_up = -0.08333333, 0.03333333, -0.24693941
    gradient = [
        [0, high, high, 0, 0, high, high, 0],
        [0, low, 0, 0, low, low, low, low],
        [0, 0, clipped_up, clipped_up, 0, 0, 0, 0],
    ]
    assert_close(logp.grad, gradient)


def test_the_clipped_value_loss_is_verls():
    value = tensor(
        [[X, 0.5, -0.4, X, X, 0.3, 1.4, X], [X, -0.1, X, X, 0.0, 1.7, -0.9, 1.1], [X, X, 0.1, -0.25, X, X, X, X]]
    )
    loss = clipped_value_loss(value, VALUE, tensor(GAE_TARGET), MASK, clip=0.2)
    assert aggregate(loss, MASK, over="tokens", counts=COUNTS).item() == pytest.approx(0.69081232, abs=1e-7)


def test_kl_estimates_are_verls():
    logp, ref = tensor([-1.0, -0.5, -2.0, -0.1]), tensor([-1.3, -0.4, -30.0, -0.1])
    assert_close(kl_estimate(logp, ref, kind="k1"), [0.3, -0.1, 28.0, 0.0])
    assert_close(kl_estimate(logp, ref, kind="k2"), [0.045, 0.005, 392.0, 0.0])
    assert_close(kl_estimate(logp, ref, kind="low_variance"), [0.04081822, 0.00517092, 10.0, 0.0])
    # verl's k3 is held at 10, too; ours has 20 for the 28: exp(-20) - 1 + 20.
    assert_close(kl_estimate(logp, ref, kind="k3"), [0.04081822, 0.00517092, 19.0, 0.0])


def test_the_adaptive_coefficient_is_verls_with_5_samples_of_a_horizon_of_50():
    kl_coeff, seen = 0.2, []
    for kl in (0.05, 0.1, 0.11, 0.5):
        kl_coeff = adaptive_kl_coeff(kl_coeff, kl, target=0.1, rate=5 / 50)
        seen.append(kl_coeff)
    assert seen == pytest.approx([0.196, 0.196, 0.19796, 0.2019192])


def test_the_overlong_penalty_is_trls():
    num_tokens = torch.tensor([10, 80, 81, 90, 100, 101, 500])
    penalty = soft_overlong_penalty(num_tokens, max_tokens=100, buffer=20)
    assert penalty.tolist() == pytest.approx([0.0, 0.0, -0.05, -0.5, -1.0, -1.0, -1.0])


@pytest.mark.parametrize(
    ("kind", "label_smoothing", "per_token", "loss", "gradient"),
    [
        ("sigmoid", 0.0, 1, 0.62375121, [-0.10638937, -0.125]),
        # TRL smooths labels in `robust` and `aot` only; `aot` of pairs in the order of their margins is the plain loss.
        ("sigmoid", 0.1, 1, 0.63875121, [-0.08138937, -0.1]),
        # TRL divides by the number of tokens, here two each.
        ("ipo", 0.0, 2, 0.745, [-0.35, -0.5]),
    ],
)
def test_dpo_is_trls(kind, label_smoothing, per_token, loss, gradient):
    chosen = tensor([-7.0, -7.5], requires_grad=True)
    sums = chosen, tensor([-5.5, -8.0]), tensor([-7.6, -6.0]), tensor([-5.5, -6.5])
    ours = dpo_loss(*(x / per_token for x in sums), beta=0.5, label_smoothing=label_smoothing, kind=kind).mean()
    ours.backward()
    assert ours.item() == pytest.approx(loss, abs=1e-7)
    assert_close(chosen.grad, gradient)
