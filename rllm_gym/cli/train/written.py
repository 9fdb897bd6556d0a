"""Checks what is written in an experiment without loading Ray or torch, so that a mistake is told at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rllm_gym.callbacks.horizon_schedules import Schedule, schedules_of
from rllm_gym.cli.train.experiment import Experiment
from rllm_gym.cli.train.source import ExperimentError, KeyPath, one_line
from rllm_gym.cli.train.sweeps import SCHEDULERS, combinations, find_samplers, sampler_fault, values_of
from rllm_gym.errors import ConfigError, nearest
from rllm_gym.options import UNSET, options_of, table_of, unknown_option
from rllm_gym.options.bounds import Count, CountOrZero
from rllm_gym.options.from_rllib import ALIASES
from rllm_gym.options.values import type_fault
from rllm_gym.registration import normalize_env_id
from rllm_gym.rollout.engines import ONLY_PLAYS
from rllm_gym.rollout.environments import (
    EnvironmentSpec,
    check_evaluation,
    environments_of,
    evaluated_splits,
    make_text_env,
)
from rllm_gym.training.metrics import episode_metrics

# What every result offers to `stop` at its top; below `env_runners/` and `evaluation/` the names are known too.
RESULT_KEYS = (
    "training_iteration",
    "time_total_s",
    "time_since_restore",
    "iterations_since_restore",
    "max_episode_steps",
    "policy_version",
    "num_groups",
    "num_groups_dropped",
    "num_env_steps_sampled_lifetime",
    "epoch",
)
RESULT_GROUPS = ("env_runners", "learners", "evaluation", "evaluation_on_start", "timers", "fault_tolerance")
# Tune's `CheckpointConfig`.
CHECKPOINT_OPTIONS: dict[str, Any] = {
    "num_to_keep": Count | None,
    "checkpoint_score_attribute": str | None,
    "checkpoint_score_order": Literal["max", "min"] | None,
    "checkpoint_frequency": CountOrZero | None,
    "checkpoint_at_end": bool | None,
}


class WrittenConfig:
    """A method's options as they are written, with the table's defaults: what can be known without its code."""

    env: Any
    env_config: Mapping[str, Any]
    scaling_inter: Mapping[str, Any] | None
    max_episode_steps: int | None
    evaluation_interval: int | None
    evaluation_splits: Sequence[str]

    def __init__(self, table: type, written: Mapping[str, Any]) -> None:
        for option in options_of(table).values():
            setattr(self, option.name, None if option.default is UNSET else option.default)
        vars(self).update({"env_config": {}, **written})

    @property
    def environments(self) -> list[EnvironmentSpec]:
        return environments_of(self.env, self.env_config)

    @property
    def horizon_schedules(self) -> dict[str, Schedule]:
        return schedules_of(self.scaling_inter, self.max_episode_steps, [spec.name for spec in self.environments])


def check_written(experiment: Experiment) -> dict[str, Any]:
    """Check everything that can be known without Ray; returns `config` under the names that RLlib stores, with `env`.

    The options of a method of one's own are not known before its code is loaded.

    Raises:
        ExperimentError: one line per fault.
    """
    faults = _stop_faults(experiment) + _checkpoint_faults(experiment) + _scheduler_faults(experiment)
    config = _canonical(experiment, faults)
    table = table_of(experiment.run)
    if table is not None:
        faults += option_faults(experiment, config, {name: option.hint for name, option in options_of(table).items()})
        faults[:0] = env_faults(experiment, table)
        if reason := ONLY_PLAYS.get(str(config.get("engine"))):
            faults.append(experiment.source.fault(("config", "engine"), reason))
    config["env"] = _env_id(experiment, faults)
    if faults:
        raise ExperimentError("\n".join(faults))
    if table is not None:
        configs = [WrittenConfig(table, written) for written in combinations(config)]
        for written in configs:
            check_schedules(experiment, written)
        check_environments(experiment, configs)
    return config


# --- stop and checkpoint_config ---


def flat_keys(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, keys joined by a slash, as Tune does for results."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= flat_keys(value, f"{name}/") if isinstance(value, dict) else {name: value}
    return flat


def _stop_faults(experiment: Experiment) -> list[str]:
    faults = []
    for name, value in flat_keys(experiment.stop).items():
        first = name.partition("/")[0]
        path = ("stop", name) if ("stop", name) in experiment.source.labels else ("stop", first)
        if reason := _unknown_result(name):
            faults.append(experiment.source.fault(path, reason))
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            faults.append(experiment.source.fault(path, f"stop: {name} must be a number; got {value!r}."))
    return faults


def _unknown_result(name: str) -> str | None:
    first, slash, rest = name.partition("/")
    if not slash:
        if name in RESULT_KEYS:
            return None
        return f"stop: no result has the key {name!r}; did you mean {nearest(name, RESULT_KEYS)!r}?"
    if first not in RESULT_GROUPS:
        return f"stop: no result has the key {name!r}; did you mean {nearest(first, RESULT_GROUPS) + '/' + rest!r}?"
    known = [*episode_metrics([], []), "num_episodes_lifetime", "num_env_steps_sampled_lifetime", "horizon"]
    known += ["loss", "accuracy", "margin"]  # of held-out data
    known += ["nash_conv", "exploitability", "illegal_probability"]  # of games
    split, _, leaf = rest.rpartition("/")
    if first in ("env_runners", "evaluation", "evaluation_on_start") and leaf not in known:
        right = "/".join(part for part in (first, split, nearest(leaf, known)) if part)
        return f"stop: no result has the key {name!r}; did you mean {right!r}?"
    return None


def _checkpoint_faults(experiment: Experiment) -> list[str]:
    faults = []
    for name, value in experiment.checkpoint_config.items():
        path = ("checkpoint_config", name)
        if name not in CHECKPOINT_OPTIONS:
            hint = nearest(name, CHECKPOINT_OPTIONS)
            reason: str | None = f"checkpoint_config: unknown key {name!r}; did you mean {hint!r}?"
        else:
            reason = type_fault(f"checkpoint_config.{name}", value, CHECKPOINT_OPTIONS[name])
        if reason:
            faults.append(experiment.source.fault(path, reason))
    return faults


def _scheduler_faults(experiment: Experiment) -> list[str]:
    if not experiment.scheduler:
        return []
    fault, kind, metric = experiment.source.fault, experiment.scheduler.get("type"), experiment.scheduler.get("metric")
    if kind not in SCHEDULERS:
        return [fault(("scheduler",), f"scheduler: type must be one of {', '.join(SCHEDULERS)}; got {kind!r}.")]
    if isinstance(metric, str) and (reason := _unknown_result(metric)):
        return [fault(("scheduler", "metric"), reason.replace("stop:", "scheduler: metric:", 1))]
    return []


# --- config ---


def _canonical(experiment: Experiment, faults: list[str]) -> dict[str, Any]:
    """Return config under the names that RLlib stores: it takes `callbacks` for `callbacks_class`, and a few more."""
    config: dict[str, Any] = {}
    labels = experiment.source.labels
    for key, value in experiment.config.items():
        name = ALIASES.get(key, key)
        if name in config:
            faults.append(
                experiment.source.fault(("config", key), f"config: {key!r} means {name!r}, which is set already.")
            )
        if ("config", key) in labels:
            labels[("config", name)] = labels[("config", key)]
        config[name] = value
    return config


def option_faults(experiment: Experiment, config: Mapping[str, Any], hints: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the names and the values of options, a line each."""
    faults = []
    for name, value in config.items():
        if reason := unknown_option(name, hints):
            at = "config: " if reason.startswith("unknown") else "config."
            faults.append(experiment.source.fault(("config", name), at + reason))
        else:
            faults += _value_faults(experiment, name, value, hints[name])
    return faults


def _value_faults(experiment: Experiment, name: str, value: Any, hint: Any) -> list[str]:
    source = experiment.source
    faults = []
    for path, kind, arguments in find_samplers(value, ("config", name)):
        if reason := sampler_fault(kind, arguments):
            faults.append(source.fault(path, f"{'.'.join(map(str, path))}: {reason}"))
    if faults:
        return faults
    found = dict.fromkeys(type_fault(f"config.{name}", candidate, hint) for candidate in values_of(value))
    return [source.fault(("config", name), reason) for reason in found if reason]


def env_faults(experiment: Experiment, options: Any) -> list[str]:
    """Return that the environment is missing, where a method's table or configuration needs one."""
    if experiment.env is not None or not options.needs_env:
        return []
    missing = "`env` is missing: the environment's id, for example `env: rllm_gym/TextCraft-v0`."
    return [experiment.source.fault((), missing)]


def _env_id(experiment: Experiment, faults: list[str]) -> Any:
    """Return the environment's full id; of several the list as it stands, for its entries are checked with the rest."""
    if experiment.env is None:
        return None
    try:
        if not isinstance(experiment.env, str):
            environments_of(experiment.env, {})
            return experiment.env
        return normalize_env_id(experiment.env)
    except ConfigError as error:
        faults.append(experiment.source.fault(("env",), error))
        return experiment.env


def check_schedules(experiment: Experiment, config: Any) -> None:
    """Make sure of the horizons; the message is about fewer keys than that of RLlib's own checks."""
    try:
        config.horizon_schedules  # noqa: B018
    except ConfigError as error:
        raise ExperimentError(experiment.source.fault(key_in(error, experiment.config), error)) from error


def key_in(error: Exception, written: Mapping[str, Any]) -> KeyPath:
    """Return the path of the option that a message is about: the first one that it names and that was written."""
    text = str(error)
    places = {name: found.start() for name in written if (found := re.search(rf"\b{re.escape(name)}\b", text))}
    return ("config", min(places, key=lambda name: places[name])) if places else ("config",)


# --- what the configuration points to ---


def check_environments(experiment: Experiment, configs: Sequence[Any]) -> None:
    """Make every environment once for every `env_config`, at the text level, and look at what is evaluated."""
    source = experiment.source
    tried: list[Any] = []
    for config in configs if experiment.env is not None else ():
        for k, spec in enumerate(config.environments):
            if spec in tried:
                continue
            tried.append(spec)
            try:
                env = make_text_env(spec)
            except Exception as error:  # an environment's constructor may raise anything
                raise ExperimentError(source.fault(_env_path(experiment, k, error), _env_text(error))) from error
            try:
                if not _speaks_text(env):
                    raise ExperimentError(
                        source.fault(
                            ("env",), f"env: must be a text environment; {spec.env} acts on {env.action_space}."
                        )
                    )
            finally:
                env.close()
        evaluation = (config.environments, evaluated_splits(config))
        if evaluation not in tried:
            tried.append(evaluation)
            try:
                check_evaluation(config)
            except Exception as error:  # as above, for another split
                path = _env_path(experiment, None, error, otherwise=("config", "evaluation_splits"))
                raise ExperimentError(source.fault(path, _env_text(error))) from error


def _env_text(error: Exception) -> str:
    text = one_line(error)
    return text if isinstance(error, ConfigError) else f"env: cannot be made: {type(error).__name__}: {text}"


def _env_path(
    experiment: Experiment, k: int | None, error: Exception, otherwise: KeyPath = ("config", "env_config")
) -> KeyPath:
    """Return the path of the key of `env_config` that a message names.

    Args:
        k: which of several environments it is about; None is any.
        otherwise: the path where it names none.
    """
    env, common = experiment.env, experiment.config.get("env_config") or {}
    places: list[tuple[KeyPath, Mapping[str, Any]]] = [(("config", "env_config"), common)]
    for index, entry in enumerate(env if isinstance(env, list) else ()):
        if k in (index, None):
            places.insert(0, (("env", index, "env_config"), entry.get("env_config") or {}))
    for path, env_config in places:
        for key in env_config:
            if re.search(rf"\b{re.escape(str(key))}\b", str(error)):
                return (*path, key)
    return otherwise


def _speaks_text(env: Any) -> bool:
    from gymnasium.spaces import Text

    from rllm_gym.spaces import TokenSequence

    if hasattr(env, "possible_agents"):
        return True  # several agents; their environment checks itself
    return isinstance(env.action_space, (Text, TokenSequence))
