"""Sampling while the learners train: what is played when, how old it is, and what becomes of it on the way."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest

from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.training.samples_ahead import SamplesAhead
from rllm_gym.types import Episode, SampleReply, TaskGroup
from tests.wiring.harness import run


def keys_of(episodes):
    return sorted({episode.group.key for episode in episodes})


@pytest.mark.parametrize("options", [{"staleness": 1}, {"staleness": 2}, {"staleness": 1, "screening_size": 2}])
def test_every_task_is_learnt_from_once_and_none_later_than_allowed(tiny_model, options):
    steps, staleness = 5, options["staleness"]
    with run(tiny_model, **options, filter_groups="off", invalid_action_penalty=0.5, steps=0) as found:
        keys, ages = [], []
        for _ in range(steps):
            found.algo.train()
            keys += keys_of(found.algo.sampled.played)
            ages.append(list(found.algo.sampled.ages))
            versions = np.concatenate([s.policy_version[s.weight > 0] for s in found.samples])
            assert found.learner.policy_version - 1 - versions.min() <= staleness
        metrics = found.algo.train()
    assert len(keys) == len(set(keys)) == 3 * steps
    assert {key[1] for key in keys} <= set(range(steps + staleness))
    assert ages[0] == [0, 0, 0] and max(map(max, ages)) <= staleness
    assert any(age > 0 for of_step in ages for age in of_step)
    assert metrics["num_groups_stale"] == 0 < metrics["group_age_mean"] <= staleness


def test_slow_episodes_are_waited_for_before_they_are_too_old(tiny_model):
    with run(tiny_model, staleness=1, filter_groups="off", steps=0, num_envs_per_env_runner=32) as found:
        found.runner.build()
        submit, step, take = found.engine.submit, found.engine.step, found.algo.ahead.take
        slow, taken = [], []

        def submit_slowly(request):
            submit(request)
            if len(found.engine.requests) <= 4:  # the episodes of the first group
                slow.append(found.engine._running[-1])

        def step_slowly():
            for running in slow if len(taken) < 2 else ():
                running.steps_left = 100
            return step()

        def count(*args, **kwargs):
            taken.append(args)
            return take(*args, **kwargs)

        found.engine.submit, found.engine.step, found.algo.ahead.take = submit_slowly, step_slowly, count
        found.algo.train()
        assert (0, 0, 0) not in keys_of(found.algo.sampled.played)  # the others of two steps were there first
        found.algo.train()
        assert (0, 0, 0) in keys_of(found.algo.sampled.played)
        assert max(found.algo.sampled.ages) <= 1


def test_the_runner_plays_while_the_learner_trains(tiny_model):
    with run(tiny_model, staleness=1, steps=1) as found:
        found.algo.ahead.drain()  # the quickest runner: all that it was given has been played and handed over
        num_before = len(found.engine.requests)
        update, ended = found.algo.update, []

        def slow_update(*args, **kwargs):
            deadline = time.monotonic() + 60
            while found.runner.loop.num_unfinished_episodes and time.monotonic() < deadline:
                time.sleep(0.01)  # the driver does nothing, and yet what is played comes to its end
            ended.append(found.runner.loop.num_unfinished_episodes)
            return update(*args, **kwargs)

        found.algo.update = slow_update
        found.algo.train()
        assert ended == [0]
        assert len(found.engine.requests) > num_before


def test_without_it_nothing_is_played_in_the_background(tiny_model):
    with run(tiny_model, steps=2) as found:
        assert found.runner._background is None
        assert "group_age_mean" not in found.results[-1]


def test_an_evaluation_waits_for_what_is_played_and_loses_none_of_it(tiny_model):
    with run(tiny_model, staleness=2, filter_groups="off", steps=1, evaluation_duration=2) as found:
        before = list(found.algo.ahead._submitted)
        found.algo.evaluate()
        assert list(found.algo.ahead._submitted) == before
        found.algo.train()
        assert set(keys_of(found.algo.sampled.played)) <= {*before, (0, 3, 0), (0, 3, 1), (0, 3, 2)}


def test_a_resumed_run_plays_again_what_was_not_learnt_from_and_says_so(tiny_model, tmp_path, caplog):
    with run(tiny_model, staleness=1, filter_groups="off", steps=2) as found:
        path = found.algo.save_to_path(str(tmp_path / "checkpoint"))
        left = list(found.algo.ahead._submitted)
        learnt = keys_of(found.algo.sampled.played)
    assert len(left) == 3
    with run(tiny_model, staleness=1, filter_groups="off", steps=0) as again:
        with caplog.at_level(logging.WARNING, "rllm_gym"):
            again.algo.restore_from_path(path)
        assert "3 groups were being played" in caplog.text and "not bit for bit" in caplog.text
        again.algo.train()
        assert keys_of(again.algo.sampled.played) == sorted(left)
        assert not set(left) & set(learnt)


def test_a_group_that_is_too_old_is_dropped_and_counted(tiny_model):
    with run(tiny_model, staleness=1, filter_groups="off", steps=1) as found:
        take = found.algo.ahead.take

        def aged(*args, **kwargs):
            groups = take(*args, **kwargs)
            groups[0].age = 2
            return groups

        found.algo.ahead.take = aged
        result = found.algo.train()
        assert result["num_groups_stale"] == 1
        assert len(keys_of(found.algo.sampled.played)) == 2


class Restarted:
    """Samplers whose runner 1 is another process at the second exchange, and knows nothing of the first one."""

    ids, opponents = (1,), {}

    def __init__(self):
        self.num_exchanges, self.replayed = 0, []

    def ask(self, shares, ask):
        self.num_exchanges += 1
        keys = [group.key for group in shares[1]]
        if self.num_exchanges <= 2:
            return [SampleReply(1, groups_left=frozenset(keys))]
        return [SampleReply(1, [Episode("", SECOND, 0, 0)])]

    def replay(self, lost, **_):
        assert self.num_exchanges == 3  # the runner was drained before
        self.replayed += lost
        return [SampleReply(1, [Episode("", group, 0, 0) for group in lost])]


FIRST, SECOND = TaskGroup((0, 0, 0), None, 1), TaskGroup((0, 0, 1), None, 1)


def test_what_a_restarted_runner_has_forgotten_is_played_again_and_nothing_else():
    samplers = Restarted()
    ahead = SamplesAhead(samplers, 1, num_groups=1, horizons=dict)
    ahead.submit([FIRST], 0)
    ahead._exchange()
    ahead.submit([SECOND], 0)
    taken = ahead.take(2, 1, 0, of_policies=lambda module_id: True)
    assert samplers.replayed == [FIRST]
    assert sorted(group.episodes[0].group.key for group in taken) == [FIRST.key, SECOND.key]


def test_an_error_in_the_background_reaches_the_driver(tiny_model):
    with run(tiny_model, staleness=1, steps=1) as found:

        def broken():
            raise ValueError("no more tokens")

        found.engine.step = broken
        with pytest.raises(RllmGymError, match="no more tokens"):
            found.algo.train()
            found.algo.train()


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        ("ReMax", {}, "ReMaxConfig: staleness must be 0, for greedy episodes"),
        (
            "GRPO",
            {"env": "rllm_gym/KuhnPoker-v0", "opponents": {"player_1": {"pool": {"every": 1, "size": 2}}}},
            "staleness must be 0 where opponents come from a pool",
        ),
        ("GRPO", {"staleness": -1}, "staleness"),
    ],
)
def test_what_does_not_go_together_is_refused(tiny_model, method, options, match):
    with pytest.raises(ConfigError, match=match), run(tiny_model, method=method, **{"staleness": 1, **options}):
        pass
