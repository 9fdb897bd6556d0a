"""The record of one experiment, and its two sources: a YAML file in RLlib's classic shape, and command line options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.cli.train.loggers import DEFAULT_LOGGERS, logger_fault
from rllm_gym.cli.train.source import ExperimentError, KeyPath, Source, parse_yaml, read_yaml
from rllm_gym.errors import nearest

KEYS = ("run", "env", "stop", "config", "checkpoint_config", "num_samples", "scheduler", "loggers")


@dataclass
class Experiment:
    """A training experiment. `config` is as written, with the samplers of a sweep and without `env`."""

    name: str
    run: str
    env: str | list[dict[str, Any]] | None  # some methods do without
    source: Source
    stop: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    checkpoint_config: dict[str, Any] = field(default_factory=dict)
    num_samples: int = 1
    scheduler: dict[str, Any] = field(default_factory=dict)
    loggers: list[Any] = field(default_factory=lambda: list(DEFAULT_LOGGERS))


def read_experiment(path: Path, changes: str | None = None) -> Experiment:
    """Read a file of the shape `name: {run, env, stop, config, checkpoint_config, num_samples, scheduler, loggers}`.

    Args:
        changes: keys of `config` to add or replace, and within `env_config` keywords, as JSON or YAML text.

    Raises:
        ExperimentError: what is wrong with the file's shape, one line per fault.
    """
    document, source = read_yaml(path)
    if not isinstance(document, dict) or not document:
        raise ExperimentError(
            f"{path}: must hold one experiment, `name: {{run: ..., env: ..., config: ...}}`; got {document!r}."
        )
    if len(document) > 1:
        names = ", ".join(map(str, document))
        raise ExperimentError(
            f"{path}: must hold one experiment; got {len(document)}: {names}. Write one file for each."
        )
    [(name, spec)] = document.items()
    if not isinstance(spec, dict):
        raise ExperimentError(source.fault((name,), f"the experiment {name!r} must be a mapping; got {spec!r}."))
    source.labels = {key[1:]: label for key, label in source.labels.items() if key}
    if changes is not None:
        _change(spec, parse_yaml(changes, "--config", with_lines=False)[0], source)
    return build_experiment(name, spec, source)


def _change(spec: dict[str, Any], changes: Any, source: Source) -> None:
    if not isinstance(changes, dict):
        raise ExperimentError(f"--config: must be a mapping, like '{{\"lr\": 1e-6}}'; got {changes!r}.")
    config = dict(spec.get("config") or {})
    keywords = {**dict(config.get("env_config") or {}), **dict(changes.get("env_config") or {})}
    spec["config"] = {**config, **changes, **({"env_config": keywords} if keywords else {})}
    source.labels.update({("config", key): "--config" for key in changes})


def experiment_from_options(
    *,
    algo: str,
    env: str | None,
    config: str | None,
    stop: str | None,
    checkpoint_config: str | None,
    num_samples: int,
    scheduler: str | None,
    loggers: str | None,
    name: str | None,
) -> Experiment:
    """Make the same record from command line options; the mappings are JSON or YAML text."""
    source = Source(
        "rllib train", {("run",): "--algo", ("env",): "--env", ("num_samples",): "--num-samples", (): "--name"}
    )
    spec: dict[str, Any] = {"run": algo, "num_samples": num_samples}
    if env is not None:
        spec["env"] = env
    texts = {"config": config, "stop": stop, "checkpoint_config": checkpoint_config}
    texts |= {"scheduler": scheduler, "loggers": loggers}
    for key, text in texts.items():
        if text is not None:
            flag = f"--{key.replace('_', '-')}"
            spec[key], _ = parse_yaml(text, flag, with_lines=False)
            source.labels[(key,)] = flag
    return build_experiment(name or f"{_as_folder(algo).lower()}-{_as_folder(env or 'env')}", spec, source)


def build_experiment(name: Any, spec: dict[str, Any], source: Source) -> Experiment:
    """Check the shape of an experiment (not what its options mean) and make the record."""
    faults: list[str] = []

    def fault(path: KeyPath, text: str) -> None:
        faults.append(source.fault(path, text))

    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w.+-]*", name):
        fault(
            (),
            f"an experiment's name becomes a folder: letters, digits, '.', '_', '+' and '-'; got {name!r}. Rename it.",
        )
    for key in spec:
        if key not in KEYS:
            hint = (
                "move it into config"
                if isinstance(key, str) and _is_option(key)
                else f"did you mean {nearest(key, KEYS)!r}?"
            )
            fault((key,), f"unknown key {key!r}; {hint}")
    for key in ("stop", "config", "checkpoint_config", "scheduler"):
        if not isinstance(spec.get(key) or {}, dict):
            fault((key,), f"{key} must be a mapping; got {spec[key]!r}.")
    config = dict(spec.get("config") or {}) if isinstance(spec.get("config") or {}, dict) else {}
    for key in config:
        if not isinstance(key, str):
            fault(("config", str(key)), f"config: a key must be text; got {key!r}.")
    for path, number in _non_finite(
        {key: spec.get(key) for key in ("stop", "config", "checkpoint_config", "scheduler")}
    ):
        fault(path, f"{'.'.join(map(str, path))} must be a finite number; got {number}.")
    env = _single_env(spec, config, source, faults)
    if spec.get("run") is None:
        fault((), "`run` is missing: the algorithm, for example `run: GRPO`.")
    elif not isinstance(spec["run"], str):
        fault(("run",), f"run must be the name of an algorithm; got {spec['run']!r}.")
    num_samples = spec.get("num_samples", 1)
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        fault(("num_samples",), f"num_samples must be a whole number of at least 1; got {num_samples!r}.")
    if "loggers" in spec and (reason := logger_fault(spec["loggers"])):
        fault(("loggers",), reason)
    if faults:
        raise ExperimentError("\n".join(faults))
    return Experiment(
        name=name,
        run=spec["run"],
        env=env,
        source=source,
        stop=dict(spec.get("stop") or {}),
        config=config,
        checkpoint_config=dict(spec.get("checkpoint_config") or {}),
        num_samples=num_samples,
        scheduler=dict(spec.get("scheduler") or {}),
        loggers=list(spec.get("loggers", DEFAULT_LOGGERS)),
    )


def _non_finite(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, float]]:
    """Yield the path of every NaN and infinity; what `env_config` holds means what the environment says."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    elif isinstance(value, (dict, list)) and path[-1:] != ("env_config",):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _non_finite(child, (*path, key))


def _single_env(spec: dict[str, Any], config: dict[str, Any], source: Source, faults: list[str]) -> Any:
    """Return the environment's id, or a list of several, given at the top level or in config."""
    inner = config.pop("env", None)
    env = spec.get("env", inner)
    if env is not None and not isinstance(env, (str, list)):
        faults.append(
            source.fault(("env",), f"env must be the id of an environment, or a list of {{id, weight}}; got {env!r}.")
        )
    elif inner is not None and inner != env:
        faults.append(
            source.fault(
                ("config", "env"), f"env is given twice: {inner!r} here, {env!r} at the top level. Remove one."
            )
        )
    if "env" not in spec and ("config", "env") in source.labels:
        source.labels[("env",)] = source.labels[("config", "env")]
    return env


def _is_option(key: str) -> bool:
    return key in ("base_model", "env_config", "lr", "seed", "scaling_inter", "max_episode_steps", "group_size")


def _as_folder(env: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", env.rpartition("/")[2].rpartition(":")[2]).strip("-.") or "env"
