"""Advantages of several agents: golden values with the arithmetic beside them."""

from __future__ import annotations

import functools

import pytest
import torch

from rllm_gym.algorithms.functional import (
    group_relative_advantage,
    joint_advantage,
    leave_one_out_advantage,
    role_advantage,
    turn_advantage,
)

centred = functools.partial(group_relative_advantage, normalize_std=False)


def test_a_roles_baseline_moves_after_its_return_is_compared():
    # alice: 1 - 0 = 1, b = .95 * 0 + .05 * 1 = .05; bob: -1 - 0, b = -.05; alice: 0 - .05, b = .95 * .05 = .0475;
    # alice: 1 - .0475. Were the baseline moved first, the first advantage would be .95.
    returns = torch.tensor([1.0, -1.0, 0.0, 1.0])
    advantage, baseline = role_advantage(returns, ["alice", "bob", "alice", "alice"], {}, decay=0.95)
    assert advantage.tolist() == pytest.approx([1.0, -1.0, -0.05, 0.9525])
    assert baseline == pytest.approx({"alice": 0.95 * 0.0475 + 0.05, "bob": -0.05})


def test_a_roles_baseline_goes_on_from_where_it_was_and_is_not_changed_in_place():
    before = {"alice": 0.5, "eve": 2.0}
    advantage, after = role_advantage(torch.tensor([1.0]), ["alice"], before, decay=0.5)
    assert advantage.tolist() == [0.5]
    assert (before, after) == ({"alice": 0.5, "eve": 2.0}, {"alice": 0.75, "eve": 2.0})


def test_a_team_is_compared_by_what_all_have_earned():
    # Two episodes of one task, teams earn 1 + 2 = 3 and 4 + 1 = 5, mean 4: -1 and 1 for alice and for bob alike.
    alice, bob, group = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 1.0]), torch.tensor([0, 0])
    assert joint_advantage(alice, bob, group, compare=centred).tolist() == [-1.0, 1.0]
    assert joint_advantage(bob, alice, group, compare=centred).tolist() == [-1.0, 1.0]
    assert joint_advantage(alice, bob, group, compare=leave_one_out_advantage).tolist() == [-2.0, 2.0]


def test_turns_are_compared_with_those_of_the_same_number():
    # Returns with gamma .5: episode 0: 1 + .5 * 2 = 2, then 2; episode 1: 0 + .5 * 4 = 2, 4; episode 2: 5 alone in its
    # group. First turns 2 and 2: 0, 0. Second turns 2 and 4: -1, 1.
    reward = torch.tensor([[1.0, 2.0], [0.0, 4.0], [5.0, float("nan")]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    turn = torch.arange(2).expand(3, 2)
    advantage = turn_advantage(reward, turn, mask, torch.tensor([0, 0, 1]), gamma=0.5, compare=centred)
    assert advantage.tolist() == [[0.0, -1.0], [0.0, 1.0], [0.0, 0.0]]
    # With gamma 0 a turn's own reward counts: 1 and 0, 2 and 4.
    own = turn_advantage(reward, turn, mask, torch.tensor([0, 0, 1]), gamma=0.0, compare=centred)
    assert own.tolist() == [[0.5, -1.0], [-0.5, 1.0], [0.0, 0.0]]
