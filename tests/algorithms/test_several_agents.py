"""Several agents learn: what `benchmarks/` measures with five seeds, here with one and bounds that all five keep."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.in_process import in_this_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def benchmark(monkeypatch, engines):
    """Return what imports a script of benchmarks/; its runs sample in this process."""
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    with in_this_process(engines):
        yield importlib.import_module
    for script in folder.glob("*.py"):
        sys.modules.pop(script.stem, None)


def test_self_play_of_kuhn_poker_comes_near_optimal_play(benchmark, tmp_path):
    kuhn = benchmark("kuhn")
    kuhn.warm_start(str(tmp_path), seed=0, steps=600)
    row = kuhn.self_play("role", 0, str(tmp_path / "warm"), steps=80, every=80)
    (_, before, _), (_, after, illegal) = row["curve"]
    print(row)
    assert before > 0.458  # half of what uniform play has
    assert after < 0.4
    assert illegal < 0.05


def test_a_planner_and_an_actor_learn_together(benchmark):
    row = benchmark("teams").reinforce("planner_actor", 0, "tiny", {"train": 128})
    print(row)
    assert row["after"]["train"] > row["before"]["train"] + 0.1  # 0.17 to 0.23 with five seeds
