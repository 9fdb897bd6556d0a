"""Threads, learners, number format and micro-batches beside each other, on the quickstart's train steps.

    .venv/bin/python benchmarks/threads.py --steps 12 --rounds 2

Every round trains the same steps from the same seed with each setting, one after the other; the first two steps, in
which engines warm up, are left out. Prints the median seconds of a train step and the ratio to the first setting.
With `num_learners` the learners are actors, and share the two cores with each other.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

QUICKSTART = Path(__file__).parent.parent / "tuned_examples" / "quickstart.yaml"
WARM_UP = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "1 thread each": {"num_cpus_per_env_runner": 1, "num_cpus_for_main_process": 1},
    "2 threads each": {"num_cpus_per_env_runner": 2, "num_cpus_for_main_process": 2},
    "1 learner in an actor": {"num_learners": 1, "num_cpus_per_learner": 1},
    "2 learners": {"num_learners": 2, "num_cpus_per_learner": 1},
    "1 thread each, products in bfloat16": {"deepspeed": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}},
    "1 thread each, micro-batches of 1,024 tokens": {"tokens_per_micro_batch": 1024},
}


def train(setting: dict[str, Any], steps: int) -> dict[str, list[float]]:
    """Return the seconds of each part of the train steps."""
    import ray

    from rllm_gym.algorithms.registry import get_algorithm_class
    from rllm_gym.cli.train.source import read_yaml

    document, _ = read_yaml(QUICKSTART)
    [quickstart] = document.values()
    config = get_algorithm_class(quickstart["run"]).get_default_config().environment(quickstart["env"])
    config.update_from_dict(
        {**quickstart["config"], **setting, "evaluation_interval": None, "save_trajectories": False}
    )
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=400 * 2**20)
    algo = config.build_algo()
    seconds: dict[str, list[float]] = defaultdict(list)
    for step in range(steps):
        result = algo.train()
        for part in ("sampling_s", "learning_s", "sync_s") if step >= WARM_UP else ():
            seconds[part].append(float(result[part]))
    algo.stop()
    ray.shutdown()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="train steps of each run")
    parser.add_argument("--rounds", type=int, default=2, help="runs with each setting")
    args = parser.parse_args()
    from rllm_gym.cli.ray_session import prepare_driver

    prepare_driver(None)
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in SETTINGS}
    for _ in range(args.rounds):
        for name, setting in SETTINGS.items():
            for part, seconds in train(setting, args.steps).items():
                found[name][part] += seconds
    print("\n| setting | sampling_s | learning_s | sync_s | together | ratio |\n|---|---|---|---|---|---|")
    base = 0.0
    for name, parts in found.items():
        medians = [statistics.median(seconds) for seconds in parts.values()]
        base = base or sum(medians)
        print(f"| {name} | " + " | ".join(f"{m:.2f}" for m in [*medians, sum(medians), sum(medians) / base]) + " |")


if __name__ == "__main__":
    main()
