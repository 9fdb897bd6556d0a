"""Methods and horizon schedules on TextCraft with the tiny model: equal environment steps, one evaluation, five seeds.

    .venv/bin/python benchmarks/methods.py                  # every run that has no row yet, then the table and the plot
    .venv/bin/python benchmarks/methods.py --seeds 0 1 --only grpo_stepwise ppo_stepwise
    .venv/bin/python benchmarks/methods.py --parallel 8     # so many runs at a time; each wants a core and 3 GB
    .venv/bin/python benchmarks/methods.py --report         # the table and the plot of the rows that are there

All runs have the quickstart's model, tasks and sampling, and end with the train step that reaches `--env-steps`. Before
and after they are evaluated on the same 128 episodes each of training and of held-out tasks, at the longest horizon.
Every run appends a row to `methods.jsonl` as it ends; one that is interrupted is run again from its start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from report import interval

FOLDER = Path(__file__).parent
QUICKSTART = FOLDER.parent / "tuned_examples" / "quickstart.yaml"
ROWS = FOLDER / "methods.jsonl"
SHORT, LONG = 2, 6
STEPWISE = {"type": "stepwise", "horizons": [SHORT, LONG], "steps_per_stage": 20}
SCHEDULES = {
    "short": {"type": "fixed", "horizons": [SHORT]},
    "long": {"type": "fixed", "horizons": [LONG]},
    "stepwise": STEPWISE,
    "adaptive": {"type": "adaptive", "horizons": [SHORT, LONG], "min_steps_per_stage": 10},
}
# name: (algorithm, schedule, further options)
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "grpo_short": ("GRPO", "short", {}),
    "grpo_long": ("GRPO", "long", {}),
    "grpo_stepwise": ("GRPO", "stepwise", {}),
    "grpo_adaptive": ("GRPO", "adaptive", {}),
    # The preset's clip range, which the quickstart's would replace.
    "gspo_stepwise": ("GRPO", "stepwise", {"preset": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}),
    "ppo_stepwise": ("PPO", "stepwise", {"critic_lr": 1e-3}),
    "rloo_stepwise": ("RLOO", "stepwise", {}),
    "reinforce_pp_stepwise": ("ReinforcePP", "stepwise", {}),
}
# Each is one change to `ppo_stepwise`, made to see what holds PPO back; only run by name, and in a table of their own.
PPO_CHANGES: dict[str, dict[str, Any]] = {
    "ppo_bootstrap_truncated": {"bootstrap": "truncated"},
    "ppo_critic_epochs_4": {"critic_epochs": 4},
    "ppo_critic_lr_1e-4": {"critic_lr": 1e-4},
    "ppo_critic_warmup_5": {"critic_warmup_steps": 5},
    "ppo_lambda_0.95": {"lambda_": 0.95},
    "ppo_critic_shared": {"critic": "shared"},
}
RUNS = METHODS | {
    name: ("PPO", "stepwise", METHODS["ppo_stepwise"][2] | change) for name, change in PPO_CHANGES.items()
}
LEARNER_METRICS = ("entropy", "kl", "clip_fraction", "explained_variance")


def run_one(name: str, seed: int, env_steps: int, episodes: int) -> dict[str, Any]:
    """Train once and return the row."""
    from rllm_gym.algorithms.registry import get_algorithm_class
    from rllm_gym.cli.ray_session import prepare_driver
    from rllm_gym.cli.train.source import read_yaml

    prepare_driver(None)
    import ray

    algorithm, schedule, options = RUNS[name]
    document, _ = read_yaml(QUICKSTART)
    [quickstart] = document.values()
    settings = quickstart["config"] | options
    # Options of the quickstart's method that this one does not have are left out.
    config = get_algorithm_class(algorithm).get_default_config().environment(quickstart["env"])
    settings = {key: value for key, value in settings.items() if hasattr(config, key)}
    settings |= {
        "seed": seed,
        "scaling_inter": SCHEDULES[schedule],
        "evaluation_interval": None,
        "save_trajectories": False,
    }
    config.update_from_dict(settings)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=400 * 2**20)
    algo = config.build_algo()

    def evaluate() -> dict[str, float]:
        return {
            split: algo.evaluation.split(split, episodes, horizon=LONG, seed=10_000)[0]["success_rate"]
            for split in ("train", "eval")
        }

    start = time.perf_counter()
    row: dict[str, Any] = {"method": name, "seed": seed, "before": evaluate(), "curve": [], "learner": []}
    num_env_steps = 0
    while num_env_steps < env_steps:
        result = algo.train()
        num_env_steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
        row["curve"].append([num_env_steps, result["env_runners"]["success_rate"], result["max_episode_steps"]])
        learner = result["learners"]["default_policy"]
        row["learner"].append({key: round(float(learner[key]), 4) for key in LEARNER_METRICS if key in learner})
    row |= {"after": evaluate(), "env_steps": num_env_steps, "train_steps": len(row["curve"])}
    row |= {"episodes": episodes, "seconds": round(time.perf_counter() - start)}
    algo.stop()
    ray.shutdown()
    return row


def run_apart(name: str, seed: int, env_steps: int, episodes: int) -> dict[str, Any]:
    """Train once in a process of its own, and append the row."""
    command = [sys.executable, __file__, "--run", name, str(seed)]
    command += ["--env-steps", str(env_steps), "--episodes", str(episodes)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        print(finished.stderr[-3000:])
        raise SystemExit(f"{name}, seed {seed}: failed. Its error is above; the rows so far are in {ROWS}.")
    row = json.loads(finished.stdout.splitlines()[-1]) | {"target_env_steps": env_steps}
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def read_rows(env_steps: int) -> list[dict[str, Any]]:
    """Return the rows of runs of this length."""
    if not ROWS.exists():
        return []
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    return [row for row in rows if row["target_env_steps"] == env_steps]


def report(rows: list[dict[str, Any]]) -> None:
    """Print the tables of the methods and of the changes to PPO, and draw the plot of the methods."""
    print_table(rows, METHODS)
    print_table(rows, ["ppo_stepwise", *PPO_CHANGES])
    draw(rows)


def print_table(rows: list[dict[str, Any]], names: Iterable[str]) -> None:
    """Print a line per method. The explained variance is the mean over train steps, of methods with a critic."""
    print("\n| method | seeds | training tasks before | after | held-out before | after | explained variance | steps |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        mine = [row for row in rows if row["method"] == name]
        if not mine:
            continue
        cells = [name, str(len(mine))]
        cells += [
            interval([row[when][split] for row in mine]) for split in ("train", "eval") for when in ("before", "after")
        ]
        explained = [[step.get("explained_variance") for step in row["learner"]] for row in mine]
        cells += ["" if None in explained[0] else interval([statistics.mean(steps) for steps in explained])]
        cells += [f"{statistics.mean(row['train_steps'] for row in mine):.0f}"]
        print("| " + " | ".join(cells) + " |")


def draw(rows: list[dict[str, Any]]) -> None:
    """Write `methods.png`: evaluated success after training, every seed a dot."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for axis, (split, title) in zip(axes, (("train", "training tasks"), ("eval", "held-out tasks")), strict=True):
        for k, name in enumerate(names):
            values = [row["after"][split] for row in rows if row["method"] == name]
            axis.plot([k] * len(values), values, "o", alpha=0.5)
            axis.plot(k, statistics.mean(values), "_", color="black", markersize=24)
        before = statistics.mean(row["before"][split] for row in rows)
        axis.axhline(before, linestyle=":", color="gray", label="before training")
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_title(f"{title}, horizon {LONG}")
        axis.legend()
    axes[0].set_ylabel("success rate")
    figure.savefig(FOLDER / "methods.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(METHODS))
    parser.add_argument("--env-steps", type=int, default=6_000, help="turns to train on")
    parser.add_argument("--episodes", type=int, default=128, help="of each evaluation")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only show what is there")
    parser.add_argument(
        "--run", nargs=2, metavar=("METHOD", "SEED"), help=argparse.SUPPRESS
    )  # one run, in this process
    args = parser.parse_args()
    if args.run:
        print("\n" + json.dumps(run_one(args.run[0], int(args.run[1]), args.env_steps, args.episodes)))
        return
    done = {(row["method"], row["seed"]) for row in read_rows(args.env_steps)}
    # Seed by seed, so that what is there after an interruption compares all methods.
    todo = [] if args.report else [(m, s) for s in args.seeds for m in args.only if (m, s) not in done]
    if todo:
        print(f"{len(todo)} runs to make", flush=True)
    with ThreadPoolExecutor(args.parallel) as pool:
        for k, row in enumerate(pool.map(lambda run: run_apart(*run, args.env_steps, args.episodes), todo), start=1):
            before, after = row["before"]["train"], row["after"]["train"]
            print(f"{k}/{len(todo)}  {row['method']}  seed {row['seed']}: {before:.3f} -> {after:.3f}", flush=True)
    report(read_rows(args.env_steps))


if __name__ == "__main__":
    main()
