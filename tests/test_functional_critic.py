"""How well a critic does: values small enough to check by hand."""

from __future__ import annotations

import pytest
import torch

from rllm_gym.algorithms.functional import explained_variance

# Returns 1 2 | 3, values 1 1 | 2, environment tokens of absurd value between them.
RETURN = torch.tensor([[1.0, 2.0, 1e6, torch.nan], [1e6, torch.inf, 3.0, 1e6]])
VALUE = torch.tensor([[1.0, 1.0, -1e6, 1e6], [1e6, torch.nan, 2.0, torch.inf]])
MASK = torch.tensor([[True, True, False, False], [False, False, True, False]])


def test_explained_variance_counts_sampled_tokens_only():
    # errors 0 1 1: mean 2/3, squares (4 + 1 + 1)/9 = 2/3; returns 1 2 3: squares 2; 1 - (2/3)/2 = 2/3
    assert explained_variance(VALUE, RETURN, MASK) == pytest.approx(2 / 3, abs=1e-6)


def test_a_perfect_critic_explains_all_and_a_constant_one_nothing():
    assert explained_variance(RETURN + 5, RETURN, MASK) == pytest.approx(1.0)  # an offset is no variance
    assert explained_variance(torch.full_like(VALUE, 7.0), RETURN, MASK) == pytest.approx(0.0)
    assert explained_variance(-RETURN, RETURN, MASK) == pytest.approx(-3.0)  # errors of twice the returns


def test_returns_that_are_all_equal_or_none_at_all_give_zero():
    assert explained_variance(VALUE, torch.full_like(RETURN, 0.1), MASK) == 0.0
    assert explained_variance(VALUE, RETURN, torch.zeros_like(MASK)) == 0.0


def test_explained_variance_is_over_all_learners():
    """The second learner's sums are added to the first's, in both calls."""
    calls = []
    explained_variance(VALUE[1:], RETURN[1:], MASK[1:], all_reduce=lambda x: calls.append(x.clone()) or x)
    # Sums: count, errors, returns of the second row ...
    assert calls[0].tolist() == [1.0, 1.0, 3.0]
    # ... whose squares around the common means 2/3 and 2 are 1/9 and 1.
    others = iter([calls[0], torch.tensor([1 / 9, 1.0], dtype=torch.float64)])
    both = explained_variance(VALUE[:1], RETURN[:1], MASK[:1], all_reduce=lambda x: x + next(others))
    assert both == pytest.approx(2 / 3, abs=1e-6)
