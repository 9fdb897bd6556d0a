"""Whose success counts, and that evaluations favour no seat."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from rllm_gym.algorithms.policy_gradient import PolicyGradient
from rllm_gym.training.advantage_rows import AdvantageRows
from rllm_gym.training.metrics import episode_metrics, is_success, metrics_by_env
from rllm_gym.training.samples import StepSamples, samples_from_episode
from rllm_gym.training.task_sampler import evaluation_groups
from rllm_gym.types import EndReason, Episode, Stream, TaskGroup, Turn


def played(winner: str, *, member: int = 0, module: str = "policy", opponent: str = "policy") -> Episode:
    """A game that one of two wins."""
    streams, info = {}, {}
    for agent, module_id in (("player_0", module), ("player_1", opponent)):
        won = agent == winner
        turns = [Turn(np.array([1]), np.array([2]), np.zeros(1, np.float32), 0, 0, 1.0 if won else -1.0)]
        streams[agent] = Stream(agent, module_id, turns)
        info[agent] = {"is_success": won}
    task = TaskGroup((0, 0, 0), "game_0", 4)
    return Episode(f"e{member}", task, member, 0, streams=streams, info=info, end_reason=EndReason.TERMINATED)


def test_a_game_is_a_success_for_who_wins_it():
    episode = played("player_1")
    assert (is_success(episode, "player_0"), is_success(episode, "player_1"), is_success(episode)) == (
        False,
        True,
        False,
    )
    assert [sample.is_success for sample in samples_from_episode(episode, lambda role: 0)] == [False, True]


def test_groups_of_a_zero_sum_game_are_kept_by_success():
    sampled = StepSamples()
    for member, winner in enumerate(("player_0", "player_1", "player_1")):
        episode = played(winner, member=member)
        sampled.samples += samples_from_episode(episode, lambda role, task=episode.group: sampled.group_of(task, role))
    rows, me = AdvantageRows(sampled.samples), SimpleNamespace(config=SimpleNamespace(filter_groups="success"))
    assert PolicyGradient._groups_to_drop(me, rows, rows.return_N) == set()
    rows = AdvantageRows(sampled.samples[2:])  # the last two, which one player has won
    assert PolicyGradient._groups_to_drop(me, rows, rows.return_N) == {0, 1}


def test_the_success_rate_of_a_game_is_the_learning_players():
    games = [played("player_0", opponent="random"), played("player_0", opponent="random")]
    games.append(played("player_1", opponent="random"))
    assert episode_metrics(games, [])["success_rate"] == 0.5  # one of two always wins
    assert episode_metrics(games, [], only_playing={"random"})["success_rate"] == pytest.approx(2 / 3)
    of_env = metrics_by_env(games, [], {0: "game"}, only_playing={"random"})["game"]
    assert of_env["success_rate"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("num_seats", [2, 3])
@pytest.mark.parametrize("num_tasks", [5, 6])
def test_an_evaluation_plays_every_task_from_every_seat_equally_often(num_tasks, num_seats):
    items = {0: [f"task_{k}" for k in range(num_tasks)]}
    for rounds in (1, 3):
        groups = evaluation_groups(items, rounds * num_seats * num_tasks, seed=7)
        seats = Counter((group.item_id, group.seating(0) % num_seats) for group in groups)
        assert set(seats.values()) == {rounds} and len(seats) == num_tasks * num_seats
    assert [group.key for group in groups] == [(7, 2**31, k) for k in range(len(groups))]  # and so are their seeds
    assert TaskGroup((0, 0, 5), None, 4).seating(2) == 7
