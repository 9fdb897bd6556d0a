"""Two learners in processes of their own, which one test after the other has: a pair takes ten seconds to start."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.actor_manager import FaultTolerantActorManager

from rllm_gym.training.config import LLMConfig
from tests.learner.learner_helpers import make_group, module_spec


class TwoLearners:
    """Make groups of two learners, all of them in the same two processes: a new group ends the one before."""

    def __init__(self) -> None:
        self._first: LearnerGroup | None = None

    def __call__(self, config: LLMConfig) -> LearnerGroup:
        config.num_learners = 2
        if self._first is None:
            self._first = make_group(config)
            return self._first
        group = copy.copy(self._first)
        group._is_shut_down = True  # else it would end the processes as it is collected
        group.config = config.copy(copy_frozen=False)
        group._worker_manager = FaultTolerantActorManager(self._first._workers)
        begun = group.foreach_learner(partial(begin_anew, config=config), timeout_seconds=60.0)
        assert [result.get() for result in begun] == [None, None], "the test before has left its learners stuck"
        return group

    def shutdown(self) -> None:
        if self._first is not None:
            self._first.shutdown()


def begin_anew(learner: Any, config: LLMConfig) -> None:
    """Make of a learner, in its process, what it would be in a new one."""
    place = {"learner_index": learner._learner_index, "placement_group": learner._placement_group}
    learner.__class__ = config.learner_class
    learner.__init__(config=config, module_spec=module_spec(config))
    learner._set_learner_index_and_placement_group(**place)
    learner.build()
