"""What `--dry-run` prints: the resolved configuration and what one train step may cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from rllm_gym.cli.train.check import Checked
from rllm_gym.cli.train.loggers import DEFAULT_LOGGERS
from rllm_gym.cli.train.sweeps import find_samplers, is_sampler, num_trials

# Printed even where they have their default.
ESSENTIALS = (
    "base_model",
    "dtype",
    "engine",
    "lr",
    "groups_per_step",
    "group_size",
    "max_model_len",
    "max_new_tokens",
    "temperature",
    "num_env_runners",
    "num_learners",
    "zero_stage",
    "seed",
)


def dry_run_report(checked: Checked, found: Sequence[str] = ()) -> str:
    """Return the report; it is YAML itself, and running it is running the experiment.

    Args:
        found: more lines, for comments at its end.
    """
    experiment = checked.experiment
    default = checked.algorithm.get_default_config()
    first = checked.configs[0]
    config = {name: getattr(first, name) for name in ESSENTIALS} | {"dtype": first.weight_dtype}
    config |= {
        name: value
        for name, value in checked.config.items()
        if name != "env" and (name in config or _has_sampler(value) or value != getattr(default, name))
    }
    spec: dict[str, Any] = {"run": experiment.run, "env": checked.config["env"]}
    for key in ("stop", "checkpoint_config", "scheduler"):
        if getattr(experiment, key):
            spec[key] = getattr(experiment, key)
    if experiment.loggers != list(DEFAULT_LOGGERS):
        spec["loggers"] = experiment.loggers
    if experiment.num_samples > 1:
        spec["num_samples"] = experiment.num_samples
    spec["config"] = {name: _plain(value) for name, value in config.items()}
    text = yaml.safe_dump({experiment.name: spec}, sort_keys=False, default_flow_style=None, width=120)
    return text + "".join(f"# {line}\n" for line in (*_costs(checked), *found))


def _has_sampler(value: Any) -> bool:
    return is_sampler(value) or any(True for _ in find_samplers(value))


def _plain(value: Any) -> Any:
    """Return what YAML can show: "module:name" for classes and functions."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return f"{value.__module__}:{getattr(value, '__qualname__', value)}"


def _costs(checked: Checked) -> list[str]:
    """Return lines on the tokens of a train step, the number of trials, and the resources of one."""
    lines = []
    bounds = sorted({_tokens_per_step(config) for config in checked.configs})
    low, high = bounds[0], bounds[-1]
    episodes = _range(low[0], high[0])
    what = "samples" if high[2] == 0 else "episodes"
    lines.append(f"tokens per train step: at most {_range(low[1], high[1])} in {episodes} {what}")
    lines.append(f"of these sampled: at most {_range(low[2], high[2])}")
    schedules = checked.configs[0].horizon_schedules
    for name, schedule in schedules.items():
        of_env = f" of {name}" if len(schedules) > 1 else ""
        lines.append(f"horizon in turns{of_env}: {_horizons(schedule)}")
    trials = num_trials(checked.experiment.config, checked.experiment.num_samples)
    lines.append(f"trials: {trials}")
    needed = required_resources(checked)
    lines.append("each trial: " + ", ".join(f"{count:g} {name}s" for name, count in needed.items()))
    return lines


def _horizons(schedule: Any) -> str:
    stages = ", then ".join(map(str, schedule.horizons))
    if hasattr(schedule, "min_steps_per_stage"):
        return f"{stages}; at least {schedule.min_steps_per_stage} train steps each"
    if len(schedule.horizons) > 1:
        return f"{stages}; {schedule.steps_per_stage} train steps each"
    return str(schedule.last or "set by the environment")


def _tokens_per_step(config: Any) -> tuple[int, int, int]:
    """Return upper bounds (episodes, all their tokens, sampled tokens); of recorded samples where none are played."""
    if config.num_recorded_samples_per_step:
        samples = config.num_recorded_samples_per_step
        return samples, samples * config.max_model_len, 0
    episodes = config.groups_per_step * config.group_size
    horizons = [horizon for schedule in config.horizon_schedules.values() for horizon in schedule.horizons]
    sampled, contexts = config.max_model_len, 1
    if any(spec.rewrites_history for spec in config.environments) and None not in horizons:
        # Every turn may begin a sample.
        contexts, sampled = max(horizons), max(horizons) * config.max_new_tokens
    elif None not in horizons:
        sampled = min(sampled, max(horizons) * config.max_new_tokens)
    return episodes, episodes * contexts * config.max_model_len, episodes * sampled


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def required_resources(checked: Checked) -> dict[str, float]:
    """Return the logical resources of the largest trial, for example {"CPU": 2, "GPU": 0}."""
    needed: dict[str, float] = {"CPU": 0, "GPU": 0}
    for bundles in bundles_per_trial(checked):
        for name in {name for bundle in bundles for name in bundle}:
            needed[name] = max(needed.get(name, 0), sum(bundle.get(name, 0) for bundle in bundles))
    return needed


def bundles_per_trial(checked: Checked) -> list[list[dict[str, float]]]:
    """Return each candidate configuration's resource bundles, as Tune will ask Ray for them."""
    return [checked.algorithm.default_resource_request(written).bundles for written in checked.combinations]
