"""Tasks are drawn by how differently their episodes have ended."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_gym.errors import ConfigError
from rllm_gym.training.task_difficulty import TaskDifficulty
from rllm_gym.training.task_sampler import DifficultySampler, TaskSampler
from rllm_gym.types import Episode, Stream, TaskGroup, Turn

ITEMS = [f"t_{k}" for k in range(10)]
HORIZONS = {"maze": 4}
IDS, LOGP = np.array([1]), np.zeros(1, np.float32)


def episodes(item, returns, *, step=0, agents=("agent_0",), horizon=4, num_first=None):
    """Episodes of one group, in which each agent earns its return."""
    group, num_first = TaskGroup((0, step, int(item.partition("_")[2])), item, len(returns)), num_first or len(returns)
    out = []
    for member, of in enumerate(returns):
        earned = zip(agents, np.atleast_1d(of), strict=True)
        streams = {agent: Stream(agent, "m", [Turn(IDS, IDS, LOGP, 0, 0, reward=reward)]) for agent, reward in earned}
        is_conditional = member >= num_first
        out.append(Episode("e", group, member, 0, streams=streams, horizon=horizon, is_conditional=is_conditional))
    return out


@pytest.fixture
def difficulty():
    return TaskDifficulty(["maze"], min_probability=0.1)


def test_a_task_between_always_and_never_is_the_likeliest(difficulty):
    difficulty.record(0, episodes("t_0", [1.0] * 8) + episodes("t_1", [0.0] * 8))
    difficulty.record(0, episodes("t_2", [1.0, 0.0] * 4) + episodes("t_3", [1.0] + [0.0] * 7))
    p = dict(zip(ITEMS, difficulty.probabilities(1, 0, ITEMS, HORIZONS), strict=True))
    assert sum(p.values()) == pytest.approx(1.0)
    assert p["t_2"] > p["t_3"] > p["t_0"] == p["t_1"] > 0.1 / 10
    assert p["t_2"] > p["t_9"] > p["t_0"]  # of which nothing is known


def test_no_probability_reaches_0_however_much_is_known(difficulty):
    for step in range(200):
        difficulty.record(step, episodes("t_0", [1.0] * 8, step=step))
        difficulty.record(step, episodes("t_1", [1.0, 0.0] * 4, step=step))
    assert difficulty.probabilities(200, 0, ITEMS[:2], HORIZONS)[0] >= 0.1 / 2


def test_what_was_seen_long_ago_counts_little(difficulty):
    difficulty.record(0, episodes("t_0", [0.0] * 8) + episodes("t_1", [1.0, 0.0] * 4))
    ratios = [p[1] / p[0] for step in (1, 50, 400) for p in [difficulty.probabilities(step, 0, ITEMS, HORIZONS)]]
    assert ratios[0] > ratios[1] > ratios[2]
    assert ratios[2] == pytest.approx(1.0, abs=0.01)


def test_graded_returns_and_several_agents_count_too(difficulty):
    difficulty.record(0, episodes("t_0", [0.1, 0.2, 0.3, 0.4]) + episodes("t_1", [0.3] * 4))
    zero_sum = [(1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, 1.0)]
    difficulty.record(0, episodes("t_2", zero_sum, agents=("player_0", "player_1")))
    p = difficulty.probabilities(1, 0, ITEMS[:3], HORIZONS)
    assert p[0] > p[1] and p[2] > p[1]


def test_episodes_that_only_tasks_play_that_seem_to_teach_tell_nothing_of_them(difficulty):
    difficulty.record(0, episodes("t_0", [1.0, 0.0] + [1.0] * 6, num_first=2))
    difficulty.record(0, episodes("t_1", [1.0, 0.0]))
    p = difficulty.probabilities(1, 0, ITEMS[:2], HORIZONS)
    assert p[0] == p[1]


def test_another_horizon_begins_with_what_the_last_one_told(difficulty):
    difficulty.record(0, episodes("t_0", [0.0] * 8, horizon=2) + episodes("t_1", [1.0, 0.0] * 4, horizon=2))
    told = difficulty.probabilities(1, 0, ITEMS, {"maze": 6})
    assert told[1] > told[0]
    later = {"step": 1, "horizon": 6}
    difficulty.record(1, episodes("t_0", [1.0, 0.0] * 4, **later) + episodes("t_1", [1.0] * 8, **later))
    now = difficulty.probabilities(2, 0, ITEMS, {"maze": 6})
    assert now[0] > now[1]
    assert difficulty.probabilities(2, 0, ITEMS, {"maze": 2})[1] > difficulty.probabilities(2, 0, ITEMS, {"maze": 2})[0]


def test_the_state_comes_back_from_a_checkpoint(difficulty):
    difficulty.record(0, episodes("t_2", [1.0, 0.0] * 4))
    state = difficulty.get_state()
    before = difficulty.probabilities(5, 0, ITEMS, HORIZONS)
    difficulty.record(1, episodes("t_2", [1.0] * 8, step=1))  # the state is not what goes on
    restored = TaskDifficulty(["maze"], min_probability=0.1)
    restored.set_state(state)
    np.testing.assert_array_equal(restored.probabilities(5, 0, ITEMS, HORIZONS), before)


def test_the_sampler_keeps_environments_and_keys_and_draws_each_task_once_a_step(difficulty):
    plain = TaskSampler([ITEMS], [1.0], seed=3, group_size=4)
    difficulty.record(0, episodes("t_2", [1.0, 0.0] * 4))
    for item in ITEMS[3:]:
        difficulty.record(0, episodes(item, [1.0] * 8))

    def dealt(step, num_groups):
        return DifficultySampler(plain, difficulty, lambda: HORIZONS).groups(step, num_groups)

    groups = dealt(1, 10)
    assert sorted(group.item_id for group in groups) == ITEMS
    assert [group.key for group in groups] == [group.key for group in plain.groups(1, 10)]
    assert dealt(1, 3) == dealt(1, 3)
    count = sum(group.item_id == "t_2" for step in range(1, 200) for group in dealt(step, 1))
    assert count > 40  # of 199; uniform gives 20
    sampler = DifficultySampler(plain, difficulty, lambda: HORIZONS)
    first = {group.item_id for group in sampler.groups(1, 4)}
    assert first.isdisjoint(group.item_id for group in sampler.refill(1, 0, 4))


def test_tasks_without_numbers_have_no_difficulty(difficulty):
    with pytest.raises(ConfigError, match="task_sampling: difficulty needs environments that number their tasks"):
        DifficultySampler(TaskSampler([None], [1.0], seed=0, group_size=2), difficulty, dict)
