"""Which tasks a train step plays: a pure function of the seed and the step, so that resuming needs no state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm_gym.types import TaskGroup


class TaskSampler:
    """Deals the tasks in epochs: each is played once before any is played again, in an order shuffled by the seed.

    Args:
        item_ids: the tasks; None lets the environment draw one by its own seed.
        seed: of the order and of the episodes.
        group_size: episodes per task.
    """

    def __init__(self, item_ids: Sequence[str] | None, *, seed: int, group_size: int) -> None:
        self._item_ids, self._seed, self._group_size = item_ids, seed, group_size

    def groups(self, train_step: int, num_groups: int) -> list[TaskGroup]:
        """Return the train step's groups; every key is (seed, train step, group index)."""
        first = train_step * num_groups
        return [
            TaskGroup((self._seed, train_step, k), self._item(first + k), self._group_size) for k in range(num_groups)
        ]

    def _item(self, position: int) -> str | None:
        if self._item_ids is None:
            return None
        epoch, k = divmod(position, len(self._item_ids))
        order = np.random.default_rng(np.random.SeedSequence((self._seed, epoch))).permutation(len(self._item_ids))
        return self._item_ids[order[k]]
