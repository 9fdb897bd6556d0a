"""Games of several players in a train step: seats change within a group, and every seat has its numbers."""

from __future__ import annotations

import pytest
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllm_gym.rollout.env_runner import LLMEnvRunner
from rllm_gym.training.metrics import episode_metrics, metrics_by_role
from rllm_gym.types import TaskGroup
from tests.needs import skip_without
from tests.wiring.harness import run

pytestmark = pytest.mark.usefixtures("ray_cluster")
KUHN = {"env": "rllm_gym/KuhnPoker-v0", "max_model_len": 2048, "max_episode_steps": 8}


@pytest.fixture(autouse=True)
def open_spiel():
    skip_without("open_spiel")


def test_the_seats_change_from_one_episode_of_a_group_to_the_next(tiny_model):
    with run(tiny_model, **KUHN, group_size=4, groups_per_step=3) as found:
        runner: LLMEnvRunner = found.runner
        result = runner.sample_groups(
            [TaskGroup((0, 0, k), f"kuhn_{k}", 4) for k in range(3)], max_episode_steps={"KuhnPoker-v0": 8}
        )
    assert result.error is None
    seats = [episode.info["player_0"]["role"] for episode in result.episodes if "player_0" in episode.info]
    begun = [next(iter(episode.streams)) for episode in result.episodes]
    assert begun == ["player_0", "player_1"] * 2 + ["player_1", "player_0"] * 2 + ["player_0", "player_1"] * 2
    assert set(seats) <= {"seat_0", "seat_1"}
    # Who begins says nothing that is a move, loses a chip, and the other player has no turn.
    assert [episode.streams[agent].total_reward for agent, episode in zip(begun, result.episodes, strict=True)] == [
        -1.0
    ] * 12
    assert metrics_by_role(result.episodes) == {
        "seat_0": {"episode_return_mean": -1.0, "success_rate": 0.0, "illegal_rate": 1.0, "num_episodes": 12}
    }
    assert episode_metrics(result.episodes, [])["illegal_rate"] == 1.0
    # One policy plays both seats, and RLlib's callbacks get an episode of several agents all the same.
    assert {type(runner.to_rllib(episode)) for episode in result.episodes} == {MultiAgentEpisode}


def test_one_policy_in_both_seats_trains_and_reports_by_seat(tiny_model):
    with run(tiny_model, **KUHN, group_size=4, groups_per_step=2, save_trajectories=True) as found:
        assert found.env_metrics["by_role"]["seat_0"]["num_episodes"] == 8
        assert found.env_metrics["illegal_rate"] == 1.0
        assert {sample.agent for sample in found.samples} == {"player_0", "player_1"}
