"""Kuhn poker by self-play with a small model: distance from optimal play (NashConv) before, during and after training.

    .venv/bin/python benchmarks/kuhn.py                        # every run that has no row yet, the table and the plot
    .venv/bin/python benchmarks/kuhn.py --seeds 0 1 --only role
    .venv/bin/python benchmarks/kuhn.py --report               # the table and the plot of the rows that are there

A short SFT on the legal play of a random policy comes first, so that the policy knows the moves and nothing of the
game. Then one policy plays both seats. NashConv is exact (`rllm_gym.evaluation.nash_conv`), summed over every way to
say a move; that of uniform play is 0.917. Every run appends a row to `kuhn.jsonl` as it ends.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from report import interval
from separate_runs import ray_here, read_rows, run_apart, warm_up

FOLDER = Path(__file__).parent
ROWS, PLOT = FOLDER / "kuhn.jsonl", FOLDER.parent / "docs" / "images" / "kuhn.png"
GOAL = 0.458  # half of what uniform play has
GAME, ENV = "rllm_gym/KuhnPoker-v0", {"system_prompt": ""}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
# Equal games per train step; what a return is compared with differs.
METHODS: dict[str, dict[str, Any]] = {"role": {"advantage": "role"}, "agent": {"advantage": "agent"}}
COMMON = {
    "max_model_len": 160,
    "max_new_tokens": 6,
    "num_envs_per_env_runner": 192,
    "engine_options": {"kv_cache_memory_bytes": 64 * 2**20},
    "save_trajectories": False,
}
SFT = {"env_config": ENV, "lr": 2e-3, "samples_per_step": 64, "num_evaluation_samples": 8}
# Self-play goes in circles around optimal play: the KL to the policy it began with draws them together, and so does a
# learning rate that falls to 0. Divided by their standard deviation the chips of each deal would be those of another
# game. Without the penalty a move that is none costs as much as a pass after a bet, so that nothing holds it down.
RL = {
    "groups_per_step": 12,
    "group_size": 12,
    "lr": 1e-3,
    "kl_coeff": 0.2,
    "normalize_std": False,
    "invalid_action_penalty": 1.0,
}
NUM_LEGAL_GAMES = 2000


def small_model(folder: str, seed: int) -> None:
    """Write a model of 0.2 million random weights, with the tiny model's tokenizer and architecture."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from rllm_gym.models import resolve_base_model

    tiny = str(resolve_base_model("tiny"))
    kinds = {"num_key_value_heads": 2, "layer_types": ["full_attention"] * 2, "initializer_range": 0.1}
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny, **SIZES, **kinds)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)


def legal_play(file: Path, num_games: int, seed: int) -> None:
    """Write what both players of legal games have read and said, as chat messages.

    They play a random policy: in each information state they bet with a chance that was drawn once. So there is nothing
    to learn about good play, but one must read card and bets to say what comes next.
    """
    import rllm_gym

    env, rng = rllm_gym.make_multi_agent(GAME, **ENV), random.Random(seed)
    chances: dict[str, float] = defaultdict(lambda: rng.uniform(0.25, 0.75))
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


def run_seed(seed: int, methods: list[str], sft_steps: int, steps: int, every: int) -> list[dict[str, Any]]:
    """Warm-start once, let each method go on from there, and return a row for each."""
    with ray_here(), tempfile.TemporaryDirectory() as folder:
        warm_start(folder, seed, sft_steps)
        return [self_play(name, seed, f"{folder}/warm", steps, every) for name in methods]


def warm_start(folder: str, seed: int, steps: int) -> None:
    """Write a model that plays legal moves to `folder/warm`."""
    from rllm_gym.algorithms.sft import SFTConfig

    small_model(f"{folder}/small", seed)
    legal_play(Path(folder) / "legal.json", NUM_LEGAL_GAMES, seed)
    config = SFTConfig().update_from_dict({**COMMON, **SFT, "seed": seed, "data": f"{folder}/legal.json"})
    warm_up(config.rl_module(base_model=f"{folder}/small"), steps, Path(folder))


def self_play(name: str, seed: int, model: str, steps: int, every: int) -> dict[str, Any]:
    """Train one policy that plays both seats; return NashConv and the chance of no move, by train step."""
    from rllm_gym.algorithms.grpo import GRPOConfig

    start = time.perf_counter()
    config = GRPOConfig().environment(GAME, env_config=ENV)
    falling = {"total_num_steps": steps, "warmup_num_steps": 2, "warmup_max_lr": RL["lr"]}
    config.update_from_dict({**COMMON, **RL, **METHODS[name], "seed": seed, "base_model": model})
    config.training(deepspeed={"scheduler": {"type": "WarmupDecayLR", "params": falling}})
    algo = config.evaluation(evaluation_interval=every, evaluation_duration=6).build_algo()
    row: dict[str, Any] = {"method": name, "seed": seed, "curve": []}
    for step in range(1, steps + 1):
        result = algo.train()
        if "evaluation" in result:
            row["curve"] = row["curve"] or [[0, *distance(result["evaluation_on_start"])]]
            row["curve"].append([step, *distance(result["evaluation"])])
            print(name, seed, row["curve"][-1], file=sys.stderr, flush=True)
    algo.stop()
    games = RL["groups_per_step"] * RL["group_size"] * steps
    return row | {"games": games, "seconds": round(time.perf_counter() - start)}


def distance(evaluation: dict[str, Any]) -> list[float]:
    return [round(float(evaluation[key]), 4) for key in ("nash_conv", "illegal_probability")]


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
    draw(rows)


def draw(rows: list[dict[str, Any]]) -> None:
    """Write `PLOT`: NashConv by the number of games, every seed a thin line, their mean a thick one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for color, name in zip(("C0", "C1"), METHODS, strict=True):
        curves = [row["curve"] for row in rows if row["method"] == name]
        if not curves:
            continue
        games = [step * RL["groups_per_step"] * RL["group_size"] for step, _, _ in curves[0]]
        lines = [[value for _, value, _ in curve] for curve in curves]
        for line in lines:
            axis.plot(games, line, color=color, alpha=0.25)
        mean = [statistics.mean(values) for values in zip(*lines, strict=True)]
        axis.plot(games, mean, color=color, linewidth=2, label=f"advantage: {name}, {len(lines)} seeds")
    axis.axhline(GOAL, linestyle=":", color="gray", label="half of uniform play")
    axis.set_xlabel("games of self-play")
    axis.set_ylabel("NashConv, exact")
    axis.set_ylim(bottom=0)
    axis.legend()
    figure.savefig(PLOT, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--sft-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=80, help="of self-play")
    parser.add_argument("--every", type=int, default=20, help="steps between two measurements")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        methods, seed, *lengths = asked.run
        print(json.dumps(run_seed(int(seed), methods.split(","), *map(int, lengths))))
        return
    rows = read_rows(ROWS)
    for seed in () if asked.report else asked.seeds:
        there = {row["method"] for row in rows if row["seed"] == seed}
        if missing := [name for name in asked.only if name not in there]:
            lengths = asked.sft_steps, asked.steps, asked.every
            rows += run_apart(ROWS, "--run", ",".join(missing), str(seed), *map(str, lengths))
    report(rows)


if __name__ == "__main__":
    main()
