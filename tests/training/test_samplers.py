"""The groups of dead runners: played again one by one, and dropped where they kill again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rllm_gym.errors import RllmGymError, TooManyFailedEpisodesError
from rllm_gym.training.samplers import Samplers
from rllm_gym.types import Episode, SampleReply, SamplingParams, TaskGroup


class Group:
    """RLlib's group of the runners 1 and 2, of which a group of episodes whose number is in `deadly` kills one.

    A dead runner is back after a probe, unless `stays_dead`. `shares` are what was played: {runner: group numbers}.
    """

    _worker_manager = SimpleNamespace(actors=dict)

    def __init__(self, *deadly: int, stays_dead: bool = False) -> None:
        self.deadly, self.stays_dead, self.dead, self.shares = deadly, stays_dead, set(), []
        self.asked = []  # the other arguments of every request to a runner

    def healthy_worker_ids(self):
        return [k for k in (1, 2) if k not in self.dead]

    def probe_unhealthy_env_runners(self):
        restored = [] if self.stays_dead else sorted(self.dead)
        self.dead -= set(restored)
        return restored

    def foreach_env_runner(self, functions, remote_worker_ids, **_):
        if not isinstance(functions, list):  # a restarted runner gets its weights
            return []
        self.shares.append({})
        asked = zip(remote_worker_ids, functions, strict=True)
        replies = [ask(SimpleNamespace(sample_groups=self.played_by(runner_id))) for runner_id, ask in asked]
        return [reply for reply in replies if reply is not None]

    def played_by(self, runner_id):
        def sample_groups(share, **asked):
            self.asked.append(asked)
            self.shares[-1][runner_id] = [group.key[-1] for group in share]
            if any(group.key[-1] in self.deadly for group in share):
                self.dead.add(runner_id)
                return None
            return SampleReply(runner_id, [Episode("", group, 0, 0) for group in share])

        return sample_groups


def samplers(group):
    return Samplers(
        group,
        who="GRPO",
        environments=[SimpleNamespace(name="toy")],
        env_timeout_s=None,
        max_failed_fraction=0.1,
        restore_timeout_s=0.0,
        present_state=dict,
        on_metrics=lambda metrics: None,
        on_restored=lambda restored: None,
    )


def groups(number):
    return [TaskGroup((0, 0, k), f"task_{k}", 1) for k in range(number)]


def test_a_dead_runners_groups_are_replayed_alone_and_one_that_kills_again_is_dropped(caplog):
    group = Group(2)
    asked = samplers(group)
    played, failed = asked.sample(groups(5), horizons={})
    assert group.shares == [{1: [0, 2, 4], 2: [1, 3]}, {1: [0], 2: [2]}, {1: [4]}]
    assert [episode.group.key[-1] for episode in played] == [0, 1, 3, 4] and failed == []
    assert asked.num_groups_killed_runners == 1
    assert "dropped the group (0, 0, 2) of toy (task_2): it killed two EnvRunners." in caplog.text


def test_what_is_replayed_is_played_as_it_was_asked_for():
    group, greedy = Group(2), SamplingParams(7, temperature=0.0)
    asked = samplers(group)
    asked.opponents = {"player_1": (3, {})}
    asked.sample(groups(5), horizons={"toy": 4}, params=greedy)
    assert len(group.asked) == 5
    for request in group.asked:
        assert (request["max_episode_steps"], request["params"]) == ({"toy": 4}, greedy)
        assert request["opponents"] == asked.opponents


def test_too_many_deadly_groups_end_the_run():
    group = Group(0, 1, 2, 3)
    with pytest.raises(TooManyFailedEpisodesError, match="2 groups of episodes killed two EnvRunners each"):
        samplers(group).replay(groups(4), num_groups=4, horizons={})
    assert len(group.shares) == 1


def test_a_runner_that_never_comes_back_ends_the_run():
    group = Group(0, stays_dead=True)
    group.dead = {2}
    with pytest.raises(RllmGymError, match=r"no EnvRunner came back in time; env_runner_restore_timeout_s is 0.0"):
        samplers(group).sample(groups(1), horizons={})


def test_callbacks_hear_of_restarted_runners():
    group = Group()
    group.dead = {1, 2}
    asked, restored = samplers(group), []
    asked._on_restored = restored.append
    assert asked.await_any() == [1, 2] and restored == [[1, 2]]


def test_other_episodes_wait_until_those_played_ahead_have_ended():
    group = Group()
    asked = samplers(group)
    asked.finish_ahead = lambda: group.shares.append("ahead")
    asked.sample(groups(1), horizons={})
    assert group.shares == ["ahead", {1: [0], 2: []}]


def test_failed_episodes_end_the_run_only_beyond_the_allowed_share():
    played = [Episode("", group, 0, 0) for group in groups(9)]
    failed = [Episode("", group, 0, 0, error="no server") for group in groups(2)]
    samplers(Group()).check_failures(played, failed[:1])
    said = r"GRPO: 2 of the 11 episodes that had ended failed.*no server"
    with pytest.raises(TooManyFailedEpisodesError, match=said):
        samplers(Group()).check_failures(played, failed)
