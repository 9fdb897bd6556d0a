"""What runners have to say while they sample reaches the terminal."""

from __future__ import annotations

import logging
import time

import pytest

from rllm_gym.cli.ray_session import shown_notices


def say_twice(name):
    from rllm_gym.rollout.notices import NoticeHandler

    logger = logging.getLogger(name)
    logger.addHandler(NoticeHandler("EnvRunner 3"))
    logger.warning("no episode has ended for %d s", 60)
    logger.warning("no episode has ended for %d s", 120)


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
