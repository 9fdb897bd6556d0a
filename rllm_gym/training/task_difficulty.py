"""Which tasks teach: how differently the episodes of each have ended of late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from rllm_gym.types import Episode, TaskGroup, outcomes

HALF_LIFE = 20.0  # train steps after which what was seen counts half: the policy is another one by then
PRIOR_PAIRS = 4.0  # what is expected of a task counts like so many pairs of its episodes


class TaskDifficulty:
    """Makes tasks likely that are solved sometimes, and unlikely those that are solved always or never.

    A group teaches where its episodes end differently. Of each task, at each horizon, this keeps in how many pairs of
    a group's episodes the returns differed. For success or failure that is 2 p (1 - p), with p the rate of success; a
    graded return is served, too. Tasks that were not played at a horizon are expected to be as at the last horizon
    where they were, or else like the rest.

    Args:
        names: the environments'.
        min_probability: no task is drawn less often than this share of what it would be drawn with equal
            probabilities.
    """

    def __init__(self, names: Sequence[str], *, min_probability: float) -> None:
        self._names, self._min_probability = names, min_probability
        # By environment, then horizon, then task: (pairs that differed, pairs, the train step of the last).
        self._seen: dict[str, dict[int, dict[str, tuple[float, float, int]]]] = {name: {} for name in names}

    def record(self, train_step: int, episodes: Sequence[Episode]) -> None:
        """Take in how a train step's episodes have ended."""
        of_all_tasks = [episode for episode in episodes if not episode.is_conditional]
        by_group = sorted(of_all_tasks, key=lambda episode: episode.group.key)
        for _, of_group in groupby(by_group, key=lambda episode: episode.group.key):
            group = list(of_group)
            task: TaskGroup = group[0].group
            if task.item_id is None or len(group) < 2:
                continue
            _, counts = np.unique(outcomes(group), axis=0, return_counts=True)
            num_pairs = len(group) * (len(group) - 1) / 2
            num_alike = float((counts * (counts - 1) / 2).sum())
            name = self._names[task.env_index]
            seen = self._seen[name].setdefault(group[0].horizon or 0, {})
            item = str(task.item_id)
            differed, pairs = self._faded(seen.get(item), train_step)
            seen[item] = (differed + num_pairs - num_alike, pairs + num_pairs, train_step)

    def probabilities(
        self, train_step: int, env_index: int, items: Sequence[str], horizons: Mapping[str, int | None]
    ) -> npt.NDArray[np.float64]:
        """Return each task's probability of being drawn, [N]."""
        name = self._names[env_index]
        horizon = horizons.get(name) or 0
        by_horizon = self._seen[name]
        seen = by_horizon.get(horizon, {})
        # The last horizon before this one: schedules raise it, and 0 is no limit.
        before = [other for other in by_horizon if other != horizon and (not horizon or 0 < other < horizon)]
        former = by_horizon[max(before)] if before else {}
        counts = np.array([self._faded(seen.get(item), train_step) for item in items])
        told = np.array([self._faded(former.get(item), train_step) for item in items])
        mean = (counts[:, 0].sum() + 1.0) / (counts[:, 1].sum() + 2.0)
        expected = (told[:, 0] + PRIOR_PAIRS * mean) / (told[:, 1] + PRIOR_PAIRS)
        differ = (counts[:, 0] + PRIOR_PAIRS * expected) / (counts[:, 1] + PRIOR_PAIRS)
        share = self._min_probability
        return (1.0 - share) * differ / differ.sum() + share / len(items)

    def get_state(self) -> dict[str, Any]:
        return {name: {horizon: dict(of) for horizon, of in by.items()} for name, by in self._seen.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for name in self._names:
            self._seen[name] = {int(horizon): dict(of) for horizon, of in state.get(name, {}).items()}

    @staticmethod
    def _faded(entry: tuple[float, float, int] | None, train_step: int) -> tuple[float, float]:
        if entry is None:
            return 0.0, 0.0
        differed, pairs, at = entry
        left = 0.5 ** ((train_step - at) / HALF_LIFE)
        return differed * left, pairs * left
