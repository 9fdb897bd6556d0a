"""The study's tasks by the length of their solutions, and the panels on which policies are judged."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ENV = "rllm_gym:rllm_gym/BabyAI-v0"
# Go to an object, or to several in order; open a door, or two in order; pick something up.
LEVELS = (5, 8, 10, 14, 15, 16, 19, 21)
NUM_LEVELS = 40  # item i is level i % 40 + 1 with minigrid's seed i // 40
SEEDS = {"train": range(100), "held_out": range(250, 330)}  # below 248 is the `train` split, from 250 on neither split
LENGTHS = range(2, 11)
LONG = 6  # turns; half of the tasks need so many or more
FOLDER = Path(__file__).parent / "panels"
TASKS = FOLDER / "babyai_tasks.json"
POINTS, LAST, TRAINED = "points", "last", "trained"
# (tasks of, how many, episodes of each): read at every point; read at the end; the same on tasks that were trained on.
PANEL_KINDS = {POINTS: ("held_out", 60, 1), LAST: ("held_out", 60, 4), TRAINED: ("train", 60, 1)}
PANEL_SEED = 10_000


def find_tasks() -> dict[str, dict[str, int]]:
    """Play the expert, and return the turns that it takes, for the tasks of the study's lengths."""
    env = gymnasium.make(ENV, obs_type="text", split="all").unwrapped
    found: dict[str, dict[str, int]] = {}
    for name, seeds in SEEDS.items():
        turns = {item_id: expert_turns(env, item_id) for item_id in items_of(seeds)}
        found[name] = {item_id: of for item_id, of in turns.items() if of in LENGTHS}
    env.close()
    return found


def items_of(seeds: range, levels: Iterable[int] = LEVELS) -> list[str]:
    return [f"babyai_{level - 1 + NUM_LEVELS * seed}" for seed in seeds for level in levels]


def expert_turns(env: Any, item_id: str) -> int:
    """Return how many turns the expert takes; more than the study's where it takes longer or fails."""
    env.reset(seed=0, options={"item_id": item_id})
    turns, is_over = 0, False
    while not is_over and turns < LENGTHS.stop:
        _, _, terminated, truncated, _ = env.step(env.expert_action())
        turns, is_over = turns + 1, terminated or truncated
    return turns if env.is_success else LENGTHS.stop


def is_solvable_within(env: Any, item_id: str, num_turns: int) -> bool:
    """Return whether any sequence of that many available actions solves a task, by trying them all."""
    paths: list[list[str]] = [[]]
    while paths:
        path = paths.pop()
        observation, _ = env.reset(seed=0, options={"item_id": item_id})
        is_over = False
        for action in path:
            observation, _, terminated, truncated, _ = env.step(f"Action: {action}")
            is_over = terminated or truncated
        if env.is_success:
            return True
        if not is_over and len(path) < num_turns:
            paths += [[*path, action] for action in available_actions(observation)]
    return False


def available_actions(observation: str) -> list[str]:
    [listed] = re.findall(r"Available actions: (\[.*\])", observation)
    return [action for action in json.loads(listed) if action != "check available actions"]


@functools.cache
def tasks() -> Mapping[str, Mapping[str, int]]:
    """Return the tasks of each part with the turns of the expert, as they are kept."""
    return json.loads(TASKS.read_text(encoding="utf-8"))


@functools.cache
def length_of() -> Mapping[str, int]:
    """Return how many turns each task of the study takes."""
    return {item_id: turns for part in tasks().values() for item_id, turns in part.items()}


def balanced(of_length: Mapping[int, Sequence[str]], num_tasks: int | None = None, *, seed: int = 0) -> list[str]:
    """Return tasks of which half need `LONG` turns or more, spread over the lengths as evenly as there are tasks.

    Args:
        num_tasks: even; None is as many as there can be.
    """
    rng = np.random.default_rng(seed)
    halves = [[n for n in of_length if n < LONG], [n for n in of_length if n >= LONG]]
    of_half = num_tasks // 2 if num_tasks else min(sum(len(of_length[n]) for n in half) for half in halves)
    chosen: list[str] = []
    for half in halves:
        queues = [[str(item) for item in rng.permutation(of_length[n])] for n in half]
        picked: list[str] = []
        while len(picked) < of_half:
            for queue in queues:
                if queue and len(picked) < of_half:
                    picked.append(queue.pop())
        chosen += picked
    return chosen


def by_length(items: Iterable[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {length: [] for length in LENGTHS}
    for item_id in items:
        found[length_of()[item_id]].append(item_id)
    return found


def training_tasks() -> list[str]:
    return balanced(by_length(tasks()["train"]))


def write_panels(*, shortest: int, horizon: int, max_new_tokens: int) -> None:
    """Write the files in `panels/`, which are kept: runs read them and make none.

    Args:
        shortest: turns in which no way at all solves a task of the panels' long half.
        horizon: the panels'.
    """
    FOLDER.mkdir(exist_ok=True)
    TASKS.write_text(json.dumps(find_tasks(), indent=1) + "\n", encoding="utf-8")
    env = gymnasium.make(ENV, obs_type="text", split="all").unwrapped
    held_out = [
        item_id
        for item_id, turns in tasks()["held_out"].items()
        if turns < LONG or not is_solvable_within(env, item_id, shortest)
    ]
    env.close()
    for kind, (part, num_tasks, samples) in PANEL_KINDS.items():
        candidates = training_tasks() if part == "train" else held_out
        items = balanced(by_length(candidates), num_tasks, seed=PANEL_SEED)
        options = {
            "--env-config": json.dumps({"system_prompt": "", "item_ids": items}),
            "--split": "all",
            "--episodes": num_tasks,
            "--samples": samples,
            "--seed": PANEL_SEED,
            "--horizon": horizon,
            "--max-new-tokens": max_new_tokens,
        }
        command = [Path(sys.executable).with_name("rllm-gym"), "panel", ENV]
        command += [text for option in options.items() for text in option]
        panel = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout
        panel_file(kind).write_text(panel, encoding="utf-8")


def panel_file(kind: str) -> Path:
    return FOLDER / f"babyai_{kind}.json"
