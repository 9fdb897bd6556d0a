"""Distill beside GRPO: the shipped model, with the quickstart's end as teacher, at equal sampled tokens.

    python -m benchmarks.distill learn FOLDER              # the teacher, then every run that has no row yet, the table
    python -m benchmarks.distill learn FOLDER --seeds 0    # fewer
    python -m benchmarks.distill report FOLDER

Both have the settings of `distill_tiny.yaml`; GRPO has the quickstart's groups, 8 tasks of 8 episodes a train step in
place of 64 of one, and its clipping and filter. Both begin from one model; their success is compared where a seed's
shorter run had sampled a quarter, half and all of its tokens. A row is appended to FOLDER/rows.jsonl as a run ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.equal_tokens import append_row, report, run_missing, train

ARMS = ("GRPO", "Distill")
EXAMPLES = Path(__file__).parents[1] / "tuned_examples"


def settings_of(file: Path) -> tuple[str, dict[str, Any]]:
    from rllm_gym.cli.train.source import read_yaml

    [experiment] = read_yaml(file)[0].values()
    return experiment["env"], experiment["config"]


def make_teacher(folder: Path, num_steps: int) -> None:
    """Train the quickstart, and export its end."""
    from rllm_gym.algorithms import GRPOConfig
    from rllm_gym.cli.ray_session import prepare_driver
    from rllm_gym.evaluation.export import export_policy

    prepare_driver(None)
    import ray

    env, settings = settings_of(EXAMPLES / "quickstart.yaml")
    settings |= {"evaluation_interval": None, "save_trajectories": False}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=400 * 2**20)
    algo = GRPOConfig().environment(env).update_from_dict(settings).build_algo()
    for _ in range(num_steps):
        found = algo.train()["env_runners"]
    print(f"teacher: success {found['success_rate']:.3f} in train step {num_steps}", flush=True)
    algo.save_to_path(str(folder / "teacher-checkpoint"))
    algo.stop()
    ray.shutdown()
    export_policy(folder / "teacher-checkpoint", folder / "teacher")


def config_of(arm: str, seed: int, folder: Path) -> Any:
    from rllm_gym.algorithms.registry import get_algorithm_class

    env, settings = settings_of(EXAMPLES / "textcraft" / "distill_tiny.yaml")
    settings |= {"seed": seed, "teacher": str(folder / "teacher")}
    if arm == "GRPO":
        quickstart = settings_of(EXAMPLES / "quickstart.yaml")[1]
        names = ("groups_per_step", "group_size", "clip_low", "clip_high", "filter_groups")
        settings |= {name: quickstart[name] for name in names}
        del settings["teacher"]
    return get_algorithm_class(arm).get_default_config().environment(env).update_from_dict(settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("learn", "report", "teacher", "one"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        if name == "learn":
            command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
            command.add_argument("--steps", type=int, default=40)
            command.add_argument("--teacher-steps", type=int, default=85)
        if name == "one":
            command.add_argument("arm", choices=ARMS)
            command.add_argument("seed", type=int)
        if name in ("teacher", "one"):
            command.add_argument("num_steps", type=int)
    given = parser.parse_args()
    if given.command == "teacher":
        make_teacher(given.folder, given.num_steps)
    elif given.command == "one":
        row = train(config_of(given.arm, given.seed, given.folder), given.num_steps)
        append_row(given.folder, {"arm": given.arm, "seed": given.seed, **row})
    else:
        if given.command == "learn":
            given.folder.mkdir(parents=True, exist_ok=True)
            if not (given.folder / "teacher" / "config.json").is_file():
                command = [sys.executable, "-m", "benchmarks.distill", "teacher", str(given.folder)]
                subprocess.run([*command, str(given.teacher_steps)], check=True)
            run_missing("benchmarks.distill", given.folder, ARMS, given.seeds, given.steps)
        report(given.folder, ARMS)


if __name__ == "__main__":
    main()
