"""Checks an experiment before Ray starts: every fault becomes one line with the place where it was written."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.cli.experiment import Experiment
from rllm_gym.cli.options import option_hints, takes_object, type_fault, unknown_option
from rllm_gym.cli.passed_on import passed_on_faults
from rllm_gym.cli.source import ExperimentError, KeyPath, one_line
from rllm_gym.cli.sweeps import candidates, combinations, find_samplers, is_sampler, make_scheduler, sampler_fault
from rllm_gym.errors import ConfigError, nearest
from rllm_gym.importing import import_object

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


@dataclass
class Checked:
    """An experiment that may run.

    Args:
        algorithm: the method's class.
        combinations: what was written, for every combination of a sweep's candidates; one without a sweep.
        configs: a validated `AlgorithmConfig` for each of them.
        config: what Tune gets: the keys as written, objects in place of their "module:name".
    """

    experiment: Experiment
    algorithm: Any
    combinations: list[dict[str, Any]]
    configs: list[Any]
    config: dict[str, Any]


def check_experiment(experiment: Experiment, *, allow_lookup: bool) -> Checked:
    """Check everything that can be known without Ray.

    Args:
        allow_lookup: look for `base_model` on the hub if it is neither a folder nor cached.

    Raises:
        ExperimentError: one line per fault.
    """
    from rllm_gym.algorithms.registry import get_algorithm_class

    faults: list[str] = []
    source = experiment.source
    faults += _stop_faults(experiment) + _checkpoint_faults(experiment) + _scheduler_faults(experiment)
    try:
        algorithm = get_algorithm_class(experiment.run)
    except ConfigError as error:
        raise ExperimentError("\n".join([source.fault(("run",), error), *faults])) from error
    default = algorithm.get_default_config()
    if experiment.env is None and default.needs_env:
        missing = "`env` is missing: the environment's id, for example `env: rllm_gym/TextCraft-v0`."
        raise ExperimentError("\n".join([source.fault((), missing), *faults]))
    hints = option_hints(default)
    config = _canonical(experiment, faults)
    for name, value in config.items():
        if reason := unknown_option(name, hints):
            faults.append(source.fault(("config", name), reason))
        else:
            faults += _value_faults(experiment, name, value, hints[name])
    env_id = _env_id(experiment, faults)
    if faults:
        raise ExperimentError("\n".join(faults))
    config = {name: _with_objects(value, hints[name]) for name, value in config.items()}
    config["env"] = env_id
    checked = Checked(experiment, algorithm, combinations(config), [], config)
    checked.configs = [_validated(checked, combination) for combination in checked.combinations]
    _check_environments(checked)
    _check_base_models(checked, allow_lookup)
    return checked


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
    from rllm_gym.training.metrics import episode_metrics

    first, slash, rest = name.partition("/")
    if not slash:
        if name in RESULT_KEYS:
            return None
        return f"stop: no result has the key {name!r}; did you mean {nearest(name, RESULT_KEYS)!r}?"
    if first not in RESULT_GROUPS:
        return f"stop: no result has the key {name!r}; did you mean {nearest(first, RESULT_GROUPS) + '/' + rest!r}?"
    known = [*episode_metrics([], []), "num_episodes_lifetime", "num_env_steps_sampled_lifetime", "horizon"]
    known += ["loss", "accuracy", "margin"]  # of held-out data
    split, _, leaf = rest.rpartition("/")
    if first in ("env_runners", "evaluation", "evaluation_on_start") and leaf not in known:
        right = "/".join(part for part in (first, split, nearest(leaf, known)) if part)
        return f"stop: no result has the key {name!r}; did you mean {right!r}?"
    return None


def _checkpoint_faults(experiment: Experiment) -> list[str]:
    from ray.tune import CheckpointConfig

    faults = []
    hints = typing.get_type_hints(CheckpointConfig)
    known = {f.name: hints[f.name] for f in dataclasses.fields(CheckpointConfig) if not f.name.startswith("_")}
    for name, value in experiment.checkpoint_config.items():
        path = ("checkpoint_config", name)
        if name not in known:
            reason = f"checkpoint_config: unknown key {name!r}; did you mean {nearest(name, known)!r}?"
            faults.append(experiment.source.fault(path, reason))
        elif fault := type_fault(name, value, known[name]):
            faults.append(experiment.source.fault(path, fault.replace("config.", "checkpoint_config.", 1)))
    if not faults:
        try:
            CheckpointConfig(**experiment.checkpoint_config)
        except ValueError as error:
            faults.append(experiment.source.fault(("checkpoint_config",), f"checkpoint_config: {error}"))
    return faults


def _scheduler_faults(experiment: Experiment) -> list[str]:
    try:
        scheduler = make_scheduler(experiment.scheduler)
    except ConfigError as error:
        return [experiment.source.fault(("scheduler",), one_line(error))]
    if scheduler is not None and (reason := _unknown_result(scheduler.metric)):
        return [experiment.source.fault(("scheduler", "metric"), reason.replace("stop:", "scheduler: metric:", 1))]
    return []


# --- config ---


def _canonical(experiment: Experiment, faults: list[str]) -> dict[str, Any]:
    """Return config under the names that RLlib stores: it takes `callbacks` for `callbacks_class`, and a few more."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    config: dict[str, Any] = {}
    labels = experiment.source.labels
    for key, value in experiment.config.items():
        name = AlgorithmConfig._translate_special_keys(key, warn_deprecated=False)
        if name in config:
            faults.append(
                experiment.source.fault(("config", key), f"config: {key!r} means {name!r}, which is set already.")
            )
        if ("config", key) in labels:
            labels[("config", name)] = labels[("config", key)]
        config[name] = value
    return config


def _value_faults(experiment: Experiment, name: str, value: Any, hint: Any) -> list[str]:
    source = experiment.source
    faults = []
    for path, kind, arguments in find_samplers(value, ("config", name)):
        if reason := sampler_fault(kind, arguments):
            faults.append(source.fault(path, f"{'.'.join(map(str, path))}: {reason}"))
    if faults:
        return faults
    values = candidates(*next(iter(value.items()))) if is_sampler(value) else [value]
    found: list[tuple[KeyPath, str]] = []
    for candidate in values:
        reason = type_fault(name, candidate, hint)
        if reason:
            found.append(((name,), reason))
        elif name != "engine_options" or experiment.config.get("engine", "vllm") == "vllm":
            found += passed_on_faults(name, candidate)  # what they mean to another engine, that one says
    return [source.fault(("config", *path), reason) for path, reason in dict.fromkeys(found)]


def _with_objects(value: Any, hint: Any) -> Any:
    if not takes_object(hint):
        return value
    if isinstance(value, list):
        return [_with_objects(part, hint) for part in value]
    return import_object("config:", value) if isinstance(value, str) else value


def _env_id(experiment: Experiment, faults: list[str]) -> Any:
    """Return the environment's full id; of several the list as it stands, for its entries are checked with the rest."""
    from rllm_gym import normalize_env_id
    from rllm_gym.rollout.environments import environments_of

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


def _validated(checked: Checked, combination: dict[str, Any]) -> Any:
    """Return the configuration object, after its own checks."""
    config = checked.algorithm.get_default_config()
    try:
        config.update_from_dict(combination)
        config.horizon_schedules  # noqa: B018  first: its message is about fewer keys than that of RLlib's checks
        config.validate()
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise ExperimentError(checked.experiment.source.fault(_key_in(error, combination), error)) from error
    return config


def _key_in(error: Exception, combination: dict[str, Any]) -> KeyPath:
    """Return the path of the option that a message is about: the first one that it names and that was written."""
    text = str(error)
    places = {name: found.start() for name in combination if (found := re.search(rf"\b{re.escape(name)}\b", text))}
    return ("config", min(places, key=lambda name: places[name])) if places else ("config",)


# --- what the configuration points to ---


def _check_environments(checked: Checked) -> None:
    """Make every environment once for every `env_config`, at the text level, and look at what is evaluated."""
    from rllm_gym.rollout.environments import check_evaluation, evaluated_splits, make_text_env

    source = checked.experiment.source
    tried: list[Any] = []
    for config in checked.configs if checked.config["env"] is not None else ():
        for k, spec in enumerate(config.environments):
            if spec in tried:
                continue
            tried.append(spec)
            try:
                env = make_text_env(spec)
            except Exception as error:  # an environment's constructor may raise anything
                raise ExperimentError(source.fault(_env_path(checked, k, error), _env_text(error))) from error
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
                path = _env_path(checked, None, error, otherwise=("config", "evaluation_splits"))
                raise ExperimentError(source.fault(path, _env_text(error))) from error


def _env_text(error: Exception) -> str:
    text = one_line(error)
    return text if isinstance(error, ConfigError) else f"env: cannot be made: {type(error).__name__}: {text}"


def _env_path(
    checked: Checked, k: int | None, error: Exception, otherwise: KeyPath = ("config", "env_config")
) -> KeyPath:
    """Return the path of the key of `env_config` that a message names.

    Args:
        k: which of several environments it is about; None is any.
        otherwise: the path where it names none.
    """
    env, common = checked.experiment.env, checked.experiment.config.get("env_config") or {}
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


def _check_base_models(checked: Checked, allow_lookup: bool) -> None:
    from rllm_gym.models import resolve_base_model

    for name in dict.fromkeys(config.base_model for config in checked.configs):
        try:
            found = resolve_base_model(name, allow_lookup=allow_lookup)
            if checked.config.get("base_model") == name and Path(name).expanduser().is_dir() and name != "tiny":
                checked.config["base_model"] = str(Path(found).absolute())  # workers may run in other folders
        except ConfigError as error:
            raise ExperimentError(checked.experiment.source.fault(("config", "base_model"), error)) from error
