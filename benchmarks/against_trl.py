"""The same training side by side with TRL's GRPOTrainer: rollouts, updates, wall time to a success rate, and memory.

    make install .interop/trl/.installed                         # TRL gets a virtual environment of its own
    .venv/bin/python benchmarks/against_trl.py textcraft         # three seeds each
    .venv/bin/python benchmarks/against_trl.py single-turn
    .venv/bin/python benchmarks/against_trl.py smollm2 --model models/smollm2-135m-sft
    .venv/bin/python benchmarks/against_trl.py learner           # SmolLM2's shape, 512 to 4,096 tokens

`textcraft`: the quickstart's tasks, groups, learning rate and clipping, at one horizon; TRL plays them through its
`rollout_func` with its own generation by transformers, turn by turn. The clock runs from the start of the process,
imports included, until the mean success of five train steps has reached --target. Ours leaves out groups that end
alike, as its default is; TRL trains on them, too.
`single-turn` is the first turn of the same episodes, for a fixed number of train steps, with every group trained on.
`smollm2`: four train steps of SmolLM2-135M on TextCraft's tasks of depth 1 and 2 with the environment's own system
prompt: 4 groups of 8 episodes, all trained on; products are in bfloat16 on both sides where a trial of both says that
the processor is faster then, else in float32. What is compared is the wall time of a train step, without the first.
`learner`: a group of sequences of random tokens, 4,096 to an update: its prompt, and as many sampled tokens again; the
first update is not timed. TRL's micro-batches are of 1,024 tokens, or of one sequence, which is its faster way; ours of
4,096 tokens, in which the group's prompt is read once, with `gradient_checkpointing: selective`.

Each run is a process of its own, in turns; both sides compute in float32, or learners in bfloat16 on float32 weights
(`--bf16`: PyTorch's autocast on both sides). Memory is the peak of what the process and its children hold together,
shared pages once (of a learner: what its process holds beyond what it held when it was built); processor time is
theirs, too. TRL runs without gradient checkpointing, which is its faster way; `--gradient-checkpointing` sets its
default again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from report import mean_and_spread
from separate_runs import is_bfloat16_faster, ray_here

HERE = Path(__file__).parent
TRL = HERE.parent / ".interop" / "trl" / "bin" / "python"
TARGET_OVER = 5  # train steps
GROUP, LR = 8, 1e-4  # as trl_side.py has them
NEVER = 2.0  # a success that is not reached: for a fixed number of train steps
# The sampler and the learner take turns with both cores, as TRL's one process does; half of the memory.
BOTH_CORES = {"num_cpus_for_main_process": 2, "num_cpus_per_env_runner": 0, "gradient_checkpointing": "selective"}
# Of each part: environment, horizon, episodes and their longest context, our cache and other options, train steps
# (None: --steps).
PARTS: dict[str, dict[str, Any]] = {
    "textcraft": {"env_config": {"depth": 1, "system_prompt": ""}, "horizon": 6, "batch": 64, "max_model_len": 1024}
    | {"cache_mib": 128},
    "single-turn": {"env_config": {"depth": 1, "system_prompt": ""}, "horizon": 1, "batch": 64, "max_model_len": 1024}
    | {"cache_mib": 128, "steps": 12, "target": NEVER},
    "smollm2": {"env_config": {"depth": [1, 2]}, "horizon": 6, "batch": 32, "max_model_len": 2048}
    | {"cache_mib": 1024, "steps": 4, "target": NEVER, "ours": BOTH_CORES},
}
TOKENS_PER_UPDATE = 4096
TOKENS_PER_MICRO_BATCH = 1024  # of TRL's learner, at least one sequence


# --- our half, in a process of its own ---


def train(asked: argparse.Namespace) -> None:
    """Print a row per train step until the success is reached."""
    from rllm_gym.algorithms.grpo import GRPOConfig

    config = GRPOConfig().environment("rllm_gym/TextCraft-v0", env_config=asked.env_config)
    steps, target = asked.steps, asked.target
    config.update_from_dict(
        {"base_model": asked.model, "seed": asked.seed}
        | {"engine_options": {"kv_cache_memory_bytes": asked.cache_mib * 2**20}}
        | {"groups_per_step": asked.batch // GROUP, "group_size": GROUP}
        | {"num_envs_per_env_runner": asked.batch, "num_env_workers": 0, "max_empty_steps": steps}
        | {"max_model_len": asked.max_model_len, "max_new_tokens": 48, "max_episode_steps": asked.horizon}
        | {"tokens_per_micro_batch": 4096, "lr": LR, "clip_low": 0.2, "clip_high": 0.28, "save_trajectories": False}
        | ({"filter_groups": "off"} if target > 1.0 else {})
        | ({"deepspeed": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}} if asked.bf16 else {})
        | asked.ours
    )
    with ray_here():
        algo = config.build_algo()
        successes: list[float] = []
        while len(successes) < steps and np.mean(successes[-TARGET_OVER:] or [0.0]) < target:
            result = algo.train()
            sampled = result["env_runners"]
            successes.append(sampled["success_rate"])
            row = {
                "success_rate": successes[-1],
                "sampling_s": result["sampling_s"],
                "update_s": result["learning_s"] + result["sync_s"],
                "num_sampled_tokens": sampled["num_sampled_tokens"],
            }
            print(json.dumps(row), flush=True)
        algo.stop()


def update(model: str, num_tokens: int, steps: int, is_bf16: bool) -> None:
    """Print a row per update of the learner."""
    from trainer_vs_plain import Played, Setting, build_learner, reset_peak_memory, resident_memory_mb
    from transformers import AutoConfig

    rng, vocabulary = np.random.default_rng(0), AutoConfig.from_pretrained(model).vocab_size
    prompt, *sampled = rng.integers(0, vocabulary, (1 + TOKENS_PER_UPDATE // num_tokens, num_tokens // 2))
    logp = np.full(num_tokens // 2, -np.log(vocabulary), np.float32)
    episodes = [Played([prompt], [tokens], [logp], float(rng.normal())) for tokens in sampled]
    setting = Setting(
        model, 1e-4, TOKENS_PER_UPDATE, 0, steps, True, gradient_checkpointing="selective", is_bf16=is_bf16
    )
    learn = build_learner(setting, episodes)
    resident_mb = resident_memory_mb("VmRSS")
    reset_peak_memory()
    for _ in range(steps):
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        learn()
        row = {"update_s": time.perf_counter() - begun_s, "update_cpu_s": time.process_time() - begun_cpu_s}
        row |= {"num_trained_tokens": TOKENS_PER_UPDATE, "extra_mb": resident_memory_mb("VmHWM") - resident_mb}
        print(json.dumps(row), flush=True)


# --- both ---


class Footprint(threading.Thread):
    """Watches a process and its children: the peak of their memory, and their processor time."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.process, self.peak_mb = process, 0.0
        self.cpu_by_pid: dict[int, float] = {}
        self.start()

    def run(self) -> None:
        while self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
            together = 0.0
            for process in [self.process, *self.process.children(recursive=True)]:
                try:
                    together += process.memory_full_info().pss / 2**20
                    self.cpu_by_pid[process.pid] = sum(process.cpu_times()[:2])
                except psutil.Error:
                    continue  # has just ended
            self.peak_mb = max(self.peak_mb, together)
            time.sleep(0.5)


def run(*command: object) -> dict[str, Any]:
    """Run a half, and return its rows, the seconds until each of them, and what it took."""
    begun = time.perf_counter()
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        footprint = Footprint(psutil.Process(process.pid))
        assert process.stdout is not None
        rows = []
        for line in process.stdout:
            if line.startswith('{"'):
                rows.append(json.loads(line) | {"at_s": time.perf_counter() - begun})
                print(f"{Path(str(command[1])).stem}: {json.dumps(rows[-1])}", file=sys.stderr, flush=True)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: failed. Its error is above.")
    footprint.join()
    return {"rows": rows, "peak_mb": footprint.peak_mb, "cpu_s": sum(footprint.cpu_by_pid.values())}


def row_of(half: str, runs: list[dict[str, Any]]) -> dict[str, float]:
    """Print a line of the table, and return the medians of what it compares."""
    steps = [row for run in runs for row in run["rows"][1:]]
    sampled = sum(row["num_sampled_tokens"] for row in steps)
    found = {
        "wall s": [run["rows"][-1]["at_s"] for run in runs],
        "of a train step": [
            statistics.mean(row["sampling_s"] + row["update_s"] for row in run["rows"][1:]) for run in runs
        ],
        "train steps": [len(run["rows"]) for run in runs],
        "processor s": [run["cpu_s"] for run in runs],
        "MiB": [run["peak_mb"] for run in runs],
    }
    rates = [sampled / sum(row[name] for row in steps) for name in ("sampling_s", "update_s")]
    cells = [mean_and_spread(values, 0) for values in found.values()] + [f"{rate:,.0f}" for rate in rates]
    print(f"| {half} | " + " | ".join(cells) + " |", flush=True)
    return {name: statistics.median(values) for name, values in found.items()}


def compare_training(asked: argparse.Namespace, folder: str) -> None:
    part = {"steps": asked.steps, "target": asked.target} | PARTS[asked.part]
    part["bf16"] = asked.part == "smollm2" and is_bfloat16_faster()
    runs: dict[str, list[dict[str, Any]]] = {"rllm_gym": [], "TRL": []}
    for seed in asked.seeds:
        common = ["--seed", seed, "--steps", part["steps"], "--horizon", part["horizon"], "--target", part["target"]]
        common += ["--env-config", json.dumps(part["env_config"]), "--batch", part["batch"], *["--bf16"] * part["bf16"]]
        of_ours = ["--model", asked.model, "--max-model-len", part["max_model_len"], "--cache-mib", part["cache_mib"]]
        of_ours += ["--ours", json.dumps(part.get("ours", {}))]
        runs["rllm_gym"].append(run(sys.executable, __file__, "--half", "train", *of_ours, *common))
        theirs = (asked.model, folder, "--micro-batch", asked.micro_batch, *asked.extra)
        runs["TRL"].append(run(TRL, HERE / "trl_side.py", *theirs, *common))
    print(f"{asked.part}: {json.dumps(part)}; TRL: micro-batches of {asked.micro_batch} {' '.join(asked.extra)}")
    print(
        "| | wall s | of a train step | train steps | processor s | MiB | sampled tokens/s of sampling | of updates |"
    )
    print("|---|---|---|---|---|---|---|---|")
    ours, theirs = (row_of(half, of) for half, of in runs.items())
    print(f"| ratio of medians | {' | '.join(f'{ours[name] / theirs[name]:.2f}' for name in ours)} | | |")


def compare_learners(asked: argparse.Namespace, folder: str) -> None:
    from weight_sync import make_smollm2

    model = make_smollm2(f"{folder}/model", "float32")
    print("| tokens | trained tokens/CPU s: rllm_gym | TRL | ratio | extra MiB: rllm_gym | TRL | ratio |")
    print("|---|---|---|---|---|---|---|")
    for num_tokens in asked.lengths:
        sequences = TOKENS_PER_UPDATE // num_tokens
        batch = max(2, sequences)  # TRL wants groups
        common = ("--num-tokens", num_tokens, "--steps", asked.updates, *["--bf16"] * asked.bf16)
        micro_batch = max(1, TOKENS_PER_MICRO_BATCH // num_tokens)
        trl = ("--batch", batch, "--micro-batch", micro_batch, "--group", 2, *asked.extra)
        halves = [
            run(sys.executable, __file__, "--half", "update", "--model", model, *common),
            run(TRL, HERE / "trl_side.py", model, f"{folder}/trl", *trl, *common),
        ]
        rates = [
            statistics.median(row["num_trained_tokens"] / row["update_cpu_s"] for row in half["rows"][1:])
            for half in halves
        ]
        peaks = [half["rows"][-1]["extra_mb"] for half in halves]
        print(
            f"| {num_tokens:,} | {rates[0]:.1f} | {rates[1]:.1f} | {rates[0] / rates[1]:.2f} | "
            f"{peaks[0]:,.0f} | {peaks[1]:,.0f} | {peaks[0] / peaks[1]:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "learner"), default="textcraft")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.65, help="success rate of training episodes")
    parser.add_argument("--steps", type=int, default=85, help="train steps at most")
    parser.add_argument("--micro-batch", type=int, default=16, help="TRL's sequences at a time")
    parser.add_argument("--updates", type=int, default=3, help="of a learner; the first is not timed")
    parser.add_argument(
        "--gradient-checkpointing", dest="extra", action="store_const", default=[], const=["--gradient-checkpointing"]
    )
    parser.add_argument("--bf16", action="store_true", help="a learner's products in bfloat16, on both sides")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 4096], help="tokens, for a learner")
    parser.add_argument("--model", help="a model's folder, for smollm2")
    parser.add_argument("--half", help=argparse.SUPPRESS)
    for hidden in ("--env-config", "--ours"):
        parser.add_argument(hidden, type=json.loads, help=argparse.SUPPRESS)
    for hidden in ("--seed", "--horizon", "--num-tokens", "--batch", "--max-model-len", "--cache-mib"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.half == "train":
        return train(asked)
    if asked.half == "update":
        return update(asked.model, asked.num_tokens, asked.steps, asked.bf16)
    if not TRL.exists():
        parser.error("TRL is not installed. Run `make .interop/trl/.installed`.")
    from rllm_gym.models import TINY_MODEL_DIR

    if asked.part == "smollm2" and not asked.model:
        parser.error("--model must be a folder of SmolLM2. `make smollm2` makes one.")
    asked.model = asked.model or str(TINY_MODEL_DIR)
    with tempfile.TemporaryDirectory() as folder:
        if asked.part == "learner":
            compare_learners(asked, folder)
        else:
            compare_training(asked, folder)


if __name__ == "__main__":
    main()
