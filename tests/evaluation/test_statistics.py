"""Rates, intervals and paired tests, against numbers that can be worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rllm_gym.evaluation.statistics import (
    average,
    difference_interval,
    pass_at_k,
    pass_hat_k,
    sign_test,
    success_interval,
)


def test_episodes_of_different_tasks_have_wilsons_interval():
    # Wilson at z = 1.959964: centre (p + z^2 / 2n) / (1 + z^2 / n), p = 0.8, n = 10.
    assert success_interval([(1, 1)] * 8 + [(0, 1)] * 2) == pytest.approx((0.49016, 0.94332), abs=1e-4)
    assert success_interval([(0, 1)] * 5) == pytest.approx((0.0, 0.43449), abs=1e-4)


def test_episodes_of_the_same_task_are_not_counted_as_independent():
    # Ten tasks, each solved always or never: what is known is worth ten episodes, not a hundred.
    low, high = success_interval([(10, 10)] * 5 + [(0, 10)] * 5)
    # The bootstrap's mean of ten coins: 0.5 +- 1.96 sqrt(0.25 / 10) = 0.19, 0.81, in steps of 0.1.
    assert (low, high) == pytest.approx((0.2, 0.8))
    assert success_interval([(10, 10)] * 5) == pytest.approx((0.56552, 1.0), abs=1e-4)  # Wilson of 5 in 5


def test_an_interval_is_the_same_whenever_it_is_computed():
    counts = [(k % 4, 3) for k in range(20) if k % 4 < 4]
    counts = [(min(c, 3), 3) for c, _ in counts]
    assert success_interval(counts) == success_interval(counts)


@pytest.mark.parametrize(("solved", "played", "k"), [(2, 5, 1), (2, 5, 2), (1, 4, 3), (0, 3, 2), (4, 4, 4), (3, 6, 5)])
def test_pass_at_k_and_pass_hat_k_are_those_of_all_choices_of_k_episodes(solved, played, k):
    outcomes = [True] * solved + [False] * (played - solved)
    choices = list(itertools.combinations(outcomes, k))
    assert pass_at_k([(solved, played)], k) == pytest.approx(np.mean([any(choice) for choice in choices]))
    assert pass_hat_k([(solved, played)], k) == pytest.approx(np.mean([all(choice) for choice in choices]))


def test_tasks_with_too_few_episodes_do_not_count_towards_k():
    counts = [(1, 2), (0, 2), (1, 1)]
    assert pass_at_k(counts, 2) == pytest.approx(0.5)  # (1 + 0) / 2
    assert pass_hat_k(counts, 2) == 0.0
    assert pass_at_k(counts, 3) is None
    assert average(counts) == pytest.approx((0.5 + 0 + 1) / 3)
    assert average([]) is None


def test_mcnemars_exact_test():
    # 2 (C(10,0) + C(10,1)) / 2^10 = 22 / 1024.
    assert sign_test(1, 9) == sign_test(9, 1) == pytest.approx(22 / 1024)
    assert sign_test(3, 3) == 1.0
    assert sign_test(0, 0) == 1.0


def test_a_paired_difference_is_surer_than_two_rates():
    a = [0.0] * 50 + [1.0] * 50
    b = [1.0] * 10 + a[10:]  # better on ten tasks, the same elsewhere
    low, high = difference_interval(a, b)
    # 0.1 +- 1.96 sqrt(0.1 * 0.9 / 100)
    assert (low, high) == pytest.approx((0.0412, 0.1588), abs=0.011)
    assert difference_interval(b, a) == pytest.approx((-high, -low), abs=0.011)
    # Quantiles of Binomial(100, 0.1), of which the bootstrap draws: 2 and 21 at 0.0005 and 0.9995.
    assert difference_interval(a, b, 0.999) == pytest.approx((0.02, 0.21), abs=0.011)


@pytest.mark.parametrize(("num_tasks", "width"), [(1, 0.793), (5, 0.434), (100, 0.037)])  # z^2 / (n + z^2), z = 1.96
def test_equal_differences_of_few_tasks_leave_room(num_tasks, width):
    same = [0.5] * num_tasks
    assert difference_interval(same, same) == pytest.approx((-width, width), abs=1e-3)
    better = difference_interval([0.0] * num_tasks, [1.0] * num_tasks)
    assert better == pytest.approx((1 - width, 1.0), abs=1e-3)
