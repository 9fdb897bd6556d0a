"""Seconds from `rllib train` to each of its first lines, for this checkout and another one, in turns.

    git worktree add ../before HEAD~20
    .venv/bin/python benchmarks/start.py --against ../before --rounds 3

The run is the quickstart with two short train steps. Each round runs both once; the table has the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SHORT = {"groups_per_step": 2, "group_size": 4, "num_envs_per_env_runner": 8, "max_new_tokens": 16}
SHORT |= {"evaluation_interval": 2, "evaluation_duration": 4}
# How the lines of `rllib train` begin.
MOMENTS = {"Ray starts": "quickstart: starting Ray", "the trial builds": "building: ", "first train step": "step 1/"}


def short_quickstart(folder: Path) -> Path:
    [experiment] = yaml.safe_load((ROOT / "tuned_examples" / "quickstart.yaml").read_text()).values()
    experiment["stop"] = {"training_iteration": 2}
    experiment["config"] |= SHORT
    path = folder / "quickstart.yaml"
    path.write_text(yaml.safe_dump({"quickstart": experiment}))
    return path


def times_s(checkout: Path) -> dict[str, float]:
    """Run it once; return the seconds until each moment, and until the end."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = str(short_quickstart(Path(folder)))
        command = [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "train", "file", file]
        begun = time.perf_counter()
        with subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                for moment, beginning in MOMENTS.items():
                    if line.startswith(beginning):
                        found.setdefault(moment, time.perf_counter() - begun)
        if process.returncode:
            raise SystemExit(f"{checkout}: rllib train ended with {process.returncode}.")
        return found | {"the end": time.perf_counter() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout; without it this one is timed alone")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    checkouts = {"this": ROOT} | ({"other": asked.against.resolve()} if asked.against else {})
    rounds = [{name: times_s(path) for name, path in checkouts.items()} for _ in range(asked.rounds)]
    print("| until | " + " | ".join(f"{name}, s" for name in checkouts) + (" | ratio |" if asked.against else " |"))
    print("|---" * (len(checkouts) + 1 + bool(asked.against)) + "|")
    for moment in [*MOMENTS, "the end"]:
        medians = [statistics.median(of[name][moment] for of in rounds) for name in checkouts]
        ratio = [f"{medians[0] / medians[1]:.2f}"] if asked.against else []
        print("| " + " | ".join([moment, *(f"{value:.1f}" for value in medians), *ratio]) + " |")


if __name__ == "__main__":
    main()
