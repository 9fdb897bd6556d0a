"""A learner that dies takes its share of the optimizer's state with it: the run ends, with a line that says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from ray.exceptions import RayActorError

from rllm_gym.errors import LearnerDiedError

ANSWER_S = 10.0  # how long the others may take to say that they live; one may wait for the dead one


@contextlib.contextmanager
def learner_deaths(algorithm: Any) -> Iterator[None]:
    """Raise `LearnerDiedError` in the place of whatever error the death of a learner came out as.

    RLlib's differ with the call that meets the dead learner first: Ray's, that of the collective operation in which
    another learner waited for it, or an IndexError.
    """
    try:
        yield
    except Exception as error:
        if algorithm.config.num_learners == 0:
            raise
        results = algorithm.learner_group.foreach_learner(_answer, healthy_only=False, timeout_seconds=ANSWER_S)
        dead = [result.actor_id for result in results if isinstance(result.get(), RayActorError)]
        if not dead:
            raise
        raise LearnerDiedError(
            f"{type(algorithm).__name__}: a learner died, the one of rank {dead[0]}: killed "
            "from outside, for want of memory, or by native code. Go on from the last checkpoint with --resume."
        ) from error


def answers(results: Iterable[Any]) -> list[Any]:
    """Return what learners have answered; raises what one of them has raised, which RLlib hands over as an answer."""
    found = [result.get() for result in results]
    for answer in found:
        if isinstance(answer, Exception):
            raise answer
    return found


def _answer(learner: Any) -> None:
    pass
