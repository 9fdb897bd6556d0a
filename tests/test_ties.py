"""Which returns are the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rllm_gym.algorithms.functional import evolution_weight, whiten
from rllm_gym.data.pairs import best_and_worst
from rllm_gym.ties import reaches, tie
from rllm_gym.training.recorded_samples import is_wanted
from rllm_gym.types import Episode, Stream, TaskGroup, Turn, outcomes

TENTHS = sum([0.1] * 10)  # 0.9999999999999999


def test_what_differs_by_rounding_is_made_equal_within_its_group():
    tied = tie([TENTHS, 2.0, 1.0, 1.0 + 1e-8, TENTHS], [1.0, 2.0, 1.0, 1.0, 1.0], [5, 5, 5, 5, 2])
    assert tied.tolist() == [TENTHS, 2.0, TENTHS, 1.0 + 1e-8, TENTHS]


def test_how_large_the_rewards_were_decides_what_is_rounding():
    values = [0.1, 0.1 + 1e-9]  # 1e9 and -1e9, less 0.1, summed in two orders, differ by 1e-7
    assert len(set(tie(values, [0.1, 0.1]).tolist())) == 2
    assert len(set(tie(values, [0.1, 2e9]).tolist())) == 1
    assert tie([], []).tolist() == []


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_a_threshold_of_1_is_1_however_it_was_summed(scale):
    assert reaches(scale * TENTHS, scale, scale)
    assert not reaches(scale * (1 - 1e-8), scale, scale)
    return_N = torch.tensor([TENTHS, 1.0, 1 - 1e-8], dtype=torch.float64)
    assert evolution_weight(return_N, kind="threshold").tolist() == [1.0, 1.0, 0.0]


class Record:
    error, is_evaluation, turns, reward_size = None, False, [1], 1.0

    def __init__(self, total_reward):
        self.total_reward = total_reward


def test_a_stored_episode_of_ten_tenths_has_a_return_of_1():
    assert is_wanted(Record(TENTHS), 1.0) and not is_wanted(Record(1 - 1e-8), 1.0)


def test_episodes_that_earned_the_same_ended_alike():
    def episode(*rewards):
        turns = [Turn(np.zeros(1), np.zeros(1), np.zeros(1), 0, k, reward) for k, reward in enumerate(rewards)]
        return Episode("e", TaskGroup((0, 0, 0), None, 3), 0, 0, streams={"agent": Stream("agent", "policy", turns)})

    assert len(set(outcomes([episode(*[0.1] * 10), episode(1.0), episode(0.5, 0.5)]))) == 1
    assert len(set(outcomes([episode(*[1e-8] * 10), episode(1e-7), episode(2e-7)]))) == 2


def test_episodes_of_one_return_that_differ_by_a_penalty_have_not_ended_alike():
    def episode(*invalid, penalty):
        turns = [
            Turn(np.zeros(1), np.zeros(1), np.zeros(1), 0, k, 0.5, is_invalid_action=is_invalid)
            for k, is_invalid in enumerate(invalid)
        ]
        group = TaskGroup((0, 0, 0), None, 2, invalid_action_penalty=penalty)
        return Episode("e", group, 0, 0, streams={"agent": Stream("agent", "policy", turns)})

    for penalty, num_outcomes in ((0.0, 1), (0.1, 2)):
        pair = [episode(False, False, penalty=penalty), episode(True, False, penalty=penalty)]
        assert len(set(outcomes(pair))) == num_outcomes


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_rounding_is_not_whitened(scale):
    x = torch.tensor([[TENTHS, 1.0, 0.7 + 0.1 + 0.1 + 0.1]], dtype=torch.float64) * scale
    assert whiten(x, torch.ones(1, 3, dtype=torch.bool)).tolist() == [[0.0] * 3]


def test_a_task_whose_episodes_tie_makes_no_pair(monkeypatch):
    def pairs(*returns, **options):
        records = [(None, Record(value)) for value in returns]
        monkeypatch.setattr("rllm_gym.data.pairs.read_stored", lambda _: records)
        monkeypatch.setattr("rllm_gym.data.pairs.task_key", lambda _: ("task",))
        return best_and_worst("", **options)

    assert pairs(TENTHS, 1.0) == []
    assert pairs(TENTHS, 0.0, 1.0, expert_threshold=1.0, reward_gap=1.0) == [(0, 1)]
    assert pairs(1 - 1e-8, 0.0, expert_threshold=1.0) == []
    assert pairs(1 - 1e-8, 0.0, reward_gap=1.0) == []
