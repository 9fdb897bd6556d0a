"""Checks an experiment before Ray starts: every fault becomes one line with the place where it was written.

`check_quickly` loads neither Ray nor torch, and finds every fault that needs the options alone. `check_fully` builds
the configurations, and asks the libraries that options are handed to.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rllm_gym.cli.common import BAD_INPUT
from rllm_gym.cli.train.experiment import Experiment
from rllm_gym.cli.train.library_options import library_faults
from rllm_gym.cli.train.loggers import logger_option_fault
from rllm_gym.cli.train.model_files import model_fault
from rllm_gym.cli.train.source import ExperimentError, KeyPath, Source, one_line
from rllm_gym.cli.train.sweeps import (
    SCHEDULERS,
    combinations,
    find_samplers,
    list_candidates,
    make_scheduler,
    sampler_fault,
)
from rllm_gym.errors import ConfigError, MachineError, nearest
from rllm_gym.importing import import_object
from rllm_gym.options.methods import METHODS, find_method
from rllm_gym.options.rllib import ALIASES, unknown_option
from rllm_gym.options.table import faults_raised_by, fill_table, list_options
from rllm_gym.options.types import Count, CountOrZero
from rllm_gym.options.values import takes_object, type_fault
from rllm_gym.registration import normalize_env_id
from rllm_gym.rollout.environments import ask_text_env, check_evaluation, evaluated_splits, read_environments
from rllm_gym.training.metrics import episode_metrics

# The top-level keys of every result, for `stop`; the names below `env_runners/` and `evaluation/` are known as well.
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


class Faults:
    """The faults of an experiment, each once, in the order in which they were found.

    Args:
        elsewhere: leave out what this machine lacks, for the experiment is to run on another.

    Attributes:
        lines: those of the experiment, and the exit code that each ends `rllib train` with.
        machine: the same for what this machine lacks and another may have.
        unchecked: things that were not looked at.
        lacks_environment: whether an environment cannot be made here because a package is missing.
        suspects: the options at fault. Other faults that name them may follow from that, and are left out.
    """

    def __init__(self, source: Source, *, elsewhere: bool = False) -> None:
        self._source, self.is_elsewhere = source, elsewhere
        self.lines: dict[str, int] = {}
        self.machine: dict[str, int] = {}
        self.unchecked: list[str] = []
        self.suspects: set[str] = set()
        self.lacks_environment = False

    def add(self, path: KeyPath, text: object, *, code: int = BAD_INPUT) -> None:
        """Add a fault of the option at a path."""
        self.lines.setdefault(self._source.fault(path, text), code)
        match path:
            case ("config", str(name), *_) | (("env" | "run") as name, *_):
                self.suspects.add(name)

    def add_between(self, path: KeyPath, text: str, *, code: int = BAD_INPUT) -> None:
        """Add a fault between options, unless it names one that is at fault by itself."""
        if not any(re.search(rf"\b{re.escape(name)}\b", text) for name in self.suspects):
            self.lines.setdefault(self._source.fault(path, text), code)

    def add_machine(self, path: KeyPath | None, text: object, *, code: int = BAD_INPUT) -> None:
        """Add what this machine lacks; `path` is None where no key is to blame."""
        line = one_line(text) if path is None else self._source.fault(path, text)
        if self.is_elsewhere:
            self.unchecked.append(line)
        else:
            self.machine.setdefault(line, code)

    @property
    def exit_code(self) -> int:
        """That of `rllib train`; 0 without faults."""
        return max((*self.lines.values(), *self.machine.values()), default=0)

    def raise_any(self) -> None:
        """Raise what was found.

        Raises:
            ExperimentError: one line per fault.
        """
        if found := (*self.lines, *self.machine):
            raise ExperimentError("\n".join(found))


@dataclass
class Checked:
    """An experiment that may run.

    Args:
        algorithm: the method's class.
        combinations: what was written, for every combination of a sweep's candidates; one without a sweep.
        configs: an `AlgorithmConfig` for each of them, which is valid where there are no faults.
        config: what Tune gets: the keys as written, objects in place of their "module:name".
    """

    experiment: Experiment
    algorithm: Any
    combinations: list[dict[str, Any]]
    configs: list[Any]
    config: dict[str, Any]

    def bundles_per_trial(self) -> list[list[dict[str, float]]]:
        """Return each combination's resource bundles, as Tune will ask Ray for them."""
        return [self.algorithm.default_resource_request(written).bundles for written in self.combinations]


# --- without Ray ---


def check_quickly(experiment: Experiment, faults: Faults) -> dict[str, Any]:
    """Find every fault that can be known without Ray; return `config` under the names that RLlib stores, with `env`.

    The options of a method of one's own are not known before its code is loaded.
    """
    _check_stop(experiment, faults)
    _check_checkpoints(experiment, faults)
    _check_scheduler(experiment, faults)
    config = _canonical(experiment, faults)
    is_own = ":" in experiment.run
    if not is_own:
        try:
            find_method(experiment.run)
        except ConfigError as error:
            faults.add(("run",), error)
    table = METHODS[experiment.run].table if experiment.run in METHODS else None
    if table is not None:
        _check_has_env(experiment, table, faults)
        _check_values(config, {name: option.hint for name, option in list_options(table).items()}, faults)
    config["env"] = _env_id(experiment, faults)
    if table is not None:
        usable = {name: value for name, value in config.items() if name not in faults.suspects}
        tables = [fill_table(table, written) for written in combinations(usable)]
        for filled in tables:
            for line in filled.faults():
                faults.add_between(key_in(line, usable), line)
        _check_environments(experiment, tables, faults)
    return config


def flat_keys(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, keys joined by a slash, as Tune does for results."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= flat_keys(value, f"{name}/") if isinstance(value, dict) else {name: value}
    return flat


def _check_stop(experiment: Experiment, faults: Faults) -> None:
    for name, value in flat_keys(experiment.stop).items():
        first = name.partition("/")[0]
        path = ("stop", name) if ("stop", name) in experiment.source.labels else ("stop", first)
        if reason := _unknown_result(name):
            faults.add(path, reason)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            faults.add(path, f"stop: {name} must be a number; got {value!r}.")


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


def _check_checkpoints(experiment: Experiment, faults: Faults) -> None:
    for name, value in experiment.checkpoint_config.items():
        if name not in CHECKPOINT_OPTIONS:
            hint = nearest(name, CHECKPOINT_OPTIONS)
            reason: str | None = f"checkpoint_config: unknown key {name!r}; did you mean {hint!r}?"
        else:
            reason = type_fault(f"checkpoint_config.{name}", value, CHECKPOINT_OPTIONS[name])
        if reason:
            faults.add(("checkpoint_config", name), reason)


def _check_scheduler(experiment: Experiment, faults: Faults) -> None:
    if not experiment.scheduler:
        return
    kind, metric = experiment.scheduler.get("type"), experiment.scheduler.get("metric")
    if kind not in SCHEDULERS:
        faults.add(("scheduler",), f"scheduler: type must be one of {', '.join(SCHEDULERS)}; got {kind!r}.")
    elif isinstance(metric, str) and (reason := _unknown_result(metric)):
        faults.add(("scheduler", "metric"), reason.replace("stop:", "scheduler: metric:", 1))


def _canonical(experiment: Experiment, faults: Faults) -> dict[str, Any]:
    """Return config under the names that RLlib stores: it takes `callbacks` for `callbacks_class`, and a few more."""
    config: dict[str, Any] = {}
    labels = experiment.source.labels
    for key, value in experiment.config.items():
        name = ALIASES.get(key, key)
        if name in config:
            faults.add(("config", key), f"config: {key!r} means {name!r}, which is set already.")
        if ("config", key) in labels:
            labels[("config", name)] = labels[("config", key)]
        config[name] = value
    return config


def _check_values(config: Mapping[str, Any], hints: Mapping[str, Any], faults: Faults) -> None:
    """Find what is wrong with the names and the values of options, one by one."""
    for name, value in config.items():
        if reason := unknown_option(name, hints):
            is_unknown = reason.startswith("unknown")
            faults.add(("config", name), ("config: " if is_unknown else "config.") + reason)
            if is_unknown:
                faults.suspects.add(nearest(name, hints))  # which was meant, and now has its default
            continue
        wrong_samplers = False
        for path, kind, arguments in find_samplers(value, ("config", name)):
            if reason := sampler_fault(kind, arguments):
                wrong_samplers = True
                faults.add(path, f"{'.'.join(map(str, path))}: {reason}")
        for candidate in () if wrong_samplers else list_candidates(value):
            if reason := type_fault(f"config.{name}", candidate, hints[name]):
                faults.add(("config", name), reason)


def _check_has_env(experiment: Experiment, options: Any, faults: Faults) -> None:
    if experiment.env is None and options.needs_env:
        faults.add((), "`env` is missing: the environment's id, for example `env: rllm_gym/TextCraft-v0`.")
        faults.suspects.add("env")


def _env_id(experiment: Experiment, faults: Faults) -> Any:
    """Return the environment's full id; of several the list as it stands, for its entries are checked with the rest."""
    if experiment.env is None:
        return None
    try:
        if not isinstance(experiment.env, str):
            read_environments(experiment.env, {})
            return experiment.env
        return normalize_env_id(experiment.env)
    except ConfigError as error:
        faults.add(("env",), error)
        return experiment.env


def key_in(error: object, written: Iterable[str]) -> KeyPath:
    """Return the path of the option that a message is about: the first one that it names and that was written."""
    text = str(error)
    places = {name: found.start() for name in written if (found := re.search(rf"\b{re.escape(name)}\b", text))}
    if not places:
        return ("config",)
    first = min(places, key=lambda name: places[name])
    return ("env",) if first == "env" else ("config", first)


# --- what the configuration points to ---


def _check_environments(experiment: Experiment, configs: Sequence[Any], faults: Faults) -> None:
    """Make every environment once for every `env_config`, at the text level, and look at what is evaluated."""
    if experiment.env is None or faults.suspects & {"env", "env_config", "evaluation_config"}:
        return
    made: list[tuple[Any, bool]] = []  # specifications, and whether they could be made
    evaluated: list[Any] = []
    for config in configs:
        if faults_raised_by(functools.partial(getattr, config, "all_environments")):  # said above
            continue
        environments, num_trained = config.all_environments, len(config.environments)
        for k, spec in enumerate(environments):
            if spec not in [each for each, _ in made]:
                made.append((spec, _can_be_made(experiment, k if k < num_trained else None, spec, faults)))
        evaluation = (environments, evaluated_splits(config))
        if evaluation in evaluated or any((spec, False) in made for spec in environments):
            continue
        evaluated.append(evaluation)
        try:
            check_evaluation(config)
        except MachineError as error:
            faults.add_machine(("env",), error)
        except Exception as error:  # an environment's constructor may raise anything
            path = _env_path(experiment, None, error, otherwise=("config", "evaluation_splits"))
            faults.add(path, _env_text(error))


def _can_be_made(experiment: Experiment, k: int | None, spec: Any, faults: Faults) -> bool:
    """Make an environment and look at its actions; `k` counts those of training, and is None of one for evaluation."""
    in_evaluation = ("config", "evaluation_config") if k is None else None
    try:
        acts_on = ask_text_env(spec, lambda env: None if _speaks_text(env) else env.action_space)
    except MachineError as error:
        faults.add_machine(in_evaluation or ("env",), error)
        faults.lacks_environment = True
        return False
    except Exception as error:  # an environment's constructor may raise anything
        faults.add(in_evaluation or _env_path(experiment, k, error), _env_text(error))
        return False
    if acts_on is not None:
        faults.add(in_evaluation or ("env",), f"env: must be a text environment; {spec.env} acts on {acts_on}.")
    return acts_on is None


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


# --- with Ray, torch and DeepSpeed ---


def check_fully(
    experiment: Experiment, config: dict[str, Any], faults: Faults, *, allow_lookup: bool, asks_vllm: bool = False
) -> Checked | None:
    """Find every other fault that can be known without starting Ray.

    Args:
        config: what `check_quickly` has returned. Options that it found at fault are left out.
        allow_lookup: look for `base_model` on the hub if it is neither a folder nor cached.
        asks_vllm: have vLLM judge its options now, for which its import takes seconds; else the EnvRunners do.

    Returns:
        What may run, but for the faults that were found; None where no configuration can be built.
    """
    from rllm_gym.algorithms.registry import get_algorithm_class

    try:
        make_scheduler(experiment.scheduler)
    except ConfigError as error:
        faults.add(("scheduler",), error)
    if reason := logger_option_fault(experiment.loggers):
        faults.add(("loggers",), reason)
    if "run" in faults.suspects:
        return None
    try:
        algorithm = get_algorithm_class(experiment.run)
    except ConfigError as error:
        faults.add(("run",), error)
        return None
    default = algorithm.get_default_config()
    hints: dict[str, Any] = {name: option.hint for name, option in list_options(type(default)).items()}
    is_own = experiment.run not in METHODS  # nothing was known of it before its code was loaded
    if is_own:
        # Its configuration may have options that are attributes and no more.
        hints = {name: Any for name in vars(default) if not name.startswith("_")} | hints
        _check_has_env(experiment, default, faults)
        _check_values({name: value for name, value in config.items() if name != "env"}, hints, faults)
    usable = {name: value for name, value in config.items() if name not in faults.suspects}
    for name, value in usable.items():
        if name == "engine_options" and (experiment.config.get("engine", "vllm") != "vllm" or not asks_vllm):
            continue  # another engine says what they mean to it, and in a run the EnvRunners ask vLLM
        for candidate in list_candidates(value):
            for path, reason in library_faults(name, candidate):
                faults.add(("config", *path), reason)
    if "env" in faults.suspects:
        return None
    usable = {name: _with_objects(value, hints[name]) for name, value in usable.items()}
    checked = Checked(experiment, algorithm, [], [], usable)
    for combination in combinations(usable):
        if (built := _build(algorithm, combination, faults)) is not None:
            checked.combinations.append(combination)
            checked.configs.append(built)
    if is_own:
        _check_environments(experiment, checked.configs, faults)
    _check_base_models(checked, allow_lookup, faults)
    return checked if checked.configs else None


def _with_objects(value: Any, hint: Any) -> Any:
    if not takes_object(hint):
        return value
    if isinstance(value, list):
        return [_with_objects(part, hint) for part in value]
    return import_object("config:", value) if isinstance(value, str) else value


def _build(algorithm: Any, combination: dict[str, Any], faults: Faults) -> Any:
    """Return the configuration object after its own checks; None where it cannot be made."""
    config, is_made = algorithm.get_default_config(), False
    try:
        config.update_from_dict(combination)
        is_made = True
        config.validate()
    except ConfigError as error:
        for line in str(error).splitlines():
            faults.add_between(key_in(line, combination), line)
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        faults.add_between(key_in(error, combination), one_line(error))
    return config if is_made else None


def _check_base_models(checked: Checked, allow_lookup: bool, faults: Faults) -> None:
    from rllm_gym.models import resolve_base_model

    for name, trusts in dict.fromkeys((config.base_model, config.trust_remote_code) for config in checked.configs):
        try:
            found = resolve_base_model(name, allow_lookup=allow_lookup)
            if checked.config.get("base_model") == name and Path(name).expanduser().is_dir() and name != "tiny":
                checked.config["base_model"] = str(Path(found).absolute())  # workers may run in other folders
            if Path(found).is_dir() and (fault := model_fault(Path(found), trust_remote_code=trusts)):
                faults.add(("config", "base_model"), fault)
        except ConfigError as error:
            faults.add(("config", "base_model"), error)
