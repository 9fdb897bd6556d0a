"""The death of a learner has one name, whatever error it came out as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.rllib.utils.actor_manager import CallResult, ResultOrError

from rllm_gym.errors import LearnerDiedError
from rllm_gym.training.learner_deaths import answers, learner_deaths


def algorithm(*found: ResultOrError) -> Any:
    """An algorithm whose learners answer so; with none it learns in its own process."""

    class GRPO:
        config = SimpleNamespace(num_learners=len(found))
        learner_group = SimpleNamespace(
            foreach_learner=lambda *_, **__: [
                CallResult(number, result, tag=None) for number, result in enumerate(found)
            ]
        )

    return GRPO()


def test_an_error_that_a_dead_learner_caused_says_that_it_died() -> None:
    trained = algorithm(ResultOrError(result=None), ResultOrError(error=ActorDiedError()))
    with pytest.raises(LearnerDiedError) as caught, learner_deaths(trained):
        raise RuntimeError("gloo: connection closed by peer")
    assert str(caught.value) == (
        "GRPO: a learner died, the one of rank 1: killed from outside, for want of memory, or by native code. "
        "Go on from the last checkpoint with --resume."
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("found", [(), (ResultOrError(result=None), ResultOrError(error=ValueError("of its own")))])
def test_an_error_of_another_cause_stays_as_it_is(found: tuple[ResultOrError, ...]) -> None:
    with pytest.raises(RuntimeError, match="non-finite"), learner_deaths(algorithm(*found)):
        raise RuntimeError("non-finite")


def test_what_a_learner_has_raised_is_raised_and_no_answer() -> None:
    results = algorithm(ResultOrError(result=3), ResultOrError(error=ValueError("no engine"))).learner_group
    assert answers(algorithm(ResultOrError(result=3)).learner_group.foreach_learner()) == [3]
    with pytest.raises(ValueError, match="no engine"):
        answers(results.foreach_learner())
