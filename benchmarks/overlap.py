"""Sampling and learning side by side against in turns: the time of the same train steps, and what they have learnt.

    .venv/bin/python benchmarks/overlap.py --sleep               # engine and learner sleep equally long: half a minute
    .venv/bin/python benchmarks/overlap.py --seeds 0 1 2 3 4     # the quickstart: 75 minutes on two cores

With --sleep every step of the engine takes the same time, whatever the batch, and a turn has 4 to 36 tokens; an update
takes as long as the sampling of a step does in turns, which is measured first. What is left of the sum is then the
driver's own work, and what the longest episode of a step takes beyond the others.

The quickstart's runs are kept in a folder, and not run again. Times are those of sampling, learning and syncing, as the
driver sees them; evaluations are not among them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import interval, mean_and_spread, print_row
from separate_runs import quickstart, ray_here

from rllm_gym.algorithms import GRPO, GRPOConfig
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.types import CompletionRequest

STEP_S = 0.01
SLEEPING_STEPS = 12
SETTINGS: dict[str, dict[str, Any]] = {
    "in turns, 1 thread each": {},
    "in turns, 2 threads for the learner": {"num_cpus_for_main_process": 2},
    "`staleness: 1`": {"staleness": 1},
    "`staleness: 1`, decoupled": {"staleness": 1, "old_logp": "recompute", "importance_correction": "token"},
}


class SleepingEngine(ScriptedEngine):
    """Takes the same time for every step, whatever the batch, and says between 4 and 36 tokens."""

    def __init__(self, model: str, **arguments: Any) -> None:
        super().__init__(lambda prompt_ids: [], max_context_tokens=arguments["max_model_len"])

    def submit(self, request: CompletionRequest) -> None:
        self._reply = lambda prompt_ids: [40] * int(np.random.default_rng(request.seed).integers(4, 37))
        super().submit(request)

    def step(self) -> list[Any]:
        time.sleep(STEP_S)
        return super().step()


class Sleeping(GRPO):
    """Sleeps where it would learn."""

    update_s = 0.0

    def update(self, samples: Any, **settings: Any) -> list[Any]:
        time.sleep(self.update_s)
        return super().update([], **settings)


def sleep_through(staleness: int, update_s: float) -> list[float]:
    """Return the seconds that sampling took, and those of whole train steps."""
    config = GRPOConfig(algo_class=Sleeping).environment("rllm_gym/TextCraft-v0", env_config={"depth": 2})
    config.update_from_dict(
        {"base_model": "tiny", "engine": SleepingEngine, "groups_per_step": 4, "group_size": 4, "filter_groups": "off"}
        | {"num_envs_per_env_runner": 16, "max_episode_steps": 5, "max_new_tokens": 36, "max_model_len": 1024}
        | {"staleness": staleness, "save_trajectories": False, "max_empty_steps": 1000, "num_env_workers": 0}
    )
    algo = config.build_algo()
    algo.update_s = update_s
    algo.train()  # the first one makes what is made once
    begun = time.perf_counter()
    results = [algo.train() for _ in range(SLEEPING_STEPS)]
    seconds = (time.perf_counter() - begun) / SLEEPING_STEPS
    algo.stop()
    return [statistics.mean(result["sampling_s"] for result in results), seconds]


def compare_sleeping() -> None:
    with ray_here():
        service_s, _ = sleep_through(0, 0.0)
        _, in_turns = sleep_through(0, service_s)
        ahead = {k: sleep_through(k, service_s)[1] for k in (1, 2)}
    result = (
        f"{service_s:.2f} s to sample, as long to learn; in turns {in_turns:.2f} s a step, staleness 1 {ahead[1]:.2f} s"
    )
    print_row([0], f"{result}, 2 {ahead[2]:.2f} s ({ahead[2] / in_turns:.2f})", [ahead[1] / in_turns])


def train_s(rows: list[dict[str, Any]]) -> float:
    return sum(row[name] for row in rows for name in ("sampling_s", "learning_s", "sync_s"))


def compare_learning(folder: Path, seeds: list[int]) -> None:
    print("| setting | seeds | seconds | ratio to the better one in turns | training tasks after | held-out after |")
    print("|---|---|---|---|---|---|")
    runs = {
        name: [quickstart(folder, f"{number}_{seed}", seed=seed, **settings) for seed in seeds]
        for number, (name, settings) in enumerate(SETTINGS.items())
    }
    base = min(statistics.mean(map(train_s, of)) for name, of in runs.items() if name.startswith("in turns"))
    for name, of in runs.items():
        seconds = [train_s(rows) for rows in of]
        after = [[rows[-1]["evaluation"][split]["success_rate"] for rows in of] for split in ("train", "eval")]
        ratio = statistics.mean(seconds) / base
        rates = " | ".join(map(interval, after))
        print(f"| {name} | {len(seeds)} | {mean_and_spread(seconds)} | {ratio:.2f} | {rates} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleep", action="store_true", help="engine and learner sleep")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--folder", type=Path, default=Path("overlap"), help="of the runs")
    asked = parser.parse_args()
    if asked.sleep:
        compare_sleeping()
    else:
        compare_learning(asked.folder, asked.seeds)


if __name__ == "__main__":
    main()
