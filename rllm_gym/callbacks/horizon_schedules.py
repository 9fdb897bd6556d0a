"""The horizon of each train step: fixed, raised in steps, or raised when there is nothing more to learn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from rllm_gym.errors import ConfigError, nearest


@dataclass
class Stage:
    """Where an adaptive schedule stands: its stage, and what was seen in it, train step by train step."""

    index: int = 0
    success_rates: list[float] = field(default_factory=list)
    truncated_failures: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class HorizonSchedule:
    """The horizon of each train step: `horizons[min(train_step // steps_per_stage, last)]`, train steps counted from 0.

    Source: Xi et al. 2025 (AgentGym-RL), arXiv:2509.08755, section 3.3: short interactions first, longer ones in
    stages.
    """

    horizons: tuple[int | None, ...]
    steps_per_stage: int = 1

    def stage(self, train_step: int, stage: Stage | None = None) -> int:
        return min(train_step // self.steps_per_stage, len(self.horizons) - 1)

    def horizon(self, train_step: int, stage: Stage | None = None) -> int | None:
        return self.horizons[self.stage(train_step, stage)]

    @property
    def last(self) -> int | None:
        return self.horizons[-1]


@dataclass(frozen=True)
class AdaptiveSchedule:
    """Raises the horizon when the current one has nothing more to teach.

    After at least `min_steps_per_stage` train steps at a horizon, the next one follows

    - when the success rate has stopped rising: its mean over the last `window` train steps is less than
      `min_improvement` above its mean over the `window` steps before (both at this horizon); or
    - when the horizon is the reason for failures: over the last `window` steps it cut off more than
      `max_truncated_failures` of the failed episodes (None: never; set it where a failure can also end an episode).
    """

    horizons: tuple[int, ...]
    min_steps_per_stage: int
    window: int = 5
    min_improvement: float = 0.02
    max_truncated_failures: float | None = None

    def stage(self, train_step: int, stage: Stage | None = None) -> int:
        return 0 if stage is None else stage.index

    def horizon(self, train_step: int, stage: Stage | None = None) -> int:
        return self.horizons[self.stage(train_step, stage)]

    @property
    def last(self) -> int:
        return self.horizons[-1]

    def reason_to_raise(self, stage: Stage) -> str | None:
        """Return why the next stage should begin, or None."""
        if stage.index == len(self.horizons) - 1 or len(stage.success_rates) < self.min_steps_per_stage:
            return None
        truncated = float(np.mean(stage.truncated_failures[-self.window :]))
        if self.max_truncated_failures is not None and truncated > self.max_truncated_failures:
            return f"the horizon cut off {truncated:.0%} of the failed episodes"
        if len(stage.success_rates) < 2 * self.window:
            return None
        before = float(np.mean(stage.success_rates[-2 * self.window : -self.window]))
        now = float(np.mean(stage.success_rates[-self.window :]))
        if now - before < self.min_improvement:
            return f"the success rate has stopped rising ({before:.3f}, then {now:.3f})"
        return None


Schedule: TypeAlias = HorizonSchedule | AdaptiveSchedule


def last_horizon(schedules: Mapping[str, Schedule], name: str) -> int | None:
    """Return an environment's horizon at the end of training; of one that is only evaluated, the longest of all."""
    last = {of_env: schedule.last for of_env, schedule in schedules.items()}
    return last[name] if name in last else max(last.values(), key=lambda horizon: horizon or math.inf)


_KEYS = {
    "fixed": ("type", "horizons"),
    "stepwise": ("type", "horizons", "steps_per_stage"),
    "adaptive": ("type", *(f.name for f in fields(AdaptiveSchedule))),
}


def parse_schedules(
    scaling_inter: Mapping[str, Any] | None, max_episode_steps: int | None, names: Iterable[str]
) -> dict[str, Schedule]:
    """Return each environment's schedule.

    Args:
        scaling_inter: one schedule for all environments, or {environment's name: schedule}.
        max_episode_steps: without `scaling_inter` the horizon of all train steps; None leaves it to the environment.
        names: of the run's environments.

    Raises:
        ConfigError: names the key that is wrong.
    """
    names = list(names)
    if scaling_inter is None:
        if max_episode_steps is not None:
            _check_count("max_episode_steps", max_episode_steps)
        return dict.fromkeys(names, HorizonSchedule((max_episode_steps,)))
    if not isinstance(scaling_inter, Mapping):
        raise ConfigError(
            f"scaling_inter: must be a mapping with type, horizons and steps_per_stage; got {scaling_inter!r}."
        )
    if max_episode_steps is not None:
        raise ConfigError(
            f"scaling_inter: owns the horizon; got max_episode_steps: {max_episode_steps} beside it. Remove one of the "
            "two."
        )
    if not scaling_inter or not all(isinstance(value, Mapping) for value in scaling_inter.values()):
        return dict.fromkeys(names, _parse_schedule("scaling_inter", scaling_inter))
    for name in scaling_inter:
        if name not in names:
            raise ConfigError(
                f"scaling_inter: no environment of the run has the name {name!r}; did you mean "
                f"{nearest(str(name), names)!r}?"
            )
    if missing := [name for name in names if name not in scaling_inter]:
        raise ConfigError(f"scaling_inter: the environment {missing[0]!r} has no schedule. Add one under its name.")
    return {name: _parse_schedule(f"scaling_inter: {name}", scaling_inter[name]) for name in names}


def _parse_schedule(who: str, given: Mapping[str, Any]) -> Schedule:
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        unknown = [key for key in given if key not in _KEYS["adaptive"] and key not in _KEYS["stepwise"]]
        if unknown and "type" not in given:
            raise ConfigError(f"{who}: unknown key {unknown[0]!r}. Known keys: {', '.join(_KEYS['stepwise'])}.")
        raise ConfigError(f"{who}: type must be fixed, stepwise or adaptive; got {kind!r}.")
    if unknown := sorted(set(given) - set(_KEYS[kind])):
        raise ConfigError(f"{who}: unknown key {unknown[0]!r} with type {kind}. Known keys: {', '.join(_KEYS[kind])}.")
    horizons = given.get("horizons")
    if not isinstance(horizons, (list, tuple)) or not horizons:
        raise ConfigError(f"{who}: horizons must be a list of turns, such as [5, 10, 15]; got {horizons!r}.")
    for horizon in horizons:
        _check_count(f"{who}: every horizon", horizon)
    if kind == "fixed":
        if len(horizons) != 1:
            raise ConfigError(f"{who}: type fixed has one horizon; got {list(horizons)}. Set type: stepwise.")
        return HorizonSchedule(tuple(horizons))
    if kind == "stepwise":
        _check_count(f"{who}: steps_per_stage", given.get("steps_per_stage"))
        return HorizonSchedule(tuple(horizons), given["steps_per_stage"])
    _check_count(f"{who}: min_steps_per_stage", given.get("min_steps_per_stage"))
    _check_count(f"{who}: window", given.get("window", 1))
    for name in ("min_improvement", "max_truncated_failures"):
        value = given.get(name)
        if name in given and value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ConfigError(f"{who}: {name} must be a number; got {value!r}.")
    options = {name: value for name, value in given.items() if name not in ("type", "horizons")}
    return AdaptiveSchedule(tuple(horizons), **options)


def _check_count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{what} must be a whole number of at least 1; got {value!r}.")
