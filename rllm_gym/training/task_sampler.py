"""Which tasks a train step plays.

`TaskSampler` is a pure function of the seed and the step, so that resuming needs no state. `DifficultySampler` looks at
how the tasks have gone, too, which checkpoints keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rllm_gym.errors import ConfigError
from rllm_gym.training.task_difficulty import TaskDifficulty
from rllm_gym.types import TaskGroup

FIRST_REFILL = 2**20
EVALUATION_STEP = 2**31  # stands in a group's key for the train step, so that evaluation draws numbers of its own


class TaskSampler:
    """Deals each environment's tasks in epochs: each is played once before any is played again, shuffled by the seed.

    Groups go to the environments in turns, so that at any time their numbers are in proportion to the weights.

    Args:
        item_ids: each environment's tasks; None lets it draw one by its own seed.
        weights: each environment's share, relative to the others'.
        seed: of the order and of the episodes.
        group_size: episodes per task.
        screening_size: how many of them play first, see `rllm_gym.types.TaskGroup`.
        invalid_action_penalty: see there.
    """

    def __init__(
        self,
        item_ids: Sequence[Sequence[str] | None],
        weights: Sequence[float],
        *,
        seed: int,
        group_size: int,
        screening_size: int | None = None,
        invalid_action_penalty: float = 0.0,
    ) -> None:
        self.item_ids, self.seed = item_ids, seed
        self._group_size, self._screening_size = group_size, screening_size
        self._invalid_action_penalty = invalid_action_penalty
        self._shares = np.asarray(weights) / np.sum(weights)
        self._env_order: list[int] = []

    def groups(self, train_step: int, num_groups: int) -> list[TaskGroup]:
        """Return the train step's groups; every key is (seed, train step, group index)."""
        first = train_step * num_groups
        self._extend_order(first + num_groups)
        num_dealt = np.bincount(self._env_order[:first], minlength=len(self._shares))
        groups = []
        for k in range(num_groups):
            env_index = self._env_order[first + k]
            item = self._item(env_index, int(num_dealt[env_index]))
            num_dealt[env_index] += 1
            groups.append(self._group((self.seed, train_step, k), item, env_index))
        return groups

    def refill(self, train_step: int, round: int, num_groups: int) -> list[TaskGroup]:
        """Return groups in place of some that were dropped: tasks drawn at random, outside the epochs' order."""
        rng = np.random.default_rng(np.random.SeedSequence((self.seed, train_step, 1 + round)))
        first = (1 + round) * FIRST_REFILL  # beyond the indices of `groups`
        groups = []
        for k in range(num_groups):
            env_index = int(rng.choice(len(self._shares), p=self._shares))
            items = self.item_ids[env_index]
            item = None if items is None else items[int(rng.integers(len(items)))]
            groups.append(self._group((self.seed, train_step, first + k), item, env_index))
        return groups

    def _group(self, key: tuple[int, ...], item: str | None, env_index: int) -> TaskGroup:
        return TaskGroup(
            key, item, self._group_size, env_index,
            screening_size=self._screening_size, invalid_action_penalty=self._invalid_action_penalty,
        )  # fmt: skip

    def _extend_order(self, length: int) -> None:
        """Deal positions one by one, each to the environment that is furthest behind its share."""
        num_dealt = np.bincount(self._env_order, minlength=len(self._shares))
        for position in range(len(self._env_order), length):
            env_index = int(np.argmax(self._shares * (position + 1) - num_dealt))
            num_dealt[env_index] += 1
            self._env_order.append(env_index)

    def _item(self, env_index: int, position: int) -> str | None:
        items = self.item_ids[env_index]
        if items is None:
            return None
        epoch, k = divmod(position, len(items))
        order = np.random.default_rng(np.random.SeedSequence((self.seed, epoch))).permutation(len(items))
        return items[order[k]]


class DifficultySampler:
    """Deals what a `TaskSampler` does, with other tasks: drawn by how much they teach, each once in a train step.

    Args:
        sampler: says which environments play, and how often.
        difficulty: how likely each task is.
        horizons: returns the present ones, by the environments' names.

    Raises:
        ConfigError: an environment numbers no tasks.
    """

    def __init__(
        self,
        sampler: TaskSampler,
        difficulty: TaskDifficulty,
        horizons: Callable[[], Mapping[str, int | None]],
    ) -> None:
        if None in sampler.item_ids:
            raise ConfigError(
                "task_sampling: difficulty needs environments that number their tasks; got one that draws them by its "
                "own seed. Set uniform."
            )
        self._sampler, self._difficulty, self._horizons = sampler, difficulty, horizons
        self._dealt: set[tuple[int, str]] = set()  # in the present train step

    def groups(self, train_step: int, num_groups: int) -> list[TaskGroup]:
        """Return the train step's groups, with `TaskSampler`'s keys."""
        self._dealt.clear()
        return self._redealt(self._sampler.groups(train_step, num_groups), train_step, 0)

    def refill(self, train_step: int, round: int, num_groups: int) -> list[TaskGroup]:
        """Return groups in place of some that were dropped."""
        return self._redealt(self._sampler.refill(train_step, round, num_groups), train_step, 1 + round)

    def _redealt(self, groups: list[TaskGroup], train_step: int, round: int) -> list[TaskGroup]:
        rng = np.random.default_rng(np.random.SeedSequence((self._sampler.seed, train_step, round, 1)))
        out = []
        for group in groups:
            items = self._sampler.item_ids[group.env_index] or ()
            probability_N = self._difficulty.probabilities(train_step, group.env_index, items, self._horizons())
            is_new_N = np.array([(group.env_index, item) not in self._dealt for item in items])
            if is_new_N.any():
                probability_N = probability_N * is_new_N
            item = items[int(rng.choice(len(items), p=probability_N / probability_N.sum()))]
            self._dealt.add((group.env_index, item))
            out.append(replace(group, item_id=item))
        return out


def evaluation_groups(
    item_ids: Mapping[int, Sequence[str | int | None] | None], num_episodes: int, *, seed: int
) -> list[TaskGroup]:
    """Return groups of one episode: `num_episodes` over each environment's tasks, as evenly as can be.

    `item_ids` are by `env_index`; None lets the environment draw a task by the episode's seed.

    Where players change seats, they do so from a task to the next, and each time that a task is played again: a
    multiple of tasks times seats plays every task from every seat equally often.
    """
    groups: list[TaskGroup] = []
    for env_index, ids in item_ids.items():
        items: Sequence[str | int | None] = ids or [None]
        order = np.random.default_rng(seed).permutation(len(items))
        groups += [
            TaskGroup(
                (seed, EVALUATION_STEP, len(groups) + k),
                items[order[k % len(order)]],
                1,
                env_index,
                first_seating=k % len(order) + k // len(order),
            )
            for k in range(num_episodes)
        ]
    return groups
