"""The table of ScienceWorld's tasks and variations, and how items are numbered; known without a JVM."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One science task.

    Args:
        task_id: its number in the paper, like "4-1".
        name: its name in the simulator, like "find-living-thing".
        num_train: how many variations upstream trains on; they come first. Then come `num_dev` and `num_test` others.
    """

    task_id: str
    name: str
    num_train: int
    num_dev: int
    num_test: int

    @property
    def num_variations(self) -> int:
        return self.num_train + self.num_dev + self.num_test


# Source: `tasks.json`, and the simulator's `getVariationsTrain`, `...Dev` and `...Test`, of the package scienceworld
# 1.2.3 (Apache-2.0; Wang et al. 2022, arXiv:2203.07540), in the package's order. A test compares them.
TASKS = (
    Task("1-1", "boil", 14, 7, 9),
    Task("1-2", "melt", 14, 7, 9),
    Task("1-3", "freeze", 14, 7, 9),
    Task("1-4", "change-the-state-of-matter-of", 14, 7, 9),
    Task("2-1", "use-thermometer", 270, 135, 135),
    Task("2-2", "measure-melting-point-known-substance", 218, 109, 109),
    Task("2-3", "measure-melting-point-unknown-substance", 150, 75, 75),
    Task("3-1", "power-component", 10, 5, 5),
    Task("3-2", "power-component-renewable-vs-nonrenewable-energy", 10, 5, 5),
    Task("3-3", "test-conductivity", 450, 225, 225),
    Task("3-4", "test-conductivity-of-unknown-substances", 300, 150, 150),
    Task("4-1", "find-living-thing", 150, 75, 75),
    Task("4-2", "find-non-living-thing", 150, 75, 75),
    Task("4-3", "find-plant", 150, 75, 75),
    Task("4-4", "find-animal", 150, 75, 75),
    Task("5-1", "grow-plant", 62, 31, 33),
    Task("5-2", "grow-fruit", 62, 31, 33),
    Task("6-1", "chemistry-mix", 16, 8, 8),
    Task("6-2", "chemistry-mix-paint-secondary-color", 18, 9, 9),
    Task("6-3", "chemistry-mix-paint-tertiary-color", 18, 9, 9),
    Task("7-1", "lifespan-longest-lived", 62, 31, 32),
    Task("7-2", "lifespan-shortest-lived", 62, 31, 32),
    Task("7-3", "lifespan-longest-lived-then-shortest-lived", 62, 31, 32),
    Task("8-1", "identify-life-stages-1", 6, 3, 5),
    Task("8-2", "identify-life-stages-2", 4, 2, 4),
    Task("9-1", "inclined-plane-determine-angle", 84, 42, 42),
    Task("9-2", "inclined-plane-friction-named-surfaces", 692, 346, 348),
    Task("9-3", "inclined-plane-friction-unnamed-surfaces", 80, 40, 42),
    Task("10-1", "mendelian-genetics-known-plant", 60, 30, 30),
    Task("10-2", "mendelian-genetics-unknown-plant", 240, 120, 120),
)

NOT_IN_AGENTGYM = frozenset({"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"})  # AgentGym, arXiv:2406.04151


@functools.cache
def load_items() -> tuple[tuple[Task, int], ...]:
    """Return (task, variation) of every item: AgentGym's games in its order, then the variations of the other tasks."""
    ordered = sorted(TASKS, key=lambda task: task.task_id in NOT_IN_AGENTGYM)  # stable
    return tuple((task, variation) for task in ordered for variation in range(task.num_variations))


NUM_AGENTGYM_ITEMS = sum(task.num_variations for task in TASKS if task.task_id not in NOT_IN_AGENTGYM)


@functools.cache
def split_indices(split: str) -> tuple[int, ...]:
    """Return the items of "train" (upstream's training variations), "eval" (its development and test ones) or "all"."""
    return tuple(
        index
        for index, (task, variation) in enumerate(load_items())
        if split == "all" or (variation < task.num_train) == (split == "train")
    )
