"""The loop with worker threads: overlap, hung environments and idling, held together by events and never by sleeps."""

from __future__ import annotations

import threading

import pytest

from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.types import TaskGroup

WAIT_S = 30.0  # a test that fails gives up after this; one that passes never waits so long


def groups(*item_ids):
    return [TaskGroup((7, i), item_id, 1) for i, item_id in enumerate(item_ids)]


def play(loop, *item_ids):
    loop.submit(groups(*item_ids), max_episode_steps=None)
    return {g.group.item_id: (g.episodes + g.failed)[0] for g in loop.finished_groups()}


def test_environments_step_at_the_same_time(talk, make_loop):
    both_are_stepping = threading.Barrier(2)

    class MeetingEnv(talk.Env):
        def step(self, action):
            both_are_stepping.wait(WAIT_S)
            return super().step(action)

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    episodes = play(make_loop(engine, lambda i: MeetingEnv(), num_env_workers=2, max_retries=0), "A", "B")
    assert {e.end_reason for e in episodes.values()} == {"terminated"}


def test_the_engine_decodes_while_an_environment_steps(talk, make_loop):
    b_had_three_turns = threading.Event()

    class PatientEnv(talk.Env):
        def step(self, action):
            if self.item == "A" and not b_had_three_turns.wait(WAIT_S):
                raise TimeoutError("the engine stood still")
            if self.item == "B" and self.num_steps == 2:
                b_had_three_turns.set()
            return super().step(action)

    engine = ScriptedEngine(lambda p: talk.encode("!|" if "2>" in talk.decode(p) or p[0] == ord("A") else "a|"))
    episodes = play(make_loop(engine, lambda i: PatientEnv(), num_env_workers=2, max_retries=0), "A", "B")
    assert {item: e.num_env_steps for item, e in episodes.items()} == {"A": 1, "B": 3}
    assert {e.error for e in episodes.values()} == {None}


def test_a_hung_environment_is_replaced_with_its_worker_and_closed_when_it_comes_back(talk, make_loop):
    come_back, has_closed = threading.Event(), threading.Event()
    made = []

    class HangingEnv(talk.Env):
        def step(self, action):
            if self is made[0]:
                assert come_back.wait(WAIT_S)
            return super().step(action)

        def close(self):
            super().close()
            has_closed.set()

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    make_env = lambda env_index: made.append(HangingEnv()) or made[-1]  # noqa: E731
    # One worker: without a new one in its place the second attempt would never begin.
    loop = make_loop(engine, make_env, num_env_workers=1, num_envs=1, episode_timeout_s=0.2)
    episode = play(loop, "A")["A"]
    assert (episode.end_reason, episode.num_retries) == ("terminated", 1)
    assert not made[0].is_closed
    come_back.set()
    assert has_closed.wait(WAIT_S)
    assert [env.is_closed for env in made] == [True, False]
    assert play(loop, "B")["B"].end_reason == "terminated"
    assert len(made) == 2


def test_an_environment_that_always_hangs_fails_with_its_time(talk, make_loop):
    come_back = threading.Event()

    class HangingEnv(talk.Env):
        def reset(self, **kwargs):
            come_back.wait(WAIT_S)

    loop = make_loop(
        ScriptedEngine([]), lambda i: HangingEnv(), num_env_workers=1, episode_timeout_s=0.05, max_retries=1
    )
    error = play(loop, "A")["A"].error
    come_back.set()
    assert error.startswith("RolloutLoop: an episode must end within episode_timeout_s = 0.05; got 0.")
    assert error.endswith("waiting for its environment, after 0 steps.")


def test_the_loop_sleeps_while_every_episode_waits_for_its_environment(talk, make_loop, monkeypatch):
    loop_is_blocked = threading.Event()

    class WaitingEnv(talk.Env):
        def step(self, action):
            assert loop_is_blocked.wait(WAIT_S)
            return super().step(action)

    loop = make_loop(ScriptedEngine(lambda prompt: talk.encode("!|")), lambda i: WaitingEnv(), num_env_workers=1)
    polls, poll = [], loop._pool.poll

    def recording_poll(timeout_s):
        polls.append(timeout_s)
        if len(polls) == 2:
            loop_is_blocked.set()
        return poll(timeout_s)

    monkeypatch.setattr(loop._pool, "poll", recording_poll)
    play(loop, "A")
    # Asleep until the reset is done, no look while the engine decodes, for no environment works, and asleep again.
    assert polls == [None, None]


def test_an_environment_that_exits_the_process_fails_its_episode_alone(talk, make_loop):
    class ExitingEnv(talk.Env):
        def step(self, action):
            if self.item == "A":
                raise SystemExit(3)
            return super().step(action)

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    episodes = play(make_loop(engine, lambda i: ExitingEnv(), num_env_workers=1), "A", "B")
    assert episodes["A"].error.startswith("SystemExit: 3 (")
    assert episodes["B"].end_reason == "terminated"


@pytest.mark.parametrize("num_env_workers", [0, 2])
def test_close_closes_every_environment_also_those_in_flight_and_may_be_called_twice(talk, make_loop, num_env_workers):
    made = []
    steps = lambda prompt: 1 if prompt[0] == ord("F") else 10**6  # noqa: E731
    engine = ScriptedEngine(lambda prompt: talk.encode("!|"), num_steps=steps)
    make_env = lambda env_index: made.append(talk.Env()) or made[-1]  # noqa: E731
    loop = make_loop(engine, make_env, num_env_workers=num_env_workers, num_envs=2)
    loop.submit(groups("S", "F"), max_episode_steps=None)
    next(loop.finished_groups())
    loop.close()
    loop.close()
    assert [env.is_closed for env in made] == [True, True]
    assert engine.aborted == [r.request_id for r in engine.requests if r.prompt_ids[0] == ord("S")]
