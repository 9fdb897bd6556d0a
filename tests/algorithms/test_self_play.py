"""Self-play learns: what `benchmarks/kuhn.py` measures with five seeds, here with one and a bound that all keep."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def kuhn(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    yield importlib.import_module("kuhn")
    for name in ("kuhn", "report"):
        sys.modules.pop(name, None)


def test_self_play_of_kuhn_poker_comes_near_optimal_play(ray_cluster, kuhn, tmp_path):
    kuhn.warm_start(str(tmp_path), seed=0, steps=600)
    row = kuhn.self_play("role", 0, str(tmp_path / "warm"), steps=80, every=80)
    (_, before, _), (_, after, illegal) = row["curve"]
    print(row)
    assert before > 0.458  # half of what uniform play has
    assert after < 0.4
    assert illegal < 0.05
