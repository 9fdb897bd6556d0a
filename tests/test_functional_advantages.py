"""Advantages, returns and value targets: golden values with the arithmetic beside them."""

from __future__ import annotations

import math

import pytest
import torch

from rllm_gym.algorithms.functional import (
    discounted_return,
    explained_variance,
    gae,
    greedy_baseline_advantage,
    group_relative_advantage,
    has_spread,
    leave_one_out_advantage,
    step_group_advantage,
    whiten,
)

X = math.nan  # an environment's token: no value of it may matter
MASK = torch.tensor([[False, True, False, False, True, True, False]])  # P a0 E E a1 a1 E
TURN_END = torch.tensor([[False, True, False, False, False, True, False]])
REWARD = torch.tensor([[X, 1.0, X, X, 0.0, 3.0, X]])
VALUE = torch.tensor([[X, 1.0, X, X, 2.0, 4.0, X]])


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


def test_leave_one_out_compares_with_the_others():
    # Group 7: 1 - (0 + 0)/2, 0 - (1 + 0)/2, 0 - (1 + 0)/2; group 2: 2 - 4, 4 - 2; group 5 has no others.
    returns, groups = torch.tensor([1.0, 2.0, 0.0, 0.0, 4.0, 9.0]), torch.tensor([7, 2, 7, 7, 2, 5])
    assert leave_one_out_advantage(returns, groups).tolist() == pytest.approx([1.0, -2.0, -0.5, -0.5, 2.0, 0.0])


def test_equal_returns_have_no_advantage_whatever_rounding_does_to_their_mean():
    returns, groups = torch.full((3,), 0.1), torch.zeros(3, dtype=torch.long)  # float32: 0.1 + 0.1 + 0.1 is not 0.3
    assert group_relative_advantage(returns, groups, normalize_std=True).tolist() == [0.0] * 3
    assert leave_one_out_advantage(returns, groups).tolist() == [0.0] * 3


def test_the_greedy_baseline_is_that_of_the_own_group():
    returns, groups = torch.tensor([1.0, 0.0, 5.0]), torch.tensor([3, 8, 3])
    out = greedy_baseline_advantage(returns, groups, torch.tensor([0.25, 4.0]), torch.tensor([8, 3]))
    assert out.tolist() == [-3.0, -0.25, 1.0]
    with pytest.raises(ValueError, match=r"every group needs a greedy return; got none for \[8\]"):
        greedy_baseline_advantage(returns, groups, torch.tensor([4.0]), torch.tensor([3]))


def test_step_groups_add_the_advantage_among_equal_states_of_the_group():
    reward = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, X], [0.0, X]])
    state = torch.tensor([[5, 6], [5, 7], [5, 99], [5, 99]])
    mask = torch.tensor([[True, True], [True, True], [True, False], [True, False]])
    groups = torch.tensor([4, 4, 1, 1])
    # Group 4: returns 1, 0 -> 0.5, -0.5. Step returns at gamma 0.5: 0.5, 1 and 0, 0. State 5 of this group: 0.5, 0 ->
    # 0.25, -0.25; states 6 and 7 were met once -> 0. Group 1: 1, -1, and state 5 of this group: 2, 0 -> 1, -1.
    options = {"gamma": 0.5, "normalize_std": False}
    out = step_group_advantage(reward, state, mask, groups, **options)
    assert out.tolist() == [[0.75, 0.5], [-0.75, -0.5], [2.0, 0.0], [-2.0, 0.0]]
    out = step_group_advantage(reward, state, mask, groups, **options, step_weight=2.0)
    assert out.tolist() == [[1.0, 0.5], [-1.0, -0.5], [3.0, 0.0], [-3.0, 0.0]]
    # Two values a, b over their sample deviation |a - b| / sqrt(2) are +-1 / sqrt(2), here of episode and of state.
    out = step_group_advantage(reward, state, mask, groups, gamma=0.5, normalize_std=True)
    half = 1 / math.sqrt(2)
    expected = [[2 * half, half], [-2 * half, -half], [2 * half, 0.0], [-2 * half, 0.0]]
    assert out.numpy() == pytest.approx(torch.tensor(expected).numpy(), abs=1e-5)


def test_rewards_that_are_integers_count_as_floats():
    # Means, discounts and deviations of integers are no integers.
    returns, groups = torch.tensor([1, 0, 0]), torch.zeros(3, dtype=torch.long)
    plain = group_relative_advantage(returns, groups, normalize_std=False)
    assert plain.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert leave_one_out_advantage(returns, groups).tolist() == pytest.approx([1.0, -0.5, -0.5])
    mask = torch.tensor([[True, True, True]])
    assert discounted_return(torch.tensor([[0, 0, 1]]), mask, gamma=0.5).tolist() == [[0.25, 0.5, 1.0]]
    advantage, target = gae(torch.tensor([[0, 0, 1]]), torch.tensor([[0, 0, 1]]), mask, groups[:1], gamma=1.0, lam=0.5)
    assert (advantage.tolist(), target.tolist()) == ([[0.5, 1.0, 0.0]], [[0.5, 1.0, 1.0]])  # delta: 0, 1, 0
    assert whiten(torch.tensor([[1, 2, 3]]), mask).tolist() == [pytest.approx([-1.0, 0.0, 1.0])]


def test_whitened_values_by_hand():
    # 1, 3, 8: mean 4, sample variance (9 + 1 + 16) / 2 = 13
    x, mask = torch.tensor([[1.0, X, 3.0], [1e6, 8.0, X]]), torch.tensor([[True, False, True], [False, True, False]])
    out = whiten(x, mask)
    assert out.flatten().tolist() == pytest.approx([v / math.sqrt(13) for v in (-3, 0, -1, 0, 4, 0)], abs=1e-6)
    assert out.dtype == torch.float32


def test_one_value_and_equal_values_have_no_deviation():
    mask = torch.tensor([[True, False, False]])
    assert whiten(torch.tensor([[5.0, X, X]]), mask).tolist() == [[0.0, 0.0, 0.0]]
    assert whiten(torch.tensor([[0.1] * 3]), torch.ones(1, 3, dtype=torch.bool)).abs().max() < 1e-6
    assert whiten(torch.tensor([[X, X, X]]), torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[0.0, 0.0, 0.0]]


def test_discounted_return_counts_sampled_tokens_only():
    # 3; 0 + 0.5 * 3 = 1.5; 1 + 0.5 * 1.5 = 1.75
    assert discounted_return(REWARD, MASK, gamma=0.5).tolist() == [[0, 1.75, 0, 0, 1.5, 3, 0]]


def test_discounted_return_by_turns_discounts_between_turns_only():
    # Within turn 1: 3, 3; turn 0: 1 + 0.5 * 3 = 2.5
    out = discounted_return(REWARD, MASK, gamma=0.5, is_turn_end_BT=TURN_END)
    assert out.tolist() == [[0, 2.5, 0, 0, 3, 3, 0]]


@pytest.mark.parametrize(
    ("bootstrap", "advantage", "target"),
    [
        # delta: 3 + 0.5 * 8 - 4 = 3; 0 + 0.5 * 4 - 2 = 0; 1 + 0.5 * 2 - 1 = 1; A: 3, 0 + 0.25 * 3, 1 + 0.25 * 0.75
        (8.0, [1.1875, 0.75, 3.0], [2.1875, 2.75, 7.0]),
        # Terminated: 3 - 4 = -1, 0, 1; A: -1, -0.25, 1 - 0.0625
        (0.0, [0.9375, -0.25, -1.0], [1.9375, 1.75, 3.0]),
    ],
)
def test_gae_bootstraps_from_the_next_sampled_token_over_the_environments_reply(bootstrap, advantage, target):
    out = gae(REWARD, VALUE, MASK, torch.tensor([bootstrap]), gamma=0.5, lam=0.5)
    for tensor, (first, second, third) in zip(out, (advantage, target), strict=True):
        assert tensor.tolist() == [[0, first, 0, 0, second, third, 0]]


def test_gae_by_turns_applies_gamma_and_lambda_once_per_turn():
    # delta: 3 + 0.5 * 8 - 4 = 3; within the turn 0 + 4 - 2 = 2; 1 + 0.5 * 2 - 1 = 1
    # A: 3; within the turn 2 + 3 = 5; 1 + 0.25 * 5 = 2.25
    out = gae(REWARD, VALUE, MASK, torch.tensor([8.0]), gamma=0.5, lam=0.5, is_turn_end_BT=TURN_END)
    assert out[0].tolist() == [[0, 2.25, 0, 0, 5, 3, 0]]
    assert out[1].tolist() == [[0, 3.25, 0, 0, 7, 7, 0]]


def test_gae_takes_rows_of_different_lengths_each_with_its_own_bootstrap():
    mask = torch.tensor([[True, True], [False, True], [False, False]])
    reward = torch.tensor([[1.0, 0.0], [X, -1.0], [X, X]])
    value = torch.tensor([[0.0, 2.0], [X, 0.5], [X, X]])
    # Row 0: 0 + 1 - 2 = -1; 1 + 2 - 0 = 3, 3 + 0.5 * -1 = 2.5. Row 1: -1 + 4 - 0.5 = 2.5. Row 2 has no token.
    advantage, target = gae(reward, value, mask, torch.tensor([1.0, 4.0, X]), gamma=1.0, lam=0.5)
    assert advantage.tolist() == [[2.5, -1.0], [0.0, 2.5], [0.0, 0.0]]
    assert target.tolist() == [[2.5, 1.0], [0.0, 3.0], [0.0, 0.0]]


def test_advantages_and_targets_are_constants_to_the_optimizer():
    value = VALUE.clone().requires_grad_()
    assert not any(x.requires_grad for x in gae(REWARD, value, MASK, torch.zeros(1), gamma=0.9, lam=0.9))
    assert not discounted_return(value, MASK, gamma=0.9).requires_grad
    assert not whiten(value, MASK).requires_grad


# Returns 1 2 | 3, values 1 1 | 2, environment tokens of absurd value between them.
CRITIC_RETURN = torch.tensor([[1.0, 2.0, 1e6, torch.nan], [1e6, torch.inf, 3.0, 1e6]])
CRITIC_VALUE = torch.tensor([[1.0, 1.0, -1e6, 1e6], [1e6, torch.nan, 2.0, torch.inf]])
CRITIC_MASK = torch.tensor([[True, True, False, False], [False, False, True, False]])


def test_explained_variance_counts_sampled_tokens_only():
    # errors 0 1 1: mean 2/3, squares (4 + 1 + 1)/9 = 2/3; returns 1 2 3: squares 2; 1 - (2/3)/2 = 2/3
    assert explained_variance(CRITIC_VALUE, CRITIC_RETURN, CRITIC_MASK) == pytest.approx(2 / 3, abs=1e-6)


def test_a_perfect_critic_explains_all_and_a_constant_one_nothing():
    for value, explained in (
        (CRITIC_RETURN + 5, 1.0),  # an offset is no variance
        (torch.full_like(CRITIC_RETURN, 7.0), 0.0),
        (-CRITIC_RETURN, -3.0),  # errors of twice the returns
    ):
        assert explained_variance(value, CRITIC_RETURN, CRITIC_MASK) == pytest.approx(explained)


@pytest.mark.filterwarnings("error")
def test_returns_that_are_all_equal_but_for_rounding_or_none_at_all_give_zero():
    equal = torch.full_like(CRITIC_RETURN, 0.1)
    assert explained_variance(CRITIC_VALUE, equal, CRITIC_MASK) == 0.0
    assert explained_variance(CRITIC_VALUE, equal.double() + CRITIC_RETURN * 1e-8, CRITIC_MASK) == 0.0
    assert explained_variance(CRITIC_VALUE, CRITIC_RETURN, torch.zeros_like(CRITIC_MASK)) == 0.0


def test_a_mask_of_numbers_is_refused():
    for call in (
        lambda mask: discounted_return(REWARD, mask, gamma=1.0),
        lambda mask: gae(REWARD, VALUE, mask, torch.zeros(1), gamma=1.0, lam=1.0),
        lambda mask: whiten(REWARD, mask),
        lambda mask: explained_variance(VALUE, REWARD, mask),
    ):
        call(MASK)
        with pytest.raises(TypeError, match=r"masks are bool, True where sampled; got torch.int64. Pass mask.bool()"):
            call(MASK.long())
