"""One run: it trains, reads the panel on the way, and goes on from its last checkpoint wherever it was ended."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.learning import study
from benchmarks.learning.ray_here import ray_here
from benchmarks.learning.study import NUM_POINTS, Run
from benchmarks.learning.tasks import LAST, POINTS, TASK_SETS, TRAINED, TaskSet
from rllm_gym.models import resolve_base_model

BASE_MODEL = "tiny"
CHECKPOINT_EVERY_S = 120
LEARNER_METRICS = ("entropy", "gradient_norm", "kl", "clip_fraction", "policy_loss")
SAMPLER_METRICS = ("success_rate", "truncated_fraction", "num_turns_mean", "useful_group_share")


@dataclass
class Progress:
    """The progress of a run, written beside the checkpoint that it belongs to.

    Args:
        checkpoint: the folder's name; "" before the first.
        curve: of each train step.
        readings: of panels.
        seconds: of all chunks together, starting up included.
        num_chunks: processes that have trained.
    """

    checkpoint: str = ""
    turns: int = 0
    tokens: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    readings: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    num_chunks: int = 0
    is_finished: bool = False

    @classmethod
    def read(cls, folder: Path) -> Progress:
        file = folder / "progress.json"
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else cls()

    def write(self, folder: Path) -> None:
        """Replace the file at once: it names a checkpoint that is whole, whenever the process is killed."""
        scratch = folder / "progress.new"
        scratch.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(scratch, folder / "progress.json")
        self.remove_other_checkpoints(folder)

    def remove_other_checkpoints(self, folder: Path) -> None:
        for other in folder.glob("checkpoint_*"):
            if other.name != self.checkpoint:
                shutil.rmtree(other)


def points_reached(run: Run, turns: int, tokens: int) -> dict[str, int]:
    """Return how many of the eight points of each budget a run has come to."""
    return {
        "turns": min(NUM_POINTS, NUM_POINTS * turns // run.turns),
        "tokens": min(NUM_POINTS, NUM_POINTS * tokens // run.tokens),
    }


def due(run: Run, progress: Progress) -> dict[str, list[int]]:
    """Return which points a run has come to and has no reading of, by budget."""
    reached = points_reached(run, progress.turns, progress.tokens)
    read = {key: {k for reading in progress.readings for k in reading["points"][key]} for key in reached}
    found = {key: [k for k in range(1, count + 1) if k not in read[key]] for key, count in reached.items()}
    return found if any(found.values()) else {}


def train(run: Run, folder: Path, start: Path, *, deadline_s: float) -> bool:
    """Train until the run or the time is over; return whether the run is.

    Args:
        folder: of this run.
        start: file of the panels' readings before training, which are the same for all runs; it is made where missing.
        deadline_s: of `time.monotonic`.
    """
    begin_s = saved_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress.read(folder)
    if progress.is_finished:
        return True
    progress.remove_other_checkpoints(folder)  # one that was cut when the process was killed
    seconds_before, progress.num_chunks = progress.seconds, progress.num_chunks + 1
    with ray_here():
        algo = configuration(run).build_algo()

        def save() -> None:
            nonlocal saved_s
            progress.checkpoint = f"checkpoint_{algo.training_iteration:06d}"
            if not (folder / progress.checkpoint).exists():
                algo.save_to_path(str((folder / progress.checkpoint).absolute()))
            saved_s = time.monotonic()
            progress.seconds = seconds_before + saved_s - begin_s
            progress.write(folder)

        if not start.exists():
            readings = {kind: read_panel(run, algo, kind, Progress()) for kind in (POINTS, LAST, TRAINED)}
            start.write_text(json.dumps(readings), encoding="utf-8")
        if progress.checkpoint:
            algo.restore_from_path(str((folder / progress.checkpoint).absolute()))
        while not progress.is_finished:
            read_points(run, algo, progress)
            progress.is_finished = progress.turns >= run.turns and progress.tokens >= run.tokens
            if progress.is_finished:
                progress.readings.append(
                    {"points": {"turns": [], "tokens": []}} | read_panel(run, algo, TRAINED, progress)
                )
                save()
                export(folder, progress)
            elif time.monotonic() >= deadline_s:
                save()
                break
            else:
                train_step(run, algo, progress)
                if time.monotonic() - saved_s > CHECKPOINT_EVERY_S:
                    save()
        algo.stop()
        shutil.rmtree(algo.logdir, ignore_errors=True)
    return progress.is_finished


def export(folder: Path, progress: Progress) -> None:
    """Keep the policy as a Hugging Face folder, and no checkpoint."""
    from rllm_gym.evaluation.export import export_policy

    export_policy(folder / progress.checkpoint, folder / "policy", overwrite=True)
    progress.checkpoint = ""
    progress.write(folder)


def train_step(run: Run, algo: Any, progress: Progress) -> None:
    horizon = study.horizon_of(run, turns=progress.turns, train_step=algo.training_iteration)
    if horizon is not None:
        algo.max_episode_steps = horizon
    result = algo.train()
    sampled, learnt = result["env_runners"], result["learners"]["default_policy"]
    progress.turns += int(sampled["num_env_steps_sampled"])
    progress.tokens += int(sampled["num_sampled_tokens"])
    progress.curve.append(
        {
            "turns": progress.turns,
            "tokens": progress.tokens,
            "horizon": int(result["max_episode_steps"]),
            **{name: round(float(sampled[name]), 5) for name in SAMPLER_METRICS},
            **{name: round(float(learnt[name]), 5) for name in LEARNER_METRICS},
            **{name: round(float(result[name]), 2) for name in ("sampling_s", "learning_s")},
        }
    )


def read_points(run: Run, algo: Any, progress: Progress) -> None:
    """Read the panel for the points that are due: at a budget's end with four episodes of a task, else with one."""
    if points := due(run, progress):
        is_last = any(NUM_POINTS in of_budget for of_budget in points.values())
        progress.readings.append({"points": points} | read_panel(run, algo, LAST if is_last else POINTS, progress))


def read_panel(run: Run, algo: Any, kind: str, progress: Progress) -> dict[str, Any]:
    """Play a panel with the policy as it is; the seeds are the panel's, so that it disturbs no training."""
    from rllm_gym.evaluation.panel import read_panel as read_file

    start_s = time.monotonic()
    of = TASK_SETS[run.env]
    panel = read_file(of.panel_file(kind))
    episodes, failed = algo.sample(
        panel.groups(0), max_episode_steps=dict.fromkeys(algo.horizons, panel.horizon), params=panel.sampling
    )
    if failed:
        raise RuntimeError(f"read_panel: every episode must be played; {len(failed)} failed: {failed[0].error}")
    by_task: dict[str, list[Any]] = {str(item_id): [] for item_id in panel.item_ids}
    for episode in episodes:
        by_task[str(episode.item_id)].append(episode)
    return {
        "panel": kind,
        "panel_hash": panel.hash,
        "train_step": algo.training_iteration,
        "turns": progress.turns,
        "tokens": progress.tokens,
        **summary(of, {item_id: [_outcome(e) for e in by_task[item_id]] for item_id in by_task}),
        "seconds": round(time.monotonic() - start_s, 1),
    }


def _outcome(episode: Any) -> tuple[bool, int, int, bool]:
    """Return whether an episode succeeded, its turns, its sampled tokens, and whether it was truncated."""
    turns = [turn for stream in episode.streams.values() for turn in stream.turns]
    tokens = sum(len(turn.action_ids) for turn in turns)
    return bool(episode.info.get("is_success")), len(turns), tokens, episode.is_truncated


def summary(of: TaskSet, outcomes: Mapping[str, Sequence[tuple[bool, int, int, bool]]]) -> dict[str, Any]:
    """Return what a row keeps of a panel that was played.

    Args:
        outcomes: of each task's episodes, in the panel's order: success, turns, sampled tokens, truncated.

    Returns:
        `solved`: of each task the share of its episodes, in the panel's order. `turns_per_solved` and
        `tokens_per_solved` are all that was spent over what was solved; None where nothing was.
    """
    everything = [outcome for of_task in outcomes.values() for outcome in of_task]
    num_solved = sum(outcome[0] for outcome in everything)
    rates = {item_id: sum(o[0] for o in of_task) / len(of_task) for item_id, of_task in outcomes.items()}
    by_length: dict[int, list[float]] = {}
    for item_id, rate in rates.items():
        by_length.setdefault(of.length_of[item_id], []).append(rate)
    return {
        "success": round(sum(rates.values()) / len(rates), 5),
        "by_length": {length: round(sum(found) / len(found), 4) for length, found in sorted(by_length.items())},
        "solved": [round(rate, 4) for rate in rates.values()],
        "turns_per_solved": round(sum(o[1] for o in everything) / num_solved, 2) if num_solved else None,
        "tokens_per_solved": round(sum(o[2] for o in everything) / num_solved, 1) if num_solved else None,
        "tokens_per_turn": round(sum(o[2] for o in everything) / sum(o[1] for o in everything), 2),
        "truncated": round(sum(o[3] for o in everything) / len(everything), 4),
    }


def configuration(run: Run) -> Any:
    from rllm_gym.algorithms.registry import get_algorithm_class
    from rllm_gym.options.methods import PRESETS

    algorithm, options = study.METHODS[run.method]
    horizon: dict[str, Any] = {"max_episode_steps": study.LONG}
    if run.schedule == "adaptive":
        horizon = {"scaling_inter": {"type": "adaptive", "horizons": list(study.HORIZONS), "min_steps_per_stage": 10}}
    config = get_algorithm_class(algorithm).get_default_config()
    of = TASK_SETS[run.env]
    config.environment(of.env, env_config={"system_prompt": "", "split": "all", "item_ids": of.training_tasks})
    of_loss = {"clip_low": 0.2, "clip_high": 0.28, "kl_coeff": 0.0}
    of_preset = PRESETS.get(options.get("preset", ""), {})
    return config.update_from_dict(
        {
            "base_model": BASE_MODEL,
            "seed": run.seed,
            "num_env_runners": 1,
            "num_cpus_per_env_runner": 1,
            "num_cpus_for_main_process": 1,
            "num_envs_per_env_runner": 60,
            "engine_options": {"kv_cache_memory_bytes": 512 * 2**20},
            "groups_per_step": 6,
            "group_size": 8,
            "max_model_len": 4096,
            "max_new_tokens": study.MAX_NEW_TOKENS,
            "tokens_per_micro_batch": 4096,
            "lr": run.lr,
            "max_empty_steps": 10**6,  # a run that learns nothing any more spends its budget, too
            "save_trajectories": False,
            **{name: value for name, value in of_loss.items() if name not in of_preset},
            **options,
            **horizon,
        }
    )


def row_of(run: Run, folder: Path, start: Path, commit: str) -> dict[str, Any]:
    """Return the row of a run that is finished."""
    progress = Progress.read(folder)
    at_start = json.loads(start.read_text(encoding="utf-8"))
    return {
        "commit": commit,
        **run.content,
        "base_model": weights_hash(),
        "train_steps": len(progress.curve),
        "turns_trained": progress.turns,
        "tokens_trained": progress.tokens,
        "collapse": has_collapsed(
            [at_start[LAST]["success"], *(r["success"] for r in progress.readings if r["panel"] != TRAINED)]
        ),
        "minutes": round(progress.seconds / 60, 2),
        "num_chunks": progress.num_chunks,
        "start": at_start,
        "readings": progress.readings,
        "curve": progress.curve,
    }


def weights_hash() -> str:
    """Return what a row says of the policy that its run began with."""
    return hashlib.sha256((resolve_base_model(BASE_MODEL) / "model.safetensors").read_bytes()).hexdigest()


def has_collapsed(successes: Sequence[float]) -> bool:
    """Return whether the mean of the last two readings is less than half of the best mean of two in a row."""
    pairs = [(a + b) / 2 for a, b in itertools.pairwise(successes)]
    return bool(pairs) and pairs[-1] < 0.5 * max(pairs)
