"""ScalingInter-RL: an RLlib callback that raises the horizon (`max_episode_steps`) in stages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllm_gym.callbacks.horizon_schedules import AdaptiveSchedule, Stage

logger = logging.getLogger(__name__)


class ScalingInter(RLlibCallback):
    """Sets the algorithm's `max_episode_steps` for the train step that comes next.

    The algorithm hands its horizon to the EnvRunners with every request for episodes, so runners that were restarted or
    restored cannot hold an older one. Every `LLMConfig` algorithm runs this callback; it acts on the configuration's
    `scaling_inter`. What an adaptive schedule has seen is in the algorithm's `horizon_stages`, and so in checkpoints.
    """

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

    @staticmethod
    def _observe(algorithm: Any, name: str, schedule: AdaptiveSchedule, metrics: Mapping[str, float]) -> None:
        if not metrics.get("num_episodes"):
            return
        stage = algorithm.horizon_stages.setdefault(name, Stage())
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
            algorithm.horizon_stages[name] = Stage(stage.index + 1)

    @staticmethod
    def _set_horizon(algorithm: Any) -> None:
        step, stages = algorithm.training_iteration, algorithm.horizon_stages
        algorithm.max_episode_steps = {
            name: schedule.horizon(step, stages.get(name))
            for name, schedule in algorithm.config.horizon_schedules.items()
        }
