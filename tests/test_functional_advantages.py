"""Advantages of episodes and turns, whitening: golden values with the arithmetic beside them."""

from __future__ import annotations

import math

import pytest
import torch

from rllm_gym.algorithms.functional import (
    discounted_return,
    gae,
    greedy_baseline_advantage,
    group_relative_advantage,
    leave_one_out_advantage,
    step_group_advantage,
    whiten,
)

X = math.nan


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


def test_whitened_values_by_hand():
    # 1, 3, 8: mean 4, sample variance (9 + 1 + 16) / 2 = 13
    x, mask = torch.tensor([[1.0, X, 3.0], [1e6, 8.0, X]]), torch.tensor([[True, False, True], [False, True, False]])
    out = whiten(x, mask)
    assert out.flatten().tolist() == pytest.approx([v / math.sqrt(13) for v in (-3, 0, -1, 0, 4, 0)], abs=1e-6)
    assert out.dtype == torch.float32


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


def test_one_value_and_equal_values_have_no_deviation():
    mask = torch.tensor([[True, False, False]])
    assert whiten(torch.tensor([[5.0, X, X]]), mask).tolist() == [[0.0, 0.0, 0.0]]
    assert whiten(torch.tensor([[0.1] * 3]), torch.ones(1, 3, dtype=torch.bool)).abs().max() < 1e-6
    assert whiten(torch.tensor([[X, X, X]]), torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[0.0, 0.0, 0.0]]


def test_learners_that_share_their_sums_whiten_as_one():
    torch.manual_seed(0)
    x, mask = torch.randn(6, 5, dtype=torch.float64) * 3 + 2, torch.rand(6, 5) < 0.6
    mask[4:] = False  # a learner without a sampled token takes part
    sums = []
    whole = whiten(x, mask, all_reduce=lambda total: (sums.append(total), total)[1])
    assert torch.equal(whole, whiten(x, mask))
    parts, asked = [], []
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        reduced = iter(sums)
        parts.append(
            whiten(x[rows], mask[rows], all_reduce=lambda part, reduced=reduced: (asked.append(part), next(reduced))[1])
        )
    assert torch.allclose(torch.cat(parts), whole, atol=1e-12)
    # What the three asked to have summed does sum to the whole.
    for k in range(2):
        assert torch.allclose(asked[k] + asked[2 + k] + asked[4 + k], sums[k], atol=1e-12)
