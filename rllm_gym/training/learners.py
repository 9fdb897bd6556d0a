"""The learners as the driver sees them: answers that are errors, a learner that dies, and runs without learners."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllm_gym.checkpoints import module_folder, read_policy_version
from rllm_gym.errors import LearnerDiedError

ANSWER_S = 10.0  # how long the others may take to say that they live; one may wait for the dead one


@contextlib.contextmanager
def learner_deaths(learner_group: Any, *, who: str, num_learners: int) -> Iterator[None]:
    """Raise `LearnerDiedError` in the place of whatever error the death of a learner came out as.

    RLlib's differ with the call that meets the dead learner first: Ray's, that of the collective operation in which
    another learner waited for it, or an IndexError. A dead learner takes its share of the optimizer's state with it, so
    the run ends.
    """
    try:
        yield
    except Exception as error:
        if num_learners == 0:
            raise
        results = learner_group.foreach_learner(_answer, healthy_only=False, timeout_seconds=ANSWER_S)
        dead = [result.actor_id for result in results if isinstance(result.get(), RayActorError)]
        if not dead:
            raise
        raise LearnerDiedError(
            f"{who}: learner {dead[0]} died (killed, out of memory, or crashed in native code). Go on from the last "
            "checkpoint with --resume."
        ) from error


def answers(results: Iterable[Any]) -> list[Any]:
    """Return the learners' answers; raise an error that one of them answered with, as RLlib hands it over."""
    found = [result.get() for result in results]
    for answer in found:
        if isinstance(answer, Exception):
            raise answer
    return found


def _answer(learner: Any) -> None:
    pass


class NoLearners(LearnerGroup):
    """A learner group without learners, for evaluation: holds what the samplers load of a checkpoint.

    A Hugging Face model the samplers load by themselves.

    Args:
        spec: of the policies, and of modules that only learners use.
    """

    def __init__(self, spec: MultiRLModuleSpec) -> None:  # RLlib's builds the learners
        self._policies = {id_: of for id_, of in spec.rl_module_specs.items() if not of.learner_only}
        self._state: dict[str, Any] = {}

    @override(Checkpointable)
    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        checkpoint = Path(path).parent  # RLlib gives the learner group's own folder
        weights = {}
        for id_, spec in self._policies.items():
            module = spec.build()
            module.restore_from_path(module_folder(checkpoint, id_))
            weights[id_] = module.get_state(inference_only=True)
        self._state = {COMPONENT_RL_MODULE: weights, WEIGHTS_SEQ_NO: read_policy_version(checkpoint)}

    @override(LearnerGroup)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {COMPONENT_LEARNER: self._state}

    @override(LearnerGroup)
    def foreach_learner(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    @override(LearnerGroup)
    def shutdown(self) -> None:
        self._state = {}

    def __del__(self) -> None:
        pass  # RLlib's shuts down what was never built
