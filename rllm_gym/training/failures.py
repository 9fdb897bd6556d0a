"""Episodes that failed: each is told, and too many end the run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rllm_gym.errors import TooManyFailedEpisodesError
from rllm_gym.types import Episode

if TYPE_CHECKING:
    from rllm_gym.training.algorithm import LLMAlgorithm

logger = logging.getLogger(__name__)


def check_failures(algorithm: LLMAlgorithm, played: Sequence[Episode], failed: Sequence[Episode]) -> None:
    """Say which episodes failed.

    Raises:
        TooManyFailedEpisodesError: more than `max_failed_fraction` of the episodes.
    """
    for episode in failed:
        logger.warning("dropped an episode of %s: %s", episode.item_id, episode.error)
    num_episodes, most = len(played) + len(failed), algorithm.config.max_failed_fraction
    if failed and len(failed) > most * num_episodes:
        raise TooManyFailedEpisodesError(
            f"{type(algorithm).__name__}: {len(failed)} of {num_episodes} episodes failed, more than "
            f"max_failed_fraction {most}. The first error: {failed[0].error}"
        )
