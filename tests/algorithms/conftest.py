"""Algorithms on toy environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.algorithms.algorithm_helpers import (
    make_deadly,
    make_flaky,
    make_pass_the_word,
    make_say_the_word,
    make_take_away,
)


def register_toys() -> None:
    from ray.tune.registry import register_env

    register_env("say_the_word", make_say_the_word)
    register_env("flaky", make_flaky)
    register_env("deadly", make_deadly)
    register_env("pass_the_word", make_pass_the_word)
    register_env("take_away", make_take_away)


@pytest.fixture(scope="session")
def toy_environments(ray_cluster):
    """Ray, whose workers find the toy environments, too."""
    register_toys()


@contextmanager
def stopped() -> Iterator[Callable]:
    """Hand over what builds algorithms, and stop them in the end."""
    built = []

    def make(config):
        config.log_sys_usage = False  # the end of a run waits for that thread's sleep
        built.append(config.build_algo())
        return built[-1]

    try:
        yield make
    finally:
        for algo in built:
            algo.stop()


@pytest.fixture
def build(engines):
    """Build algorithms that sample in this process, with an engine that other tests have too; stop them in the end."""
    from tests.in_process import in_this_process

    register_toys()
    with in_this_process(engines), stopped() as make:
        yield make


@pytest.fixture
def build_on_ray(toy_environments):
    """Build algorithms with EnvRunners in processes of their own, and stop them in the end."""
    with stopped() as make:
        yield make
