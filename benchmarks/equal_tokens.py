"""Runs of several arms and seeds that are compared at equal tokens: each in a process of its own, a row as it ends."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import interval

WINDOW = 5  # train steps that a rate is the mean of
SHARES = (0.25, 0.5, 1.0)  # of the tokens, where arms are compared
NUM_PLAYED = 2  # episodes of each task before and after training


def train(config: Any, num_steps: int, tasks: Sequence[str] = ()) -> dict[str, Any]:
    """Train by a configuration; return a row's curve, and the success on tasks before and after."""
    from rllm_gym.cli.ray_session import prepare_driver

    prepare_driver(None)
    import ray

    config.evaluation_interval, config.save_trajectories = None, False
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=400 * 2**20)
    algo, begun_s, curve, num_tokens = config.build_algo(), time.perf_counter(), [], 0
    panel = {"before": success_on(algo, tasks)} if tasks else {}
    for _ in range(num_steps):
        found = algo.train()["env_runners"]
        num_tokens += int(found["num_sampled_tokens"])
        curve.append([num_tokens, round(float(found["success_rate"]), 4), int(found["num_failed_episodes"])])
    panel |= {"after": success_on(algo, tasks)} if tasks else {}
    algo.stop()
    ray.shutdown()
    return {"steps": num_steps, "curve": curve, **panel, "s": round(time.perf_counter() - begun_s)}


def success_on(algo: Any, tasks: Sequence[str]) -> float:
    """Play each task `NUM_PLAYED` times, sampled as in training; return the share that succeeded."""
    from rllm_gym.training.task_sampler import EVALUATION_STEP
    from rllm_gym.types import TaskGroup

    key = algo.config.seed, EVALUATION_STEP
    groups = [TaskGroup((*key, k), item_id, NUM_PLAYED) for k, item_id in enumerate(tasks)]
    episodes, failed = algo.sample(groups)
    if failed:
        raise SystemExit(f"{len(failed)} episodes of the panel failed: {failed[0].error}")
    return round(statistics.mean(bool(episode.info["is_success"]) for episode in episodes), 4)


def append_row(folder: Path, row: dict[str, Any]) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(folder: Path) -> list[dict[str, Any]]:
    file = folder / "rows.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def run_missing(
    module: str, folder: Path, arms: Sequence[str], seeds: Sequence[int], num_steps: int, more: Sequence[str] = ()
) -> None:
    """Run `python -m MODULE one FOLDER ARM SEED STEPS MORE...` for what has no row yet, seed by seed."""
    for arm, seed in [(arm, seed) for seed in seeds for arm in arms]:
        if any((row["arm"], row["seed"]) == (arm, seed) for row in read_rows(folder)):
            continue
        command = [sys.executable, "-m", module, "one", str(folder), arm, str(seed), str(num_steps), *more]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"{arm}, seed {seed}: failed. The rows so far are in {folder}.")


def report(folder: Path, arms: Sequence[str]) -> None:
    """Print each arm's success and gain where a seed's shorter run had sampled a quarter, half and all of its tokens.

    Success is the mean of the last `WINDOW` train steps up to there, gain is what it has more than the first ones.
    """
    found = {(row["arm"], row["seed"]): row for row in read_rows(folder)}
    rows = {key: row["curve"] for key, row in found.items()}
    seeds = sorted({seed for _, seed in rows if all((arm, seed) in rows for arm in arms)})
    for share in SHARES if seeds else ():
        last: dict[str, list[float]] = {arm: [] for arm in arms}
        gains: dict[str, list[float]] = {arm: [] for arm in arms}
        for seed in seeds:
            most = share * min(rows[arm, seed][-1][0] for arm in arms)
            for arm in arms:
                rates = [rate for tokens, rate, _ in rows[arm, seed] if tokens <= most]
                last[arm].append(statistics.mean(rates[-WINDOW:]))
                gains[arm].append(last[arm][-1] - statistics.mean(rates[:WINDOW]))
            print(f"{share:.0%} of {most / share:,.0f} tokens, seed {seed}: " + ", ".join(
                f"{arm} {last[arm][-1]:.3f} ({gains[arm][-1]:+.3f})" for arm in arms
            ))  # fmt: skip
        compare("success", last)
        compare("gain", gains)
    if seeds and all("after" in found[arm, seed] for arm in arms for seed in seeds):
        print("every task, before and after:")
        ends = {arm: [(found[arm, seed]["before"], found[arm, seed]["after"]) for seed in seeds] for arm in arms}
        for k, seed in enumerate(seeds):
            told = (f"{arm} {ends[arm][k][0]:.3f} -> {ends[arm][k][1]:.3f}" for arm in arms)
            print(f"  seed {seed}: {', '.join(told)}")
        compare("after", {arm: [after for _, after in ends[arm]] for arm in arms})
        compare("gain", {arm: [after - before for before, after in ends[arm]] for arm in arms})


def compare(name: str, values: Mapping[str, Sequence[float]]) -> None:
    """Print both arms' mean over seeds, and what the second has more than the first."""
    (one, first), (other, second) = values.items()
    difference = interval([b - a for a, b in zip(first, second, strict=True)])
    print(f"  {name}: {one} {interval(first)}, {other} {interval(second)}; {other} less {one}: {difference}")
