"""Algorithms on toy environments."""

from __future__ import annotations

import pytest

from tests.algorithms.algorithm_helpers import (
    make_deadly,
    make_flaky,
    make_pass_the_word,
    make_say_the_word,
    make_take_away,
)


@pytest.fixture(scope="session")
def toy_environments(ray_cluster):
    from ray.tune.registry import register_env

    register_env("say_the_word", make_say_the_word)
    register_env("flaky", make_flaky)
    register_env("deadly", make_deadly)
    register_env("pass_the_word", make_pass_the_word)
    register_env("take_away", make_take_away)


@pytest.fixture
def build(toy_environments):
    """Build algorithms and stop them after the test."""
    built = []

    def make(config):
        built.append(config.build_algo())
        return built[-1]

    yield make
    for algo in built:
        algo.stop()
