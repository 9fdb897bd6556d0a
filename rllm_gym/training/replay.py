"""What happens when an EnvRunner dies: its groups are played again, one by one, to find the one that kills."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rllm_gym.errors import RllmGymError, TooManyFailedEpisodesError
from rllm_gym.rollout.sample_result import SampleResult
from rllm_gym.types import TaskGroup

if TYPE_CHECKING:
    from rllm_gym.training.algorithm import LLMAlgorithm

logger = logging.getLogger(__name__)

Shares = Mapping[int, list[TaskGroup]]  # by EnvRunner
PlayShares = Callable[[Shares], tuple[list[SampleResult], list[TaskGroup]]]  # returns results, and what was lost


def replay(
    algorithm: LLMAlgorithm, lost: list[TaskGroup], play: PlayShares, *, max_dropped: float
) -> list[SampleResult]:
    """Play the groups of EnvRunners that died again, each alone on a runner.

    Where another runner dies the group has killed two, and is dropped and counted.

    Args:
        lost: the groups that dead runners were playing.
        play: plays groups on runners.
        max_dropped: how many groups may be dropped.

    Raises:
        TooManyFailedEpisodesError: more groups than that killed two runners.
        RllmGymError: no runner came back in time.
    """
    logger.error("an EnvRunner died; the %d groups that it had are played again, one by one.", len(lost))
    results: list[SampleResult] = []
    left, dropped = list(lost), 0
    while left:
        runner_ids = await_runners(algorithm)
        alone, left = left[: len(runner_ids)], left[len(runner_ids) :]
        played, killers = play({runner_id: [group] for runner_id, group in zip(runner_ids, alone, strict=False)})
        results += played
        for group in killers:
            name = algorithm.environments[group.env_index].name
            logger.error("dropped the group %s of %s (%s): it killed two EnvRunners.", group.key, name, group.item_id)
        dropped += len(killers)
        algorithm.num_groups_killed_runners += len(killers)
        if dropped > max_dropped:
            raise TooManyFailedEpisodesError(
                f"{type(algorithm).__name__}: {dropped} groups of episodes killed two EnvRunners each, more than "
                f"max_failed_fraction {algorithm.config.max_failed_fraction}. The runners' errors are above."
            )
    return results


def await_runners(algorithm: LLMAlgorithm) -> list[int]:
    """Return the living runners; where there is none, wait until RLlib has brought one back."""
    deadline = time.monotonic() + algorithm.config.env_runner_restore_timeout_s
    while True:
        algorithm.bring_back_env_runners()
        if runner_ids := algorithm.runner_ids():
            return runner_ids
        if time.monotonic() > deadline:
            raise RllmGymError(
                f"{type(algorithm).__name__}: no EnvRunner came back in time; env_runner_restore_timeout_s is "
                f"{algorithm.config.env_runner_restore_timeout_s}. Its errors are above."
            )
        time.sleep(1.0)
