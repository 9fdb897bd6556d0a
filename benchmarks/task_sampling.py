"""Ways to spend fewer episodes on tasks that teach nothing, beside uniform sampling: the quickstart's run with each.

    .venv/bin/python benchmarks/task_sampling.py                 # five seeds of each: three hours on one core
    .venv/bin/python benchmarks/task_sampling.py --kinds uniform screened --seeds 0 1

Runs that are in the folder are not run again. Success is evaluated every ten train steps on 128 training tasks and 128
held-out ones, drawn uniformly for all, since the success while sampling is of easier or harder tasks. The last lines
compare the tokens that each had sampled when it first reached the success with which `uniform` ends.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from separate_runs import quickstart

KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "difficulty": {"task_sampling": "difficulty"},
    "screened": {"screening_size": 4},
}


def rows_of(folder: Path, kind: str, seed: int) -> list[dict[str, Any]]:
    return quickstart(folder, f"{kind}_{seed}", seed=seed, evaluation_interval=10, **KINDS[kind])


def curve(rows: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """Return (tokens sampled so far, success on training tasks, on held-out ones) at every evaluation."""
    points, num_tokens = [], 0.0
    for row in rows:
        num_tokens += row["env_runners"]["num_sampled_tokens"]
        if "evaluation" in row:
            splits = [row["evaluation"][split]["success_rate"] for split in ("train", "eval")]
            points.append((num_tokens, *splits))
    return points


def report(folder: Path, kinds: list[str], seeds: list[int]) -> None:
    runs = {kind: {seed: rows_of(folder, kind, seed) for seed in seeds} for kind in kinds}
    print("| tasks | seed | groups that teach | tokens | success, train tasks | held-out |")
    print("|---|---|---|---|---|---|")
    for kind, by_seed in runs.items():
        for seed, rows in by_seed.items():
            share = statistics.mean(row["env_runners"]["useful_group_share"] for row in rows)
            tokens, train_rate, eval_rate = curve(rows)[-1]
            print(f"| {kind} | {seed} | {share:.2f} | {tokens:,.0f} | {train_rate:.3f} | {eval_rate:.3f} |")
    if "uniform" not in runs:
        return
    goal = statistics.mean(curve(rows)[-1][1] for rows in runs["uniform"].values())
    reached = {
        kind: [next((t for t, rate, _ in curve(rows) if rate >= goal), float("inf")) for rows in by_seed.values()]
        for kind, by_seed in runs.items()
    }
    print(f"tokens until the success on training tasks is {goal:.3f}:")
    for kind, tokens in reached.items():
        print(f"  {kind}: {', '.join(f'{t:,.0f}' for t in tokens)}; median {statistics.median(tokens):,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--folder", type=Path, default=Path("task_sampling"), help="of the runs")
    args = parser.parse_args()
    report(args.folder, args.kinds, args.seeds)


if __name__ == "__main__":
    main()
