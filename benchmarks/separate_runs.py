"""The base of scripts that train: a Ray of their own, a process for each run, rows in a file, a model to begin with."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

QUICKSTART = Path(__file__).parent.parent / "tuned_examples" / "quickstart.yaml"


@contextlib.contextmanager
def ray_here() -> Iterator[None]:
    from rllm_gym.cli.ray_session import prepare_driver

    prepare_driver(None)
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=400 * 2**20)
    yield
    ray.shutdown()


def is_bfloat16_faster() -> bool:
    """Multiply in float32 and in bfloat16 for a moment; return whether the latter is faster.

    The processor's flags do not tell: one with AVX512_BF16 and without AMX took 1.7 times as long.
    """
    import torch

    best_s = dict.fromkeys((torch.float32, torch.bfloat16), float("inf"))
    for _ in range(7):  # in turns; the first also warms up
        for dtype in best_s:
            tokens, weight = torch.ones(2048, 576, dtype=dtype), torch.ones(1536, 576, dtype=dtype)
            begun = time.perf_counter()
            torch.nn.functional.linear(tokens, weight)
            best_s[dtype] = min(best_s[dtype], time.perf_counter() - begun)
    return best_s[torch.bfloat16] < best_s[torch.float32]


def apart(*arguments: str) -> str:
    """Run this script in a process of its own, and return what it printed."""
    finished = subprocess.run([sys.executable, sys.argv[0], *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"{' '.join(arguments)}: failed. Its error is above; the rows so far are kept.")
    return finished.stdout


def run_apart(file: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run this script in a process of its own, append the rows that its last line holds to a file, and return them."""
    rows: list[dict[str, Any]] = json.loads(apart(*arguments).splitlines()[-1])
    with file.open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def warm_up(config: Any, steps: int, folder: Path) -> None:
    """Train by a configuration, and write what was learnt to `folder/warm`."""
    from rllm_gym.evaluation.export import export_policy

    algo = config.build_algo()
    for _ in range(steps):
        algo.train()
    export_policy(Path(algo.save_to_path(str(folder / "checkpoint"))), folder / "warm")
    algo.stop()


def quickstart(folder: Path, name: str, **settings: Any) -> list[dict[str, Any]]:
    """Run the quickstart with other settings, unless the folder has that run; return a result per train step."""
    if not (folder / "runs" / name / "summary.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        [experiment] = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8")).values()
        experiment["config"] |= {"evaluation_seed": 0, **settings}
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({name: experiment}), encoding="utf-8")
        command = [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "train", "file", file]
        subprocess.run(
            [*map(str, command), "--storage-path", str(folder / "runs")], check=True, stdout=subprocess.DEVNULL
        )
    [results] = (folder / "runs" / name).glob("*/result.json")
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
