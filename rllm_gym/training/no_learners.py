"""What stands for learners where a policy is only played."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO


class NoLearners(LearnerGroup):
    """Stands for RLlib's `LearnerGroup`: holds what the samplers load of a checkpoint, and nothing of before.

    A Hugging Face model the samplers load by themselves.

    Args:
        spec: of the policies, and of what only learners use.
    """

    def __init__(self, spec: MultiRLModuleSpec) -> None:  # RLlib's builds the learners
        self._policies = {id_: of for id_, of in spec.rl_module_specs.items() if not of.learner_only}
        self._state: dict[str, Any] = {}

    @override(Checkpointable)
    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        learner = Path(path) / COMPONENT_LEARNER
        version = pickle.loads((learner / f"{self.STATE_FILE_NAME}.pkl").read_bytes())[WEIGHTS_SEQ_NO]
        weights = {}
        for id_, spec in self._policies.items():
            module = spec.build()
            module.restore_from_path(learner / COMPONENT_RL_MODULE / id_)
            weights[id_] = module.get_state(inference_only=True)
        self._state = {COMPONENT_RL_MODULE: weights, WEIGHTS_SEQ_NO: version}

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
