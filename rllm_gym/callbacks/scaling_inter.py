"""ScalingInter-RL: an RLlib callback that raises the horizon (`max_episode_steps`) in stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllm_gym.errors import ConfigError

KEYS = ("type", "horizons", "steps_per_stage")


@dataclass(frozen=True)
class HorizonSchedule:
    """The horizon of each train step: `horizons[min(train_step // steps_per_stage, last)]`, the first train step being
    0.

    Source: Xi et al. 2025 (AgentGym-RL), arXiv:2509.08755, section 3.3: short interactions first, longer ones by
    stages.
    """

    horizons: tuple[int | None, ...]
    steps_per_stage: int = 1

    @classmethod
    def from_config(cls, scaling_inter: Mapping[str, Any] | None, max_episode_steps: int | None) -> HorizonSchedule:
        """Read `scaling_inter`; without it `max_episode_steps` is the horizon of all steps.

        Raises:
            ConfigError: names the key that is wrong.
        """
        if scaling_inter is None:
            if max_episode_steps is not None:
                _check_count("max_episode_steps", max_episode_steps)
            return cls((max_episode_steps,))
        if not isinstance(scaling_inter, Mapping):
            raise ConfigError(f"scaling_inter: must be a mapping with {', '.join(KEYS)}; got {scaling_inter!r}.")
        if max_episode_steps is not None:
            raise ConfigError(
                f"scaling_inter: owns the horizon; got max_episode_steps: {max_episode_steps} beside it. Remove one "
                f"of the two."
            )
        if unknown := sorted(set(scaling_inter) - set(KEYS)):
            raise ConfigError(f"scaling_inter: unknown key {unknown[0]!r}. Known keys: {', '.join(KEYS)}.")
        kind, horizons = scaling_inter.get("type"), scaling_inter.get("horizons")
        if kind not in ("fixed", "stepwise"):
            raise ConfigError(f"scaling_inter: type must be fixed or stepwise; got {kind!r}.")
        if not isinstance(horizons, (list, tuple)) or not horizons:
            raise ConfigError(
                f"scaling_inter: horizons must be a list of turns, such as [5, 10, 15]; got {horizons!r}."
            )
        for horizon in horizons:
            _check_count("scaling_inter: every horizon", horizon)
        if kind == "fixed":
            if len(horizons) != 1:
                raise ConfigError(
                    f"scaling_inter: type fixed has one horizon; got {list(horizons)}. Set type: stepwise."
                )
            return cls(tuple(horizons))
        _check_count("scaling_inter: steps_per_stage", scaling_inter.get("steps_per_stage"))
        return cls(tuple(horizons), scaling_inter["steps_per_stage"])

    def horizon(self, train_step: int) -> int | None:
        return self.horizons[min(train_step // self.steps_per_stage, len(self.horizons) - 1)]

    @property
    def last(self) -> int | None:
        return self.horizons[-1]


def _check_count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{what} must be a whole number of at least 1; got {value!r}.")


class ScalingInter(RLlibCallback):
    """Sets the algorithm's `max_episode_steps` for the train step that comes next.

    The algorithm hands its horizon to the EnvRunners with every request for episodes, so runners that were restarted or
    restored cannot hold an older one. Every `LLMConfig` algorithm runs this callback; it acts on the configuration's
    `scaling_inter`.
    """

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._set_horizon(algorithm)

    def on_train_result(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._set_horizon(algorithm)

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._set_horizon(algorithm)

    @staticmethod
    def _set_horizon(algorithm: Any) -> None:
        algorithm.max_episode_steps = algorithm.config.horizon_schedule.horizon(algorithm.training_iteration)
