"""Several agents: what each is compared with, whose tokens are trained, and who plays against whom."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from ray.tune.registry import register_env

from tests.envs.toy_multi_agent import TakeAway
from tests.wiring import harness
from tests.wiring.harness import run

GAME = {"env": "take_away", "env_config": {"swap_seats": True}, "max_episode_steps": None}


@pytest.fixture(autouse=True)
def take_away(ray_cluster, monkeypatch):
    register_env("take_away", lambda config: TakeAway(**config))
    monkeypatch.setattr(harness, "REPLIES", ("1", "2", "3"))


def returns_of(played):
    return {(episode.episode_id, agent): s.total_reward for episode in played for agent, s in episode.streams.items()}


def test_an_agents_return_is_compared_with_its_own_in_the_other_episodes(tiny_model):
    with run(tiny_model, **GAME, filter_groups="off", normalize_std=False) as found:
        groups = defaultdict(list)
        for episode in found.algo.sampled.played:
            for agent, stream in episode.streams.items():
                groups[episode.group.key, agent].append((episode.episode_id, stream.total_reward))
        expected = {
            (episode_id, agent): value - np.mean([v for _, v in group])
            for (_, agent), group in groups.items()
            for episode_id, value in group
        }
        got = {(sample.episode, sample.agent): sample.advantage[sample.weight > 0] for sample in found.trained}
    assert got.keys() == expected.keys()
    assert any(abs(value) > 0.1 for value in expected.values())
    for key, advantage in got.items():
        assert advantage == pytest.approx(expected[key], abs=1e-6)


def test_a_team_is_compared_by_the_sum_of_its_returns(tiny_model):
    with run(tiny_model, **GAME, filter_groups="off", normalize_std=False, advantage="joint") as found:
        played = found.algo.sampled.played
        team = {episode.episode_id: sum(s.total_reward for s in episode.streams.values()) for episode in played}
        groups = defaultdict(list)
        for episode in played:
            for agent in episode.streams:
                groups[episode.group.key, agent].append(team[episode.episode_id])
        tasks = {episode.episode_id: episode.group.key for episode in played}
        for sample in found.trained:
            expected = team[sample.episode] - np.mean(groups[tasks[sample.episode], sample.agent])
            assert sample.advantage[sample.weight > 0] == pytest.approx(expected, abs=1e-6)
    assert set(team.values()) == {0.0, -1.0}  # the other one never acts where the first move is illegal


def test_roles_have_baselines_which_checkpoints_keep(tiny_model, tmp_path):
    options = {**GAME, "advantage": "role", "role_decay": 0.5, "group_size": 1, "groups_per_step": 6}
    with run(tiny_model, **options) as found:
        baseline: dict[str, float] = defaultdict(float)
        expected = {}
        for episode in found.algo.sampled.played:
            for agent, stream in episode.streams.items():
                assert stream.role in ("first", "second")
                expected[episode.episode_id, agent] = stream.total_reward - baseline[stream.role]
                baseline[stream.role] = 0.5 * baseline[stream.role] + 0.5 * stream.total_reward
        for sample in found.trained:
            advantage = sample.advantage[sample.weight > 0]
            assert advantage == pytest.approx(expected[sample.episode, sample.agent], abs=1e-6)
        kept = found.algo.get_state()["role_baselines"]
        assert kept == pytest.approx({f"default_policy/take_away/{role}": value for role, value in baseline.items()})
        found.algo.train()
        assert found.algo.role_baselines != kept
        found.algo.set_state({**found.algo.get_state(), "role_baselines": kept})
        assert found.algo.role_baselines == kept


def test_turns_are_compared_with_the_same_agents_turns_of_that_number(tiny_model):
    options = {"filter_groups": "off", "normalize_std": False, "advantage": "agent_turn", "step_gamma": 1.0}
    with run(tiny_model, **GAME, **options) as found:
        groups = defaultdict(list)
        for episode in found.algo.sampled.played:
            for agent, stream in episode.streams.items():
                for k in range(len(stream.turns)):
                    groups[episode.group.key, agent, k].append(stream.total_reward)  # earned at the end alone
        tasks = {episode.episode_id: episode.group.key for episode in found.algo.sampled.played}
        returns = returns_of(found.algo.sampled.played)
        num_turns = set()
        for sample in found.trained:
            ends = np.flatnonzero(sample.is_turn_end)
            num_turns.add(len(ends))
            for k, end in enumerate(ends):
                mean = np.mean(groups[tasks[sample.episode], sample.agent, k])
                expected = returns[sample.episode, sample.agent] - mean
                assert sample.advantage[end] == pytest.approx(expected, abs=1e-6)
    assert len(num_turns) > 1
