"""One thread against two for the sampler and the learner, on the quickstart's train steps.

    .venv/bin/python benchmarks/threads.py --steps 12 --rounds 2

Every round trains the same steps from the same seed with each number of threads, one after the other; the first two
steps, in which engines warm up, are left out. Prints the median seconds of a train step and the ratio to one thread.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

QUICKSTART = Path(__file__).parent.parent / "tuned_examples" / "quickstart.yaml"
WARM_UP = 2
THREADS = (1, 2)


def train(threads: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds of each part of the train steps."""
    import ray

    from rllm_gym.algorithms.registry import get_algorithm_class
    from rllm_gym.cli.source import read_yaml

    document, _ = read_yaml(QUICKSTART)
    [quickstart] = document.values()
    config = get_algorithm_class(quickstart["run"]).get_default_config().environment(quickstart["env"])
    config.update_from_dict(quickstart["config"])
    config.update_from_dict({"num_cpus_per_env_runner": threads, "num_cpus_for_main_process": threads})
    config.update_from_dict({"evaluation_interval": None, "save_trajectories": False})
    ray.init(num_cpus=2 * threads, include_dashboard=False, log_to_driver=False, object_store_memory=400 * 2**20)
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
    parser.add_argument("--rounds", type=int, default=2, help="runs with each number of threads")
    args = parser.parse_args()
    from rllm_gym.cli.ray_session import prepare_driver

    prepare_driver(None)
    found: dict[int, dict[str, list[float]]] = {threads: defaultdict(list) for threads in THREADS}
    for _ in range(args.rounds):
        for threads in THREADS:
            for part, seconds in train(threads, args.steps).items():
                found[threads][part] += seconds
    print("\n| threads | sampling_s | learning_s | sync_s | together | ratio |\n|---|---|---|---|---|---|")
    base = 0.0
    for threads, parts in found.items():
        medians = [statistics.median(seconds) for seconds in parts.values()]
        base = base or sum(medians)
        print(f"| {threads} | " + " | ".join(f"{m:.2f}" for m in [*medians, sum(medians), sum(medians) / base]) + " |")


if __name__ == "__main__":
    main()
