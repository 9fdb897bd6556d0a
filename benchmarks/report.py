"""One Markdown row per run, in the columns of the tables in `benchmarks/results/`."""

from __future__ import annotations

import datetime
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence


def print_row(seeds: Sequence[int], result: str, ratios: Sequence[float]) -> None:
    """Print date, commit, command, device, seeds, the result in words, and the ratio to the same run's baseline."""
    mean = statistics.mean(ratios)
    spread = f" +- {statistics.stdev(ratios):.2f}" if len(ratios) > 1 else ""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    command = "python " + shlex.join(sys.argv)
    cells = (date, _commit(), f"`{command}`", _device(), ", ".join(map(str, seeds)), result, f"{mean:.2f}{spread}")
    print("| date | commit | command | device | seeds | result | ratio |\n|---|---|---|---|---|---|---|")
    print("| " + " | ".join(cells) + " |")


def mean_and_spread(values: Sequence[float], digits: int = 1) -> str:
    spread = f" +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def interval(values: list[float]) -> str:
    """Return the mean and the 95 % interval of Student's t."""
    from scipy.stats import t

    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} +- {half:.3f}"


def _commit() -> str:
    run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def _device() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{len(os.sched_getaffinity(0))} CPU cores ({platform.machine()})"
