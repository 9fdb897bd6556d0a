"""The death of a learner has one name, whatever error it came out as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.rllib.utils.actor_manager import CallResult, ResultOrError

from rllm_gym.errors import LearnerDiedError
from rllm_gym.training.learners import answers, learner_deaths


def learners(*found: ResultOrError) -> Any:
    """A learner group that answers so."""
    results = [CallResult(number, result, tag=None) for number, result in enumerate(found)]
    return SimpleNamespace(foreach_learner=lambda *_, **__: results)


def test_an_error_that_a_dead_learner_caused_says_that_it_died() -> None:
    found = learners(ResultOrError(result=None), ResultOrError(error=ActorDiedError()))
    with pytest.raises(LearnerDiedError) as caught, learner_deaths(found, who="GRPO", num_learners=2):
        raise RuntimeError("gloo: connection closed by peer")
    assert str(caught.value) == (
        "GRPO: learner 1 died (killed, out of memory, or crashed in native code). Go on from the last checkpoint with "
        "--resume."
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("found", [(), (ResultOrError(result=None), ResultOrError(error=ValueError("of its own")))])
def test_an_error_of_another_cause_stays_as_it_is(found: tuple[ResultOrError, ...]) -> None:
    deaths = learner_deaths(learners(*found), who="GRPO", num_learners=len(found))
    with pytest.raises(RuntimeError, match="non-finite"), deaths:
        raise RuntimeError("non-finite")


def test_what_a_learner_has_raised_is_raised_and_no_answer() -> None:
    results = learners(ResultOrError(result=3), ResultOrError(error=ValueError("no engine")))
    assert answers(learners(ResultOrError(result=3)).foreach_learner()) == [3]
    with pytest.raises(ValueError, match="no engine"):
        answers(results.foreach_learner())
