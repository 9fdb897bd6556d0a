"""A centralised critic reads these tokens."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_gym.training.joint_samples import JointSample
from rllm_gym.training.samples import samples_from_episode
from rllm_gym.types import EndReason, Episode, Stream, TaskGroup, Turn


def turn(observation, action, env_step, **fields):
    logp = -np.ones(len(action), np.float32)
    return Turn(np.array(observation), np.array(action), logp, policy_version=0, env_step=env_step, **fields)


@pytest.fixture
def episode():
    # x acts, y answers, both act at once; x's history was rewritten before its last turn.
    x = Stream("x", "left", [turn([1, 2], [3, 4], 0), turn([5], [6], 2), turn([7, 8], [9], 3, context_index=1)])
    y = Stream("y", "right", [turn([20], [21, 22], 1), turn([23], [24], 2)])
    return Episode("e", TaskGroup((0, 0, 0), None, 1), 0, 0, streams={"x": x, "y": y}, end_reason=EndReason.TERMINATED)


def test_turns_stand_in_the_order_in_which_agents_acted(episode):
    joint = JointSample.of_episode(episode, module="critic", is_trained=lambda module: module == "left")
    # x0 x0 a a  y0 b b  x1 a  y1 b  x2 x2 a
    assert joint.sample.tokens.tolist() == [1, 2, 3, 4, 20, 21, 22, 5, 6, 23, 24, 7, 8, 9]
    assert joint.sample.weight.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert {agent: at.tolist() for agent, at in joint.positions.items()} == {"x": [2, 3, 8, 13], "y": [5, 6, 10]}
    assert (joint.sample.module, joint.sample.episode) == ("critic", "e")


def test_values_go_to_each_agents_tokens_and_targets_come_back_from_them(episode):
    joint = JointSample.of_episode(episode, module="critic", is_trained=lambda module: True)
    joint.sample.value = np.arange(14, dtype=np.float32)
    first, second, y = samples_from_episode(episode, lambda _: 0)
    joint.give_values([y, second, first])
    assert first.value.tolist() == [0, 0, 2, 3, 0, 8]
    assert second.value.tolist() == [0, 0, 13]
    assert y.value.tolist() == [0, 5, 6, 0, 10]
    for sample in (first, second, y):
        sample.value_target = sample.value + 100 * (sample.weight != 0)
    back = joint.with_targets([second, first])
    assert back.value_target.tolist() == [0, 0, 102, 103, 0, 0, 0, 0, 108, 0, 0, 0, 0, 113]
    assert back.weight.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]  # y's are not there to be learnt
