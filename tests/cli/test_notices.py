"""What runners have to say while they sample reaches the terminal."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest

from rllm_gym.cli.ray_session import shown_notices
from rllm_gym.library_noise import hold_back


def say_twice(name):
    from rllm_gym.rollout.notices import NoticeHandler

    logger = logging.getLogger(name)
    logger.addHandler(NoticeHandler("EnvRunner 3"))
    logger.warning("no episode has ended for %d s", 60)
    logger.warning("no episode has ended for %d s", 120)


def sample(seconds):
    from rllm_gym.rollout.notices import tell_progress
    from rllm_gym.rollout.watch import ProgressReports

    loop = SimpleNamespace(num_unfinished_episodes=8)
    reports = ProgressReports(lambda: loop.num_unfinished_episodes, tell_progress, tick_s=0.01)
    for number in (5, 0):
        time.sleep(seconds)
        loop.num_unfinished_episodes = number
    time.sleep(seconds)
    reports.stop()


@pytest.mark.slow
def test_how_far_all_samplers_are_reaches_the_driver(ray_cluster):
    import ray

    seen = []
    with shown_notices(lambda *progress: seen.append(progress), interval_s=0.01):
        ray.get([ray.remote(sample).remote(1.0) for _ in range(2)])
        time.sleep(0.5)
    assert (3, 8) in seen or (6, 16) in seen
    assert seen[-1] == (0, 0)


@pytest.mark.slow
def test_a_runners_lines_are_printed_by_the_driver_in_order_and_once(ray_cluster, capfd):
    import ray

    with shown_notices(interval_s=0.01):
        ray.get(ray.remote(say_twice).remote("a_runner"))
        seen, deadline = "", time.monotonic() + 60
        while seen.count("EnvRunner 3:") < 2 and time.monotonic() < deadline:
            seen += capfd.readouterr().err
            time.sleep(0.01)
    seen += capfd.readouterr().err
    lines = [line for line in seen.splitlines() if line.startswith("EnvRunner 3:")]
    assert lines == [f"EnvRunner 3: no episode has ended for {seconds} s" for seconds in (60, 120)]


def test_what_the_command_mutes_stays_muted(monkeypatch):
    loggers = {name: logging.getLogger(name) for name in ("ray", "ray.tune")}
    for logger in loggers.values():
        monkeypatch.setattr(logger, "level", logging.WARNING)
    loggers["ray.tune"].setLevel(logging.CRITICAL)
    hold_back()
    assert [logger.level for logger in loggers.values()] == [logging.ERROR, logging.CRITICAL]
