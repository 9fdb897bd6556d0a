"""The groups of dead runners: played again one by one, and dropped where they kill again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rllm_gym.errors import RllmGymError, TooManyFailedEpisodesError
from rllm_gym.training.replay import replay
from rllm_gym.types import TaskGroup


@pytest.fixture
def algorithm():
    """An algorithm with runners 1 and 2; `dead` are those that died and have not been brought back."""
    dead = set()
    return SimpleNamespace(
        dead=dead,
        runner_ids=lambda: [k for k in (1, 2) if k not in dead],
        bring_back_env_runners=dead.clear,
        environments=[SimpleNamespace(name="toy")],
        num_groups_killed_runners=0,
        config=SimpleNamespace(max_failed_fraction=0.1, env_runner_restore_timeout_s=0.0),
    )


def player(algorithm, *deadly):
    """What plays shares, where the groups of these indices kill their runner; and the shares that it got."""
    shares_played = []

    def play(shares):
        shares_played.append({runner: [group.key[-1] for group in share] for runner, share in shares.items()})
        lost = [group for share in shares.values() for group in share if group.key[-1] in deadly]
        algorithm.dead |= {runner for runner, share in shares.items() if lost and share[0] in lost}
        return [group.key[-1] for share in shares.values() for group in share if group not in lost], lost

    return play, shares_played


def groups(number):
    return [TaskGroup((0, 0, k), f"task_{k}", 1) for k in range(number)]


def test_every_group_is_played_alone_on_a_living_runner_and_the_one_that_kills_again_is_dropped(algorithm, caplog):
    play, shares = player(algorithm, 2)
    assert replay(algorithm, groups(5), play, max_dropped=1) == [0, 1, 3, 4]
    assert shares == [{1: [0], 2: [1]}, {1: [2], 2: [3]}, {1: [4]}]
    assert algorithm.num_groups_killed_runners == 1
    assert "dropped the group (0, 0, 2) of toy (task_2): it killed two EnvRunners." in caplog.text


def test_too_many_deadly_groups_end_the_run(algorithm):
    play, shares = player(algorithm, 0, 1, 2, 3)
    with pytest.raises(TooManyFailedEpisodesError, match="2 groups of episodes killed two EnvRunners each"):
        replay(algorithm, groups(4), play, max_dropped=1)
    assert len(shares) == 1


def test_a_runner_that_never_comes_back_ends_the_run(algorithm):
    algorithm.dead |= {1, 2}
    algorithm.bring_back_env_runners = lambda: None
    with pytest.raises(RllmGymError, match="no EnvRunner came back in time"):
        replay(algorithm, groups(1), player(algorithm)[0], max_dropped=1)
