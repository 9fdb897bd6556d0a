"""300 train steps: memory, open files and threads of every process are where they were after the first hundred."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.kills import harness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_STEPS, WARM_STEPS, EVERY = 300, 100, 5
MAX_MB_PER_100_STEPS = 10.0  # measured in two runs: driver 1.8 and 2.2, trial 1.7 and 4.5, runner 0.0 and 4.6
OURS = ("driver", "trainer", "runner")


@dataclass
class Use:
    """The resources that a process holds, measured now and then."""

    steps: list[int] = field(default_factory=list)
    mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def measure(self, process: psutil.Process, step: int) -> None:
        with process.oneshot():
            found = process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
        self.steps.append(step)
        for values, value in zip((self.mb, self.files, self.threads), found, strict=True):
            values.append(value)

    @property
    def mb_per_100_steps(self) -> float:
        return float(np.polyfit(self.steps, self.mb, 1)[0]) * 100

    def growth(self, values: list[int]) -> float:
        """Return by how much the later half's median is above the earlier half's; a socket comes and goes."""
        half = len(values) // 2
        return statistics.median(values[half:]) - statistics.median(values[:half])

    def faults(self, more: int = 1) -> list[str]:
        """Return what grows; of files and threads so many more are none."""
        found = []
        if self.mb_per_100_steps > MAX_MB_PER_100_STEPS:
            found.append(f"grows by {self.mb_per_100_steps:.1f} MB in 100 steps: {self.mb}")
        for name, values in (("files", self.files), ("threads", self.threads)):
            if self.growth(values) > more:
                found.append(f"has more and more {name}: {values}")
        return found


def test_no_process_of_a_run_grows_in_300_train_steps(tmp_path: Path) -> None:
    """The command with an engine that samples: driver, main process of the trial, runner, and Ray's own processes."""
    options = {
        "groups_per_step": 2,
        "group_size": 2,
        "max_new_tokens": 6,
        "max_episode_steps": 1,
        "filter_groups": "off",
    }
    uses: dict[tuple[int, str], Use] = defaultdict(Use)
    with harness.run(tmp_path, NUM_STEPS, checkpoint_frequency=100, **options) as soaked:
        soaked.start()
        for step in range(WARM_STEPS, NUM_STEPS - EVERY, EVERY):
            soaked.await_(
                lambda step=step: soaked.num_rows() >= step, f"train step {step}", 2 * harness.START_S, interval_s=0.2
            )
            for process in soaked.processes():
                with contextlib.suppress(psutil.Error):  # it has ended
                    uses[process.pid, _name(process)].measure(process, step)
        soaked.assert_goes_on()
    lasting = {
        name: use for (_, name), use in uses.items() if len(use.steps) > len(range(WARM_STEPS, NUM_STEPS, EVERY)) / 2
    }
    print({name: round(use.mb_per_100_steps, 2) for name, use in lasting.items()})
    assert lasting.keys() >= set(OURS)
    # Ray's own start a pair of threads for their connections now and then.
    faults = {name: use.faults(1 if name in OURS else 4) for name, use in lasting.items()}
    assert {name: found for name, found in faults.items() if found} == {}


def _name(process: psutil.Process) -> str:
    for kind in OURS:
        if harness.is_kind(kind, process):
            return kind
    return f"{process.name()} {process.pid}"
