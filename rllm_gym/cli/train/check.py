"""Checks an experiment before Ray starts: every fault becomes one line with the place where it was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.cli.train.experiment import Experiment
from rllm_gym.cli.train.library_options import passed_on_faults
from rllm_gym.cli.train.source import ExperimentError, one_line
from rllm_gym.cli.train.sweeps import combinations, make_scheduler, values_of
from rllm_gym.cli.train.written import check_environments, check_schedules, env_faults, key_in, option_faults
from rllm_gym.errors import ConfigError
from rllm_gym.importing import import_object
from rllm_gym.options import options_of, table_of
from rllm_gym.options.values import takes_object


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


def check_experiment(experiment: Experiment, config: dict[str, Any], *, allow_lookup: bool) -> Checked:
    """Check everything else that can be known without starting Ray.

    Args:
        config: what `check_written` has returned.
        allow_lookup: look for `base_model` on the hub if it is neither a folder nor cached.

    Raises:
        ExperimentError: one line per fault.
    """
    from rllm_gym.algorithms.registry import get_algorithm_class

    source = experiment.source
    try:
        algorithm = get_algorithm_class(experiment.run)
    except ConfigError as error:
        raise ExperimentError(source.fault(("run",), error)) from error
    default = algorithm.get_default_config()
    hints: dict[str, Any] = {name: option.hint for name, option in options_of(type(default)).items()}
    faults = _scheduler_faults(experiment)
    is_own = table_of(experiment.run) is None  # of which nothing was known before its code was loaded
    if is_own:
        # Its configuration may have options that are attributes and no more.
        hints = {name: Any for name in vars(default) if not name.startswith("_")} | hints
        faults += option_faults(experiment, {k: v for k, v in config.items() if k != "env"}, hints)
        faults[:0] = env_faults(experiment, default)
    for name, value in config.items():
        faults += _passed_on_faults(experiment, name, value)
    if faults:
        raise ExperimentError("\n".join(faults))
    config = {name: _with_objects(value, hints[name]) for name, value in config.items()}
    checked = Checked(experiment, algorithm, combinations(config), [], config)
    checked.configs = [_validated(checked, combination) for combination in checked.combinations]
    if is_own:
        check_environments(experiment, checked.configs)
    _check_base_models(checked, allow_lookup)
    return checked


def _scheduler_faults(experiment: Experiment) -> list[str]:
    try:
        make_scheduler(experiment.scheduler)
    except ConfigError as error:
        return [experiment.source.fault(("scheduler",), one_line(error))]
    return []


def _passed_on_faults(experiment: Experiment, name: str, value: Any) -> list[str]:
    if name == "engine_options" and experiment.config.get("engine", "vllm") != "vllm":
        return []  # what they mean to another engine, that one says
    found = dict.fromkeys(fault for candidate in values_of(value) for fault in passed_on_faults(name, candidate))
    return [experiment.source.fault(("config", *path), reason) for path, reason in found]


def _with_objects(value: Any, hint: Any) -> Any:
    if not takes_object(hint):
        return value
    if isinstance(value, list):
        return [_with_objects(part, hint) for part in value]
    return import_object("config:", value) if isinstance(value, str) else value


def _validated(checked: Checked, combination: dict[str, Any]) -> Any:
    """Return the configuration object, after its own checks."""
    config = checked.algorithm.get_default_config()
    source = checked.experiment.source
    try:
        config.update_from_dict(combination)
        check_schedules(checked.experiment, config)
        config.validate()
    except ExperimentError:
        raise
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise ExperimentError(source.fault(key_in(error, combination), error)) from error
    return config


def _check_base_models(checked: Checked, allow_lookup: bool) -> None:
    from rllm_gym.models import resolve_base_model

    for name in dict.fromkeys(config.base_model for config in checked.configs):
        try:
            found = resolve_base_model(name, allow_lookup=allow_lookup)
            if checked.config.get("base_model") == name and Path(name).expanduser().is_dir() and name != "tiny":
                checked.config["base_model"] = str(Path(found).absolute())  # workers may run in other folders
        except ConfigError as error:
            raise ExperimentError(checked.experiment.source.fault(("config", "base_model"), error)) from error
