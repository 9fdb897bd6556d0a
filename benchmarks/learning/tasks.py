"""The tasks of the study of horizons and of methods, in two environments."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rllm_gym.envs.textcraft.env import TextCraftEnv

NUM_LEVELS = 40  # of BabyAI: item i is level i % 40 + 1 with minigrid's seed i // 40
LENGTHS = range(2, 11)
LONG = 6  # turns; half of the tasks need so many or more
FOLDER = Path(__file__).parent / "panels"
POINTS, LAST, TRAINED = "points", "last", "trained"
# (tasks of, how many, episodes of each): read at every point; read at the end; the same on tasks that were trained on.
PANEL_KINDS = {POINTS: ("held_out", 60, 1), LAST: ("held_out", 60, 4), TRAINED: ("train", 60, 1)}
PANEL_SEED = 10_000


@dataclass(frozen=True)
class TaskSet:
    """The tasks of one environment by the length of their solutions, with the panels on which policies are judged.

    Args:
        name: of its files in `panels/`.
        env: its id.
        candidates: of each part; tasks are those that the expert solves in a number of turns of `LENGTHS`.
        available_actions: reads them from an observation, where the environment lists them; the panels then hold no
            long task that a short horizon can solve, whichever actions are taken.
    """

    name: str
    env: str
    candidates: Mapping[str, Sequence[str]]
    available_actions: Callable[[str], list[str]] | None = None

    @property
    def tasks_file(self) -> Path:
        return FOLDER / f"{self.name}_tasks.json"

    def panel_file(self, kind: str) -> Path:
        return FOLDER / f"{self.name}_{kind}.json"

    @functools.cached_property
    def tasks(self) -> Mapping[str, Mapping[str, int]]:
        """The tasks of each part with the turns of the expert, as they are kept."""
        return json.loads(self.tasks_file.read_text(encoding="utf-8"))

    @functools.cached_property
    def length_of(self) -> Mapping[str, int]:
        """The turns that the expert takes, by task."""
        return {item_id: turns for part in self.tasks.values() for item_id, turns in part.items()}

    @property
    def training_tasks(self) -> list[str]:
        return balanced(self.by_length(self.tasks["train"]))

    def by_length(self, items: Iterable[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {length: [] for length in LENGTHS}
        for item_id in items:
            found[self.length_of[item_id]].append(item_id)
        return found

    def make_env(self) -> Any:
        return gymnasium.make(self.env, obs_type="text", split="all").unwrapped

    def find_tasks(self) -> dict[str, dict[str, int]]:
        """Play the expert, and return the turns that it takes, for the tasks of the study's lengths."""
        env = self.make_env()
        found: dict[str, dict[str, int]] = {}
        for part, items in self.candidates.items():
            turns = {item_id: expert_turns(env, item_id) for item_id in items}
            found[part] = {item_id: of for item_id, of in turns.items() if of in LENGTHS}
        env.close()
        return found

    def is_solvable_within(self, env: Any, item_id: str, num_turns: int) -> bool:
        """Try every sequence of that many available actions, and return whether one of them solves the task."""
        assert self.available_actions is not None
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
                paths += [[*path, action] for action in self.available_actions(observation)]
        return False

    def write_panels(self, *, shortest: int, horizon: int, max_new_tokens: int) -> None:
        """Write its files in `panels/`, which are kept: runs read them and make none.

        Args:
            shortest: turns in which no way at all solves a task of the panels' long half.
            horizon: the panels'.
        """
        FOLDER.mkdir(exist_ok=True)
        found = self.find_tasks()
        self.tasks_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        held_out = list(found["held_out"])
        if self.available_actions is not None:
            env = self.make_env()
            held_out = [
                item_id
                for item_id in held_out
                if self.length_of[item_id] < LONG or not self.is_solvable_within(env, item_id, shortest)
            ]
            env.close()
        for kind, (part, num_tasks, samples) in PANEL_KINDS.items():
            candidates = self.training_tasks if part == "train" else held_out
            items = balanced(self.by_length(candidates), num_tasks, seed=PANEL_SEED)
            options = {
                "--env-config": json.dumps({"system_prompt": "", "item_ids": items}),
                "--split": "all",
                "--episodes": num_tasks,
                "--samples": samples,
                "--seed": PANEL_SEED,
                "--horizon": horizon,
                "--max-new-tokens": max_new_tokens,
            }
            command = [Path(sys.executable).with_name("rllm-gym"), "panel", self.env]
            command += [text for option in options.items() for text in option]
            panel = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout
            self.panel_file(kind).write_text(panel, encoding="utf-8")


def expert_turns(env: Any, item_id: str) -> int:
    """Return how many turns the expert takes; more than the study's where it takes longer or fails."""
    env.reset(seed=0, options={"item_id": item_id})
    turns, is_over = 0, False
    while not is_over and turns < LENGTHS.stop:
        _, _, terminated, truncated, _ = env.step(env.expert_action())
        turns, is_over = turns + 1, terminated or truncated
    return turns if env.is_success else LENGTHS.stop


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


def babyai_items(seeds: Iterable[int], levels: Iterable[int]) -> list[str]:
    return [f"babyai_{level - 1 + NUM_LEVELS * seed}" for seed in seeds for level in levels]


def listed_by_babyai(observation: str) -> list[str]:
    [listed] = re.findall(r"Available actions: (\[.*\])", observation)
    return [action for action in json.loads(listed) if action != "check available actions"]


# Go to an object, or to several in order; open a door, or two in order; pick something up.
_BABYAI_LEVELS = (5, 8, 10, 14, 15, 16, 19, 21)
BABYAI_HELD_OUT = range(250, 330)  # seeds; below 248 is the `train` split, from 250 on neither split
BABYAI = TaskSet(
    "babyai",
    "rllm_gym:rllm_gym/BabyAI-v0",
    {"train": babyai_items(range(100), _BABYAI_LEVELS), "held_out": babyai_items(BABYAI_HELD_OUT, _BABYAI_LEVELS)},
    listed_by_babyai,
)
TEXTCRAFT = TaskSet(
    "textcraft",
    "rllm_gym:rllm_gym/TextCraft-v0",
    {"train": TextCraftEnv(split="train").item_ids, "held_out": TextCraftEnv(split="eval").item_ids},
)
TASK_SETS = {task_set.name: task_set for task_set in (BABYAI, TEXTCRAFT)}
