"""Rewards: golden values with the arithmetic beside them."""

from __future__ import annotations

import math

import pytest
import torch

from rllm_gym.algorithms.functional import evolution_weight, kl_shaped_reward, soft_overlong_penalty

X = math.nan  # an environment's token: no value of it may matter
MASK = torch.tensor([[False, True, False, False, True, True, False]])  # P a0 E E a1 a1 E
REWARD = torch.tensor([[X, 1.0, X, X, 0.0, 3.0, X]])


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


def test_a_shaped_reward_is_data_and_its_mask_is_bool():
    logp = torch.zeros(1, 7, requires_grad=True)
    assert not kl_shaped_reward(REWARD, logp, torch.zeros(1, 7), MASK, kl_coeff=0.1).requires_grad
    with pytest.raises(TypeError, match=r"masks are bool, True where sampled; got torch.int64. Pass mask.bool()"):
        kl_shaped_reward(REWARD, logp, logp, MASK.long(), kl_coeff=0.1)
