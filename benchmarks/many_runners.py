"""Measures the cost of an episode for driver and EnvRunner, with 1, 2 and 4 runners: how many one driver can feed.

    .venv/bin/python benchmarks/many_runners.py

The engine has prepared replies and nothing is learnt: what is left is the system's own work, of tasks, environments,
the rollout loop, records and samples. Processor time, since the runners share this machine's cores; `sync` is the wall
time in which all runners have new weights of the tiny model. docs/clusters.md tells what follows for 64 runners.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from overlap import Sleeping
from report import print_row
from separate_runs import ray_here

from rllm_gym.algorithms import GRPO, GRPOConfig
from rllm_gym.rollout.engines.scripted import ScriptedEngine

NUM_RUNNERS = (1, 2, 4)
STEPS = 5
GROUPS = 8  # per runner
GROUP_SIZE = 8
NUM_TOKENS = 40


class PreparedEngine(ScriptedEngine):
    """Says the same number of tokens every time."""

    def __init__(self, model: str, **arguments: Any) -> None:
        super().__init__(lambda prompt_ids: [40] * NUM_TOKENS, max_context_tokens=arguments["max_model_len"])


def processor_s(algo: GRPO) -> tuple[float, list[float]]:
    """Return that of the driver, and of every runner, so far."""
    runners = algo.env_runner_group.foreach_env_runner(lambda runner: time.process_time(), local_env_runner=False)
    return time.process_time(), runners


def play(num_runners: int) -> dict[str, float]:
    """Return what a train step takes: milliseconds per episode of the driver and of a runner, and of a sync."""
    config = GRPOConfig(algo_class=Sleeping).environment("rllm_gym/TextCraft-v0", env_config={"depth": 2})
    config.update_from_dict(
        {"base_model": "tiny", "engine": PreparedEngine, "filter_groups": "off", "max_empty_steps": 1000}
        | {"groups_per_step": GROUPS * num_runners, "group_size": GROUP_SIZE, "num_env_runners": num_runners}
        | {"num_envs_per_env_runner": 64, "num_cpus_per_env_runner": 0.25, "num_env_workers": 0}
        | {"max_episode_steps": 5, "max_new_tokens": NUM_TOKENS, "max_model_len": 2048}
    )
    algo = config.build_algo()
    algo.train()  # the first one makes what is made once
    driver_s, runners_s = processor_s(algo)
    results = [algo.train() for _ in range(STEPS)]
    driver_after_s, runners_after_s = processor_s(algo)
    algo.stop()
    episodes = STEPS * GROUPS * GROUP_SIZE
    return {
        "driver": (driver_after_s - driver_s) / (episodes * num_runners) * 1e3,
        "runner": (sum(runners_after_s) - sum(runners_s)) / (episodes * num_runners) * 1e3,
        "sync": statistics.median(result["sync_s"] for result in results) * 1e3,
    }


def main() -> None:
    with ray_here():
        found = {num: play(num) for num in NUM_RUNNERS}
    parts = [
        f"{num} runners: driver {ms['driver']:.2f}, runner {ms['runner']:.2f} ms per episode, sync {ms['sync']:.0f} ms"
        for num, ms in found.items()
    ]
    print_row([0], "; ".join(parts), [found[NUM_RUNNERS[-1]]["driver"] / found[1]["driver"]])


if __name__ == "__main__":
    main()
