"""The loop with worker threads: overlap, hung environments and idling, held together by events and never by sleeps."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace

import pytest

from rllm_gym.errors import describe
from rllm_gym.rollout import env_pool, watch
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.types import TaskGroup

WAIT_S = 30.0  # a test that fails gives up after this; one that passes never waits so long


def groups(*item_ids):
    return [TaskGroup((7, i), item_id, 1) for i, item_id in enumerate(item_ids)]


def play(loop, *item_ids):
    loop.submit(groups(*item_ids), max_episode_steps=None)
    return {g.group.item_id: (g.episodes + g.failed)[0] for g in loop.finished_groups()}


@pytest.mark.parametrize("num_env_workers", [0, 3])
def test_every_call_of_an_environment_comes_from_one_thread(talk, make_loop, num_env_workers):
    threads = {}

    class BoundEnv(talk.Env):
        def __init__(self):
            super().__init__()
            self.note()

        def note(self):
            threads.setdefault(self, set()).add(threading.get_ident())

        def reset(self, **kwargs):
            self.note()
            return super().reset(**kwargs)

        def step(self, action):
            self.note()
            return super().step(action)

        def close(self):
            self.note()
            super().close()

    engine = ScriptedEngine(lambda prompt: talk.encode("!|" if "2>" in talk.decode(prompt) else "a|"))
    loop = make_loop(engine, lambda i: BoundEnv(), num_env_workers=num_env_workers, num_envs=6)
    play(loop, *"ABCDEFGHIJKLMNOP")
    loop.close()
    assert all(env.is_closed for env in threads)
    assert {len(of_env) for of_env in threads.values()} == {1}
    # Six environments over the threads evenly.
    assert len(threads) == 6
    assert len(set.union(*threads.values())) == max(1, num_env_workers)


def test_the_other_environments_of_a_hung_thread_are_made_anew_and_lose_no_attempt(talk, make_loop, hang):
    thread_of, hung, has_closed = {}, [], threading.Semaphore(0)

    class HangingEnv(talk.Env):
        def __init__(self):
            super().__init__()
            thread_of[self] = threading.get_ident()

        def step(self, action):
            if self.item == "A" and not hung:
                hung.append(self)
                hang()
            return super().step(action)

        def close(self):
            super().close()
            has_closed.release()

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    loop = make_loop(engine, lambda i: HangingEnv(), num_env_workers=2, num_envs=4, env_timeout_s=0.1, max_retries=1)
    episodes = play(loop, *"ABCD")  # A and C in one thread
    assert {e.end_reason for e in episodes.values()} == {"terminated"}
    assert {item: e.num_retries for item, e in episodes.items()} == {"A": 1, "B": 0, "C": 0, "D": 0}
    of_its_thread = [env for env, thread in thread_of.items() if thread == thread_of[hung[0]]]
    assert len(of_its_thread) == 2
    assert not any(env.is_closed for env in thread_of)
    hang.come_back.set()
    assert all(has_closed.acquire(timeout=WAIT_S) for _ in of_its_thread)
    assert [env for env in thread_of if env.is_closed] == of_its_thread


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


@pytest.fixture
def hang(monkeypatch):
    """Hangs a call until the event that it returns is set; no other call takes any time on the pool's clock."""
    now_s, come_back = [0.0], threading.Event()
    monkeypatch.setattr(env_pool, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))

    def hang():
        now_s[0] += 1.0
        come_back.wait(WAIT_S)

    hang.come_back = come_back
    return hang


@pytest.mark.parametrize("num_env_workers", [0, 1])
@pytest.mark.parametrize("call", ["make", "reset", "step"])
def test_a_call_that_takes_too_long_fails_the_episode_and_gets_a_new_environment(
    talk, make_loop, caplog, call, num_env_workers, hang
):
    has_closed = threading.Event()
    made = []

    def enter(where):
        if call == where and len(made) == 1:
            hang()

    class HangingEnv(talk.Env):
        def __init__(self):
            super().__init__()
            made.append(self)
            enter("make")

        def reset(self, **kwargs):
            enter("reset")
            return super().reset(**kwargs)

        def step(self, action):
            enter("step")
            return super().step(action)

        def close(self):
            super().close()
            has_closed.set()

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    loop = make_loop(
        engine, lambda i: HangingEnv(), num_env_workers=num_env_workers, num_envs=1, env_timeout_s=0.1, max_retries=1
    )
    episode = play(loop, "A")["A"]
    assert (episode.end_reason, episode.num_retries, episode.num_env_timeouts) == ("terminated", 1, 1)
    assert episode.timings["env_s"] >= 1.0
    name = "environment 0" if call == "make" else "HangingEnv"
    assert f"must return within env_timeout_s = 0.1; got 1.0 s in {call} of {name}, which is abandoned." in caplog.text
    assert [env.is_closed for env in made] == [False, False]
    hang.come_back.set()
    assert has_closed.wait(WAIT_S)
    assert [env.is_closed for env in made] == [True, False]
    assert play(loop, "B")["B"].end_reason == "terminated"
    assert len(made) == 2


@pytest.mark.parametrize("num_env_workers", [0, 1])
def test_an_environment_that_hangs_in_close_holds_nobody_up(talk, make_loop, caplog, hang, num_env_workers):
    class HangingEnv(talk.Env):
        def step(self, action):
            raise RuntimeError("broken")

        def close(self):
            hang()

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    loop = make_loop(engine, lambda i: HangingEnv(), num_env_workers=num_env_workers, env_timeout_s=0.1, max_retries=1)
    assert play(loop, "A")["A"].error.startswith("RuntimeError: broken")
    loop.close()
    assert caplog.text.count("in close of HangingEnv, which is abandoned.") == 2
    hang.come_back.set()


def test_without_workers_every_call_is_made_by_one_thread_in_order_while_the_loop_waits(talk, make_loop, monkeypatch):
    calls, is_polling = [], []

    class NotingEnv(talk.Env):
        def note(self, what):
            assert is_polling
            calls.append((threading.current_thread().name, what))

        def __init__(self):
            super().__init__()
            self.note("make")

        def reset(self, **kwargs):
            self.note(f"reset {kwargs['options']['item_id']}")
            return super().reset(**kwargs)

        def step(self, action):
            self.note(f"step {self.item}{self.num_steps + 1}")
            return super().step(action)

    num_steps = {"A": 3, "B": 1, "C": 2}
    engine = ScriptedEngine(
        lambda prompt: talk.encode("!|" if "2>" in talk.decode(prompt) else "a|"),
        num_steps=lambda prompt: num_steps[chr(prompt[0])],
    )
    loop = make_loop(engine, lambda i: NotingEnv(), num_envs=2)
    poll = loop._pool.poll

    def noting_poll(timeout_s):
        is_polling.append(True)
        done = poll(timeout_s)
        is_polling.clear()
        return done

    monkeypatch.setattr(loop._pool, "poll", noting_poll)
    play(loop, "A", "B", "C")
    assert {thread for thread, _ in calls} == {"env-worker"}
    # A's completions take three engine steps, B's one and C's two.
    expected = (
        "make,reset A,make,reset B,step B1,step B2,step A1,step B3,reset C,step A2,step C1,step C2,step A3,step C3"
    )
    assert [what for _, what in calls] == expected.split(",")


@pytest.mark.parametrize("what", ["step of WaitingEnv", "the engine"])
@pytest.mark.parametrize("num_env_workers", [0, 2])
def test_a_loop_in_which_nothing_ends_says_what_it_waits_for(talk, make_loop, monkeypatch, num_env_workers, what):
    monkeypatch.setattr(watch, "FIRST_REPORT_S", 0.02)
    in_engine = 2 if what == "the engine" else 0
    line = (
        f"no episode has ended for 0 s: 2 episodes are in flight, {in_engine} of them wait for the engine and "
        f"{2 - in_engine} for their environments; 1 have not begun. The longest one: episode 7, 0 s for {what}."
    )
    was_said = threading.Event()

    def plain(text):  # either of two threads may be the first
        return re.sub(r"7-\d-0 \([AB]\)", "7", re.sub(r"\d+ s", "0 s", text))

    monkeypatch.setattr(watch.logger, "warning", lambda text, *args: plain(text % args) == line and was_said.set())

    class WaitingEnv(talk.Env):
        def step(self, action):
            assert what == "the engine" or was_said.wait(WAIT_S)
            return super().step(action)

    class WaitingEngine(ScriptedEngine):
        def step(self):
            if len(self.requests) < 2:  # the other environment is being reset in its own thread
                return []
            assert what != "the engine" or was_said.wait(WAIT_S)
            return super().step()

    engine = WaitingEngine(lambda prompt: talk.encode("!|"))
    play(make_loop(engine, lambda i: WaitingEnv(), num_envs=2, num_env_workers=num_env_workers), "A", "B", "C")
    assert was_said.is_set()


def test_reports_come_at_growing_intervals_and_begin_anew_when_an_episode_has_ended(monkeypatch):
    waited_s = [0, 59, 61, 100, 121, 130, 240, 245, 30, 59, 60, 70, 125]
    said, is_over = [], threading.Event()
    monkeypatch.setattr(watch.logger, "warning", lambda text, *args: said.append(args[0]))

    def waiting():
        if not waited_s:
            is_over.set()
        return watch.Waiting(waited_s.pop(0) if waited_s else 0.0, 0, 0, 0, "")

    reports = watch.WaitingReports(waiting, tick_s=0.001)
    assert is_over.wait(WAIT_S)
    reports.stop()
    assert said == [61, 130, 60, 125]


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
    made, is_slow_made = [], threading.Event()

    class SlowOrFast(talk.Env):
        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed, options=options)
            made.append(self)
            if self.item == "S":
                is_slow_made.set()
            return observation, info

        def step(self, action):
            is_slow_made.wait(WAIT_S)  # else the fast episode may end before the slow one's thread has begun
            return super().step(action)

    steps = lambda prompt: 1 if prompt[0] == ord("F") else 10**6  # noqa: E731
    engine = ScriptedEngine(lambda prompt: talk.encode("!|"), num_steps=steps)
    make_env = lambda env_index: SlowOrFast()  # noqa: E731
    loop = make_loop(engine, make_env, num_env_workers=num_env_workers, num_envs=2)
    loop.submit(groups("S", "F"), max_episode_steps=None)
    next(loop.finished_groups())
    loop.close()
    loop.close()
    assert [env.is_closed for env in made] == [True, True]
    assert engine.aborted == [r.request_id for r in engine.requests if r.prompt_ids[0] == ord("S")]


def test_an_exception_without_a_message_is_described():
    class UnprintableError(Exception):
        def __str__(self):
            raise ValueError

    try:
        raise UnprintableError
    except UnprintableError as error:
        said = describe(error)
    assert said.startswith("UnprintableError: (its message cannot be made: ValueError)")
    assert __file__ in said
