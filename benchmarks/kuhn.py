"""Kuhn poker by self-play with the tiny model: distance from optimal play (NashConv) before, during and after training.

    .venv/bin/python benchmarks/kuhn.py                        # every run that has no row yet, then the table
    .venv/bin/python benchmarks/kuhn.py --seeds 0 1 --only role
    .venv/bin/python benchmarks/kuhn.py --report               # the table of the rows that are there

A short SFT on the legal play of a random policy comes first, so that the policy knows the moves and nothing of the
game. Then one policy plays both seats. NashConv is exact (`rllm_gym.evaluation.nash_conv`), summed over every way to
say a move; that of uniform play is 0.917. Every run appends a row to `kuhn.jsonl` as it ends.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROWS = Path(__file__).parent / "kuhn.jsonl"
GAME, ENV = "rllm_gym/KuhnPoker-v0", {"system_prompt": ""}
UNIFORM, TARGET = 0.916667, 0.458
# Equal games per train step; what a return is compared with differs.
METHODS: dict[str, dict[str, Any]] = {
    "role": {"advantage": "role", "loss_average": "tokens"},
    "agent": {"advantage": "agent"},
}
COMMON = {
    "base_model": "tiny",
    "env_config": ENV,
    "max_model_len": 160,
    "max_new_tokens": 6,
    "num_envs_per_env_runner": 192,
    "engine_options": {"kv_cache_memory_bytes": 64 * 2**20},
    "save_trajectories": False,
}
SFT = {"lr": 5e-4, "samples_per_step": 32, "num_evaluation_samples": 8}
RL = {"groups_per_step": 12, "group_size": 16, "lr": 1e-4, "entropy_coeff": 0.02, "max_episode_steps": None}


def legal_play(file: Path, num_games: int, seed: int) -> None:
    """Write what both players of legal games have read and said, as chat messages.

    They play a random policy: in each information state they bet with a chance that was drawn once. So there is nothing
    to learn about good play, but one must read card and bets to say what comes next.
    """
    import rllm_gym

    env, rng = rllm_gym.make_multi_agent(GAME, **ENV), random.Random(seed)
    chances: dict[str, float] = defaultdict(lambda: rng.uniform(0.1, 0.9))
    with file.open("w", encoding="utf-8") as out:
        for number in range(num_games):
            talk: dict[str, list[dict[str, str]]] = {agent: [] for agent in env.possible_agents}
            texts, infos = env.reset(seed=number)
            while True:
                [player] = [agent for agent in texts if "legal_actions" in infos[agent]] or [None]
                if player is None:
                    break
                move = "bet" if rng.random() < chances[infos[player]["information_state"]] else "pass"
                talk[player] += [{"role": "user", "content": texts[player]}, {"role": "assistant", "content": move}]
                texts, _, _, _, infos = env.step({player: move})
            for messages in filter(None, talk.values()):
                out.write(json.dumps({"messages": messages}) + "\n")


def run_one(name: str, seed: int, sft_steps: int, steps: int, every: int) -> dict[str, Any]:
    """Warm-start and train once, and return the row."""
    from rllm_gym.algorithms.registry import get_algorithm_class
    from rllm_gym.cli.ray_session import prepare_driver
    from rllm_gym.evaluation.export import export_policy

    prepare_driver(None)
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=300 * 2**20)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        legal_play(Path(folder) / "legal.json", 600, seed)
        warm = get_algorithm_class("SFT").get_default_config()
        warm.update_from_dict({**COMMON, **SFT, "seed": seed, "data": f"{folder}/legal.json"})
        algo = warm.build_algo()
        for _ in range(sft_steps):
            algo.train()
        export_policy(Path(algo.save_to_path(f"{folder}/checkpoint")), Path(folder) / "model")
        algo.stop()
        config = get_algorithm_class("GRPO").get_default_config().environment(GAME)
        config.update_from_dict({**COMMON, **RL, **METHODS[name], "seed": seed, "base_model": f"{folder}/model"})
        config.update_from_dict({"evaluation_interval": every, "evaluation_duration": 6})
        algo = config.build_algo()
        row: dict[str, Any] = {"method": name, "seed": seed, "curve": [], "learner": []}
        for step in range(1, steps + 1):
            result = algo.train()
            if "evaluation" in result:
                row["curve"] = row["curve"] or [[0, *distance(result["evaluation_on_start"])]]
                row["curve"].append([step, *distance(result["evaluation"])])
            learner = result["learners"]["default_policy"]
            row["learner"].append([round(float(learner[key]), 4) for key in ("entropy", "kl", "gradient_norm")])
        row |= {"games": 192 * steps, "seconds": round(time.perf_counter() - start)}
        algo.stop()
    ray.shutdown()
    return row


def distance(evaluation: dict[str, Any]) -> list[float]:
    return [round(float(evaluation[key]), 4) for key in ("nash_conv", "illegal_probability")]


def run_apart(name: str, seed: int, *lengths: int) -> dict[str, Any]:
    """Train once in a process of its own, and append the row."""
    command = [sys.executable, __file__, "--run", name, str(seed), *map(str, lengths)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        print(finished.stderr[-3000:])
        raise SystemExit(f"{name}, seed {seed}: failed. Its error is above; the rows so far are in {ROWS}.")
    row = json.loads(finished.stdout.splitlines()[-1])
    with ROWS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return row


def interval(values: list[float]) -> str:
    """Return the mean and the 95 % interval of Student's t."""
    from scipy.stats import t

    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} +- {half:.3f}"


def report(rows: list[dict[str, Any]]) -> None:
    """Print a line per method: NashConv before, after, and the lowest on the way; and every seed's."""
    print("\n| `advantage` | seeds | before | after | every seed | `illegal_probability` after | games | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name in METHODS:
        mine = sorted((row for row in rows if row["method"] == name), key=lambda row: row["seed"])
        if not mine:
            continue
        before, after = [[row["curve"][k][1] for row in mine] for k in (0, -1)]
        illegal = [row["curve"][-1][2] for row in mine]
        cells = [name, str(len(mine)), interval(before), interval(after), ", ".join(f"{value:.3f}" for value in after)]
        cells += [
            f"{max(illegal):.4f} at most",
            str(mine[0]["games"]),
            f"{statistics.mean(r['seconds'] for r in mine):.0f}",
        ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--sft-steps", type=int, default=60)
    parser.add_argument("--steps", type=int, default=60, help="of self-play")
    parser.add_argument("--every", type=int, default=10, help="steps between two measurements")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        name, *numbers = asked.run
        print(json.dumps(run_one(name, *map(int, numbers))))
        return
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()] if ROWS.exists() else []
    for name in () if asked.report else asked.only:
        for seed in asked.seeds:
            if not any((row["method"], row["seed"]) == (name, seed) for row in rows):
                rows.append(run_apart(name, seed, asked.sft_steps, asked.steps, asked.every))
                print(json.dumps(rows[-1]), flush=True)
    report(rows)


if __name__ == "__main__":
    main()
