"""What the driver and each EnvRunner spend on an episode, with 1, 2 and 4 runners; what 2 learners save of an update.

    .venv/bin/python benchmarks/many_runners.py

The engine has prepared replies and nothing is learnt: what is left is the system's own work, of tasks, environments,
the rollout loop, records and samples. Processor time, since the runners share this machine's cores; `sync` is the wall
time in which all runners have new weights of the tiny model. docs/clusters.md tells what follows for 64 runners.

Then 1 and 2 learners, of a thread each, in processes of their own, update the tiny model on equally many episodes: wall
time, since each has a core to itself while nobody samples.
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
NUM_LEARNERS = (1, 2)
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


def config_of(algo_class: type[GRPO], **options: Any) -> GRPOConfig:
    config = GRPOConfig(algo_class=algo_class).environment("rllm_gym/TextCraft-v0", env_config={"depth": 2})
    return config.update_from_dict(
        {"base_model": "tiny", "engine": PreparedEngine, "filter_groups": "off", "max_empty_steps": 1000}
        | {"group_size": GROUP_SIZE, "num_envs_per_env_runner": 64, "num_env_workers": 0}
        | {"max_episode_steps": 5, "max_new_tokens": NUM_TOKENS, "max_model_len": 2048}
        | options
    )


def play(num_runners: int) -> dict[str, float]:
    """Return what a train step takes: milliseconds per episode of the driver and of a runner, and of a sync."""
    runners = {"groups_per_step": GROUPS * num_runners, "num_env_runners": num_runners, "num_cpus_per_env_runner": 0.25}
    algo = config_of(Sleeping, **runners).build_algo()
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


def learn(num_learners: int) -> float:
    """Return the seconds of an update on 32 episodes."""
    algo = config_of(GRPO, groups_per_step=4, num_learners=num_learners).build_algo()
    seconds = [algo.train()["learning_s"] for _ in range(1 + STEPS)]
    algo.stop()
    return statistics.median(seconds[1:])


def main() -> None:
    with ray_here():
        found = {num: play(num) for num in NUM_RUNNERS}
        learnt_s = {num: learn(num) for num in NUM_LEARNERS}
    parts = [
        f"{num} runners: driver {ms['driver']:.2f}, runner {ms['runner']:.2f} ms per episode, sync {ms['sync']:.0f} ms"
        for num, ms in found.items()
    ]
    print_row([0], "; ".join(parts), [found[NUM_RUNNERS[-1]]["driver"] / found[1]["driver"]])
    parts = [f"{num} learners: {seconds:.2f} s an update" for num, seconds in learnt_s.items()]
    print_row([0], "; ".join(parts), [learnt_s[2] / learnt_s[1]])


if __name__ == "__main__":
    main()
