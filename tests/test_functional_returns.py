"""Returns, advantages over tokens, rewards: golden values with the arithmetic beside them."""

from __future__ import annotations

import math

import pytest
import torch

from rllm_gym.algorithms.functional import (
    discounted_return,
    evolution_weight,
    gae,
    kl_shaped_reward,
    soft_overlong_penalty,
)

X = math.nan  # an environment's token: no value of it may matter
MASK = torch.tensor([[False, True, False, False, True, True, False]])  # P a0 E E a1 a1 E
TURN_END = torch.tensor([[False, True, False, False, False, True, False]])
REWARD = torch.tensor([[X, 1.0, X, X, 0.0, 3.0, X]])
VALUE = torch.tensor([[X, 1.0, X, X, 2.0, 4.0, X]])


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
    logp = torch.zeros(1, 7, requires_grad=True)
    assert not kl_shaped_reward(REWARD, logp, torch.zeros(1, 7), MASK, kl_coeff=0.1).requires_grad


def test_the_kl_penalty_stands_on_every_sampled_token_beside_the_rewards():
    logp, ref = torch.tensor([[X, -1.0, X, X, -2.0, -0.5, X]]), torch.tensor([[X, -2.0, X, X, -1.0, -0.5, X]])
    # k1: 1, -1, 0: 1 - 0.1, 0 + 0.1, 3 - 0
    out = kl_shaped_reward(REWARD, logp, ref, MASK, kl_coeff=0.1)
    assert out[0].tolist() == pytest.approx([0, 0.9, 0, 0, 0.1, 3.0, 0])
    # k2: 0.5, 0.5, 0
    out = kl_shaped_reward(REWARD, logp, ref, MASK, kl_coeff=0.1, kind="k2")
    assert out[0].tolist() == pytest.approx([0, 0.95, 0, 0, -0.05, 3.0, 0])


def test_the_overlong_penalty_grows_through_the_buffer():
    num_tokens = torch.tensor([10, 80, 85, 100, 101, 500])
    assert soft_overlong_penalty(num_tokens, max_tokens=100, buffer=20).tolist() == [0.0, 0.0, -0.25, -1.0, -1.0, -1.0]
    assert soft_overlong_penalty(num_tokens, max_tokens=100, buffer=0).tolist() == [0.0, 0.0, 0.0, 0.0, -1.0, -1.0]


def test_episodes_are_kept_by_their_reward():
    returns = torch.tensor([-1.0, 0.25, 0.5, 1.0, 3.0])
    assert evolution_weight(returns, kind="threshold", threshold=0.5).tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert evolution_weight(returns, kind="reward").tolist() == [0.0, 0.25, 0.5, 1.0, 1.0]
    with pytest.raises(ValueError, match="kind must be threshold or reward; got 'best'"):
        evolution_weight(returns, kind="best")


def test_a_mask_of_numbers_is_refused():
    for call in (
        lambda mask: discounted_return(REWARD, mask, gamma=1.0),
        lambda mask: gae(REWARD, VALUE, mask, torch.zeros(1), gamma=1.0, lam=1.0),
        lambda mask: kl_shaped_reward(REWARD, VALUE, VALUE, mask, kl_coeff=0.1),
    ):
        with pytest.raises(TypeError, match=r"masks are bool, True where sampled; got torch.int64. Pass mask.bool()"):
            call(MASK.long())
