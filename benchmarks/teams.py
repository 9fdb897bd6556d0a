"""Teams of agents with the tiny model: do they learn to work together, and does a planner beside an actor pay?

    .venv/bin/python benchmarks/teams.py                     # every run that has no row yet, then the table
    .venv/bin/python benchmarks/teams.py --seeds 0 1 --only duo
    .venv/bin/python benchmarks/teams.py --report            # the table of the rows that are there

`duo`: TextCraftDuo, two crafters who must talk and hand items over. One policy plays both: SFT on the expert pair's
play of all training tasks, once, and from there GRPO with each seed on those that one command crafts (94, and 31 held
out), which the two must still talk about and hand items over for. `one_policy` and `planner_actor`: TextCraft as in
the quickstart, and with `roles: [planner, actor]`, where the same policy writes a plan before every action; both train
until they have sampled the same number of tokens. Before and after, a run is evaluated on the same panel of held-out
tasks, with the same seeds. Every run appends a row to `teams.jsonl` as it ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report import interval
from separate_runs import apart, ray_here, read_rows, run_apart, warm_up

ROWS = Path(__file__).parent / "teams.jsonl"
PANEL = {"train": 128, "eval": 155}  # episodes; every held-out task of TextCraftDuo five times
COMMON = {
    "engine_options": {"kv_cache_memory_bytes": 256 * 2**20},
    "max_model_len": 1024,
    "tokens_per_micro_batch": 4096,
    "num_envs_per_env_runner": 64,
    "save_trajectories": False,
}
RL = {"groups_per_step": 8, "group_size": 8, "clip_high": 0.28}
DUO: dict[str, Any] = {"env_config": {"system_prompt": ""}, "max_new_tokens": 64}
SFT = {"data": "expert", "num_expert_episodes": 369, "samples_per_step": 32, "lr": 3e-4, "num_evaluation_samples": 8}
CRAFT: dict[str, Any] = {"env_config": {"depth": 1, "system_prompt": ""}, "max_new_tokens": 48, "lr": 1e-4}
# name: (environment, settings, horizon, lets a run end after so many train steps, or so many sampled tokens)
RUNS: dict[str, tuple[str, dict[str, Any], int, float, float]] = {
    "duo": ("rllm_gym/TextCraftDuo-v0", DUO | {"lr": 3e-5, "kl_coeff": 0.05}, 8, 30, float("inf")),
    "one_policy": ("rllm_gym/TextCraft-v0", CRAFT, 6, float("inf"), 100_000),
    "planner_actor": (
        "rllm_gym/TextCraft-v0",
        CRAFT | {"env_config": CRAFT["env_config"] | {"roles": ["planner", "actor"]}},
        12,  # every second completion is an action
        float("inf"),
        100_000,
    ),
}


def warm_start(folder: Path, steps: int) -> None:
    """Write a model that has read the expert pair's talk to `folder/warm`."""
    from rllm_gym.algorithms.sft import SFTConfig

    config = SFTConfig().environment(RUNS["duo"][0])
    config.update_from_dict({**COMMON, **DUO, **SFT, "seed": 0, "base_model": "tiny", "max_episode_steps": 24})
    warm_up(config, steps, folder)


def of_one_command() -> dict[str, list[str]]:
    """Return the items of TextCraftDuo's splits that one command crafts."""
    import rllm_gym

    found: dict[str, list[str]] = {}
    for split in PANEL:
        env = rllm_gym.make_multi_agent(RUNS["duo"][0], split=split)
        categories = {item: env.reset(options={"item_id": item})[1]["player_0"]["category"] for item in env.item_ids}
        found[split] = [item for item, category in categories.items() if category == "crafts_1"]
    return found


def reinforce(name: str, seed: int, model: str, panel: Mapping[str, int] = PANEL) -> dict[str, Any]:
    from rllm_gym.algorithms.grpo import GRPOConfig

    env, settings, horizon, max_steps, max_tokens = RUNS[name]
    if name == "duo":
        settings = settings | {"env_config": settings["env_config"] | {"splits": of_one_command()}}
    config = GRPOConfig().environment(env)
    config.update_from_dict(
        {**COMMON, **RL, **settings, "seed": seed, "base_model": model, "max_episode_steps": horizon}
    )
    algo = config.build_algo()

    def evaluate() -> dict[str, float]:
        return {
            split: float(algo.evaluation.split(split, episodes, horizon=horizon, seed=10_000)[0]["success_rate"])
            for split, episodes in panel.items()
        }

    start = time.perf_counter()
    row: dict[str, Any] = {"run": name, "seed": seed, "before": evaluate(), "curve": []}
    num_tokens = 0.0
    while len(row["curve"]) < max_steps and num_tokens < max_tokens:
        sampled = algo.train()["env_runners"]
        num_tokens += float(sampled["num_sampled_tokens"])
        row["curve"].append([num_tokens, round(float(sampled["success_rate"]), 4)])
        print(name, seed, len(row["curve"]), row["curve"][-1], file=sys.stderr, flush=True)
    row |= {"after": evaluate(), "seconds": round(time.perf_counter() - start)}
    algo.stop()
    return row


def report(rows: list[dict[str, Any]]) -> None:
    """Print a line per run: success before and after, and the gain on held-out tasks with its interval."""
    print("\n| run | seeds | training tasks before | after | held-out before | after | gain | sampled tokens | steps |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in RUNS:
        mine = [row for row in rows if row["run"] == name]
        if not mine:
            continue
        cells = [name, str(len(mine))]
        cells += [interval([row[when][split] for row in mine]) for split in PANEL for when in ("before", "after")]
        cells += [interval([row["after"]["eval"] - row["before"]["eval"] for row in mine])]
        cells += [f"{statistics.mean(row['curve'][-1][0] for row in mine):,.0f}"]
        cells += [f"{statistics.mean(len(row['curve']) for row in mine):.0f}"]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--sft-steps", type=int, default=150, help="of duo's warm start")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--warm-start", type=Path, metavar="FOLDER", help="only write duo's warm start there")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        with ray_here():
            print(json.dumps([reinforce(asked.run[0], int(asked.run[1]), asked.run[2])]))
        return
    if asked.warm_start:
        with ray_here():
            warm_start(asked.warm_start, asked.sft_steps)
        return
    rows = read_rows(ROWS)
    done = {(row["run"], row["seed"]) for row in rows}
    missing = [
        (name, seed) for seed in asked.seeds for name in asked.only if not asked.report and (name, seed) not in done
    ]
    with tempfile.TemporaryDirectory() as folder:
        if any(name == "duo" for name, _ in missing):
            apart("--warm-start", folder, "--sft-steps", str(asked.sft_steps))
        for name, seed in missing:
            rows += run_apart(ROWS, "--run", name, str(seed), f"{folder}/warm" if name == "duo" else "tiny")
    report(rows)


if __name__ == "__main__":
    main()
