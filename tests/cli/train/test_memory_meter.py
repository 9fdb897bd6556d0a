"""The memory meter counts children, and tells growth from noise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rllm_gym.cli.train.memory_meter import MemoryMeter
from rllm_gym.memory import process_tree_bytes


def test_the_processes_below_are_counted():
    before = process_tree_bytes()
    code = "block = bytearray(range(256)) * (200 * 2**12); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        grown = process_tree_bytes() - before
        child.communicate(b"\n")
    assert grown > 200e6


def test_growth_is_measured_after_the_first_five_steps_and_by_medians():
    meter = MemoryMeter()
    meter.bytes_by_step = [1, 50, 70, 90, 95] + [100] * 10
    assert meter.growth == 0.0
    meter.bytes_by_step = [0] * 5 + [100, 100, 400, 100, 100] + [100] * 5 + [110, 110, 110, 900, 110]
    assert meter.growth == pytest.approx(0.1)
    assert meter.describe() == "at most 0.00 GB in all processes; +10.0% after the first 5 train steps"
    meter.bytes_by_step = [100] * 6
    assert meter.growth is None
    assert MemoryMeter().describe() is None
