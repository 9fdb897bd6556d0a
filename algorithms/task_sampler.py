"""Which tasks a train step plays: a pure function of the seed and the step, so that resuming needs no state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm_gym.types import TaskGroup

FIRST_REFILL = 2**20


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

    def refill(self, train_step: int, round: int, num_groups: int) -> list[TaskGroup]:
        """Return groups in place of some that were dropped: tasks drawn at random, outside the epochs' order."""
        rng = np.random.default_rng(np.random.SeedSequence((self._seed, train_step, 1 + round)))
        items = [None] * num_groups if self._item_ids is None else rng.choice(self._item_ids, num_groups).tolist()
        first = (1 + round) * FIRST_REFILL  # beyond the indices of `groups`
        return [TaskGroup((self._seed, train_step, first + k), item, self._group_size) for k, item in enumerate(items)]

    def _item(self, position: int) -> str | None:
        if self._item_ids is None:
            return None
        epoch, k = divmod(position, len(self._item_ids))
        order = np.random.default_rng(np.random.SeedSequence((self._seed, epoch))).permutation(len(self._item_ids))
        return self._item_ids[order[k]]
