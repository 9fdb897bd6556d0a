"""Checkpoints: RLlib's files, and the DeepSpeed engines' beside them, written by all learners together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable

from rllm_gym.callbacks.horizon_schedules import Stage
from rllm_gym.callbacks.opponent_pool import Pool
from rllm_gym.checkpoints import check_checkpoint, write_manifest
from rllm_gym.training.config import LLMConfig
from rllm_gym.training.learner_deaths import learner_deaths
from rllm_gym.training.side_by_side import SideBySide


class Checkpointed(SideBySide):
    """An algorithm whose checkpoints hold all that a resumed run needs."""

    env_runner_group: Any
    on_all_learners: Callable[[Callable[[Any], Any]], list[Any]]
    config: LLMConfig
    evaluation_on_start: dict[str, Any] | None
    horizon_stages: dict[str, Stage]
    opponent_pools: dict[str, Pool]

    @property
    def protocol(self) -> str:
        """In whose words it is trained: "agentgym" where an environment or the data has them, else "native"."""
        protocols = {spec.env_config.get("protocol") for spec in self.config.environments} if self.config.env else set()
        return "agentgym" if "agentgym" in protocols else "native"

    @override(Algorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().get_state(*args, **kwargs)
        state["evaluation_on_start"] = self.evaluation_on_start
        state["opponent_pools"] = {agent_id: pool.copy() for agent_id, pool in self.opponent_pools.items()}
        state["horizon_stages"] = {name: asdict(stage) for name, stage in self.horizon_stages.items()}
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.evaluation_on_start = state.get("evaluation_on_start")
        self.opponent_pools = state.get("opponent_pools", {})
        self.horizon_stages = {name: Stage(**stage) for name, stage in state.get("horizon_stages", {}).items()}

    @override(Checkpointable)
    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        with learner_deaths(self):
            path = super().save_to_path(path, **kwargs)
            # RLlib asks learner 0 alone to save; DeepSpeed's files are a collective work.
            self.on_all_learners(lambda learner: learner.save_engines(f"{path}/deepspeed"))
        # Last: it says that all is there.
        write_manifest(Path(path), training_iteration=self.training_iteration, protocol=self.protocol)
        return path

    @override(Algorithm)
    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        check_checkpoint(Path(path))
        # A checkpoint of another run may carry the number of the weights that the runners hold.
        self.env_runner_group.foreach_env_runner("forget_weights", local_env_runner=False)
        super().restore_from_path(path, *args, **kwargs)
        self.on_all_learners(lambda learner: learner.load_engines(f"{path}/deepspeed"))
        make_callback(
            "on_checkpoint_loaded",
            callbacks_objects=self.callbacks,
            callbacks_functions=self.config.callbacks_on_checkpoint_loaded,
            kwargs={"algorithm": self},
        )

    @override(Algorithm)
    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.restore_from_path(checkpoint_dir)  # fires on_checkpoint_loaded, as from_checkpoint() does
