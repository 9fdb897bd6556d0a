"""Samplers are told to build before the learners are built, and waited for only where they share a GPU."""

from __future__ import annotations

from unittest import mock

import pytest

from rllm_gym.training.algorithm import LLMAlgorithm
from tests.wiring.harness import Runners, run


@pytest.mark.parametrize(("num_gpus", "timeout_s"), [(0, 0.0), (1, 0.0), (0.5, None)])
def test_samplers_that_share_a_gpu_are_waited_for(num_gpus, timeout_s):
    algo = object.__new__(LLMAlgorithm)
    group = mock.Mock()
    algo.config, algo.env_runner_group, algo.environments = mock.Mock(num_gpus_per_env_runner=num_gpus), group, []
    algo.spaces = None
    assert not group.mock_calls
    algo.spaces = {"policy": ()}
    group.foreach_env_runner.assert_called_once_with("build", local_env_runner=False, timeout_seconds=timeout_s)


def test_they_begin_before_the_learners(tiny_model, monkeypatch):
    order = []
    monkeypatch.setattr(Runners, "foreach_env_runner", told(Runners.foreach_env_runner, order))
    monkeypatch.setattr("rllm_gym.learner.deepspeed.wait_for_imports", lambda: order.append("learner"))
    with run(tiny_model):
        assert order[:2] == ["build", "learner"]


def told(method, order):
    def foreach(self, function, *args, **kwargs):
        if isinstance(function, str):
            order.append(function)
        return method(self, function, *args, **kwargs)

    return foreach
