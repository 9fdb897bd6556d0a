"""ScalingInter-RL: an RLlib callback that raises the horizon (`max_episode_steps`) in stages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllm_gym.callbacks.horizon_schedules import AdaptiveSchedule, Stage

logger = logging.getLogger(__name__)


class ScalingInter(RLlibCallback):
    """Sets the algorithm's `max_episode_steps` for the train step that comes next.

    The algorithm hands its horizon to the EnvRunners with every request for episodes, so runners that were restarted or
    restored cannot hold an older one. Every `LLMConfig` algorithm runs this callback; it acts on the configuration's
    `scaling_inter`. `stages` are what adaptive schedules have seen, by environment; checkpoints hold them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stages: dict[str, Stage] = {}

    def get_state(self) -> dict[str, Any]:
        return {name: asdict(stage) for name, stage in self.stages.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.stages = {name: Stage(**stage) for name, stage in state.items()}

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._set_horizon(algorithm)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        schedules = algorithm.config.horizon_schedules
        sampled = result.get("env_runners", {})
        for name, schedule in schedules.items():
            if isinstance(schedule, AdaptiveSchedule):
                metrics = sampled if len(schedules) == 1 else sampled.get("by_env", {}).get(name, {})
                self._observe(algorithm, name, schedule, metrics)
        self._set_horizon(algorithm)

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._set_horizon(algorithm)

    def _observe(self, algorithm: Any, name: str, schedule: AdaptiveSchedule, metrics: Mapping[str, float]) -> None:
        if not metrics.get("num_episodes"):
            return
        stage = self.stages.setdefault(name, Stage())
        failed = 1.0 - metrics["success_rate"]
        stage.success_rates.append(float(metrics["success_rate"]))
        stage.truncated_failures.append(min(1.0, metrics["horizon_fraction"] / failed) if failed > 0 else 0.0)
        if reason := schedule.reason_to_raise(stage):
            old, new = schedule.horizons[stage.index : stage.index + 2]
            logger.warning(
                "ScalingInter: %s's horizon goes from %d to %d turns after train step %d: %s.",
                name,
                old,
                new,
                algorithm.training_iteration - 1,
                reason,
            )
            self.stages[name] = Stage(stage.index + 1)

    def _set_horizon(self, algorithm: Any) -> None:
        step = algorithm.training_iteration
        algorithm.max_episode_steps = {
            name: schedule.horizon(step, self.stages.get(name))
            for name, schedule in algorithm.config.horizon_schedules.items()
        }
