"""A sampler that stands still is noticed by the driver, and replaced; a driver that slept itself blames none."""

import os
from types import SimpleNamespace

import pytest

from rllm_gym.rollout import beats
from rllm_gym.rollout.beats import StandstillWatch


class Clock:
    """Seconds that pass when the test says so, and the beats of two samplers."""

    def __init__(self):
        self.now_s = 0.0
        self.beats = {"a": 0, "b": 0}
        self.lines, self.replaced = [], []

    def watch(self, timeout_s):
        found = StandstillWatch(
            {1: "a", 2: "b"},
            timeout_s=timeout_s,
            tell=self.lines.append,
            replace=lambda number, beat: self.replaced.append((number, beat)),
            read=lambda actor_id: None if self.beats[actor_id] is None else f"node 7 {self.beats[actor_id]}",
            clock=lambda: self.now_s,
        )
        found.stop()  # the test looks itself
        return found

    def go_on(self, watch, seconds, *alive, tick_s=5.0):
        for _ in range(int(seconds / tick_s)):
            self.now_s += tick_s
            for actor_id in alive:
                self.beats[actor_id] += 1
            watch._look()


@pytest.fixture
def clock():
    return Clock()


def test_one_without_a_beat_is_told_after_a_minute_and_replaced_after_the_timeout(clock):
    watch = clock.watch(120.0)
    clock.go_on(watch, 55, "b")
    assert clock.lines == []
    clock.go_on(watch, 15, "b")
    [line] = clock.lines
    assert line.startswith("EnvRunner 1 has stood still for 60 s (process node 7)") and "120 s" in line
    clock.go_on(watch, 60, "b")
    assert clock.replaced == [(1, "node 7 0")]
    clock.go_on(watch, 300, "b")
    assert len(clock.lines) == 2 and len(clock.replaced) == 1


def test_one_that_comes_back_is_left(clock):
    watch = clock.watch(120.0)
    clock.go_on(watch, 100, "b")
    clock.go_on(watch, 300, "a", "b")
    assert clock.replaced == []


def test_a_short_timeout_replaces_none_before_it_is_told(clock):
    watch = clock.watch(3.0)
    clock.go_on(watch, 50, "b")
    assert clock.replaced == []


def test_without_a_timeout_none_is_replaced(clock):
    watch = clock.watch(None)
    clock.go_on(watch, 1_000, "b")
    assert clock.replaced == [] and len(clock.lines) == 1 and "left as it is" in clock.lines[0]


def test_a_driver_that_was_suspended_blames_no_sampler(clock):
    watch = clock.watch(120.0)
    clock.go_on(watch, 10, "a", "b")
    clock.now_s += 10_000.0  # a laptop that was closed, or a driver that was stopped
    watch._look()
    clock.go_on(watch, 40, "b")
    assert clock.lines == [] and clock.replaced == []


def test_one_that_is_being_built_is_not_counted(clock):
    clock.beats["a"] = None
    watch = clock.watch(120.0)
    clock.go_on(watch, 1_000, "b")
    assert clock.lines == []


def test_the_first_sign_of_life_is_there_before_an_environment_can_stop_the_process(monkeypatch):
    written = {}
    monkeypatch.setattr(beats.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(beats.ray, "get_runtime_context", lambda: SimpleNamespace(get_actor_id=lambda: "a"))
    monkeypatch.setattr(beats.ray_store, "put", lambda namespace, key, value: written.update({key: value}))
    beats.Beats().stop()
    assert written["a"].split()[1:] == [str(os.getpid()), "0"]
