"""What a train step reports about its episodes."""

import numpy as np
import pytest

from rllm_gym.training.metrics import episode_metrics
from rllm_gym.types import Episode, Stream, TaskGroup, Turn

IDS, LOGP = np.array([1]), np.zeros(1, np.float32)


def episode(**invalid_by_agent):
    streams = {
        agent: Stream(agent, "m", [Turn(IDS, IDS, LOGP, 0, k, is_invalid_action=flag) for k, flag in enumerate(flags)])
        for agent, flags in invalid_by_agent.items()
    }
    return Episode("e", TaskGroup((0, 0, 0), "T", 1), 0, 0, streams=streams)


def test_invalid_actions_are_a_share_of_all_turns_of_all_agents():
    played = [episode(agent=[True, False, False]), episode(x=[True, True], y=[False, False, False])]
    # 3 of 8 turns; the mean over episodes would be 11 / 30
    assert episode_metrics(played, [])["invalid_action_fraction"] == pytest.approx(3 / 8)
    assert episode_metrics([], [])["invalid_action_fraction"] == 0.0
