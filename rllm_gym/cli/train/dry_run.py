"""`--dry-run`: checks everything and starts nothing; prints the resolved configuration and a train step's cost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from rllm_gym.cli.common import FAILED
from rllm_gym.cli.ray_session import check_this_machine, prepare_driver, probe
from rllm_gym.cli.scratch import temporary_folder
from rllm_gym.cli.train.check import Checked, Faults, check_fully, check_quickly
from rllm_gym.cli.train.experiment import Experiment
from rllm_gym.cli.train.first_prompt import first_prompts
from rllm_gym.cli.train.library_options import quiet
from rllm_gym.cli.train.loggers import DEFAULT_LOGGERS
from rllm_gym.cli.train.model_findings import look_at_folder
from rllm_gym.cli.train.sampler_memory import describe_cache, gpu_bytes, measure_cache, memory_fault, room_fault
from rllm_gym.cli.train.storage import check_storage
from rllm_gym.cli.train.sweeps import find_samplers, is_sampler, num_trials
from rllm_gym.errors import ConfigError
from rllm_gym.models import resolve_base_model

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
# Of the doctor's checks those that nothing else here makes: of the length vLLM judges, and of memory the cluster.
OPTION_OF_CHECK = {"chat template": "chat_template", "chat_template_kwargs": "chat_template_kwargs"}
MACHINE = "what this machine lacks (--elsewhere leaves it out):"


def dry_run(experiment: Experiment, *, address: str | None, storage: str, with_reset: bool, elsewhere: bool) -> int:
    """Check everything and print all faults, those of this machine last, or else the report; return the exit code.

    Args:
        elsewhere: leave out what only this machine may lack.
    """
    faults = Faults(experiment.source, elsewhere=elsewhere)
    printed: set[str] = set()

    def print_new() -> None:
        for line in faults.lines:
            if line not in printed:
                printed.add(line)
                typer.echo(line, err=True)

    config = check_quickly(experiment, faults)
    print_new()  # the libraries take seconds to load
    address = None if elsewhere else _check_surroundings(experiment, address, storage, faults)
    prepare_driver(address)
    found: list[str] = []
    checked = check_fully(experiment, config, faults, allow_lookup=False, asks_vllm=True)
    print_new()
    if checked is not None:
        with temporary_folder(has_own_ray=True):
            try:
                found = _look_ahead(checked, faults, address=address, with_reset=with_reset)
            except ConfigError:
                if not faults.lines:  # else it follows from options that do not go together
                    raise
        print_new()
    if faults.machine:
        typer.echo("\n".join([MACHINE, *(f"  {line}" for line in faults.machine)]), err=True)
    if checked is not None and not faults.exit_code:
        unchecked = [f"not checked: {what}" for what in dict.fromkeys(faults.unchecked)]
        typer.echo(report(checked, [*found, *unchecked]), nl=False)
    return faults.exit_code


def _check_surroundings(experiment: Experiment, address: str | None, storage: str, faults: Faults) -> str | None:
    """Try storage and cluster; return the address if the cluster answers."""
    try:
        check_storage(storage, experiment.name)
    except ConfigError as error:
        faults.add_machine(None, error)
    try:
        if address and address != "auto":
            probe(address)
    except ConfigError as error:
        faults.add_machine(None, error)
        return None
    return address


# --- what training would meet ---


def _look_ahead(checked: Checked, faults: Faults, *, address: str | None, with_reset: bool) -> list[str]:
    """Return lines on sampler and environments; find what would make training fail once it had begun."""
    lines: list[str] = []
    if address:
        faults.unchecked.append(f"whether the cluster at {address} has room for a trial")
    elif faults.is_elsewhere:
        faults.unchecked.append("whether a machine has room for a trial, and takes its results (--elsewhere)")
    else:
        try:
            check_this_machine([_gpu_bundles(config) for config in checked.configs])
        except ConfigError as error:
            faults.add_machine(None, error)
    options = ("base_model", "weight_dtype", "engine", "engine_options", "max_model_len", "num_gpus_per_env_runner")
    for config in _distinct(checked.configs, options):
        model = resolve_base_model(config.base_model, allow_lookup=False)
        if not Path(model).is_dir():
            what = "prompts, max_model_len and the key-value cache"
            faults.unchecked.append(f"{model}, which is not on this machine: {what}")
        elif config.num_env_runners and config.engine == "vllm":
            if not faults.suspects & {"engine_options", "max_model_len"}:
                lines += _look_at_vllm(config, str(model), faults, is_joined=address is not None)
        elif config.num_env_runners:
            faults.unchecked.append(f"the engine {config.engine}")
    for config in _distinct(checked.configs, ("base_model", "weight_dtype", "max_model_len", "lora", "chat_options")):
        lines += _look_at_model(config, faults)
    if not with_reset or faults.lacks_environment:
        why = "" if with_reset else " (--no-reset)"
        faults.unchecked.append(f"the environments' reset{why}, and what it starts: browsers, Java, games")
    elif checked.config["env"] is not None and not faults.suspects & {"env", "env_config", *OPTION_OF_CHECK.values()}:
        for config in _distinct(
            checked.configs, ("base_model", "chat_options", "all_environments", "max_model_len", "token_options")
        ):
            if Path(resolve_base_model(config.base_model, allow_lookup=False)).is_dir():
                lines += _look_at_prompts(config, faults)
    if checked.config.get("data") is not None:
        faults.unchecked.append("data")
    return list(dict.fromkeys(lines))


def _gpu_bundles(config: Any) -> list[dict[str, float]]:
    """Return the GPUs of a trial's processes; Tune's own request wants options without any fault."""
    runners = [{"GPU": config.num_gpus_per_env_runner}] * config.num_env_runners
    return runners + [{"GPU": config.num_gpus_per_learner}] * max(1, config.num_learners)


def _distinct(configs: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return configurations of a sweep that differ in these options."""
    return list({repr([getattr(config, name) for name in names]): config for config in configs}.values())


def _look_at_vllm(config: Any, model: str, faults: Faults, *, is_joined: bool) -> list[str]:
    """Ask vLLM whether it takes a model with these options, and whether its cache fits; no weights are loaded."""
    has_gpu, options = config.num_gpus_per_env_runner > 0, dict(config.engine_options)
    lacks_gpu = has_gpu and gpu_bytes() is None
    if lacks_gpu and options.pop("enable_sleep_mode", False):  # vLLM refuses it on a CPU
        faults.unchecked.append("engine_options: enable_sleep_mode, on GPUs that this machine does not have")
    try:
        with quiet():
            from transformers import AutoConfig

            from rllm_gym.rollout.engines.vllm import EngineArgs, model_fault, parse_reason

            hf = AutoConfig.from_pretrained(model, trust_remote_code=config.trust_remote_code)
            if fault := model_fault(hf, config.weight_dtype):
                faults.add_machine(("config", "engine"), f"engine: vllm: {fault}", code=FAILED)
                return []
            args = EngineArgs(
                model=model,
                dtype=config.weight_dtype,
                max_model_len=config.max_model_len,
                skip_tokenizer_init=True,
                **{"trust_remote_code": config.trust_remote_code, **options},
            )
            args.create_model_config()
    except ValueError as error:
        faults.add_between(("config", "max_model_len"), parse_reason(error), code=FAILED)
        return []
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    if has_gpu and not any(name and shutil.which(name) for name in compilers):
        text = "engine: vllm compiles for a GPU with a C compiler; got none. Install gcc, or set CC."
        faults.add_machine(("config", "engine"), text, code=FAILED)
    if lacks_gpu:
        faults.unchecked.append("the key-value cache, on GPUs that this machine does not have")
        return []
    cache = measure_cache(config, model)
    if reason := room_fault(cache, config):
        faults.add_between(("config", "engine_options"), reason, code=FAILED)
    if not is_joined and (reason := memory_fault(cache, config)):
        faults.add_machine(("config", "engine_options"), reason, code=FAILED)
    return [describe_cache(cache, config)]


def _look_at_model(config: Any, faults: Faults) -> list[str]:
    """Return the notes of `rllm-gym doctor` on a model, which is not loaded."""
    folder = Path(resolve_base_model(config.base_model, allow_lookup=False))
    if not folder.is_dir() or "base_model" in faults.suspects:
        return []
    lines = []
    for finding in look_at_folder(folder, config):
        if finding.level == "wrong" and (option := OPTION_OF_CHECK.get(finding.check)):
            faults.add(("config", option), finding.text, code=FAILED)
        elif finding.level == "note":
            lines.append(f"{finding.check}: {finding.text}")
    return lines


def _look_at_prompts(config: Any, faults: Faults) -> list[str]:
    lines: list[str] = []
    strangers = {agent_id for agent_id, opponent in config.opponent_specs.items() if opponent.kind != "self"}
    for spec, found in zip(config.all_environments, first_prompts(config), strict=False):
        if found.error is not None:
            if found.is_machines:
                faults.add_machine(("env",), f"{spec.name}: {found.error}", code=FAILED)
            else:
                faults.add_between(("env",), f"{spec.name}: {found.error}", code=FAILED)
            continue
        assert found.num_tokens is not None
        try:
            for agent_id in sorted(set(found.agents) - strangers):
                config.policy_of(agent_id)
        except ConfigError as error:
            faults.add_between(("config", "policies"), str(error), code=FAILED)
        if found.num_tokens + config.max_new_tokens > config.max_model_len:
            text = (
                f"a first prompt and one turn must fit in max_model_len = {config.max_model_len}; got "
                f"{found.num_tokens} + {config.max_new_tokens} tokens of {spec.name}. Raise max_model_len or lower "
                "max_new_tokens."
            )
            faults.add_between(("config", "max_model_len"), text, code=FAILED)
        of_env = f" of {spec.name}" if len(config.all_environments) > 1 else ""
        lines.append(f"first prompt{of_env}: {found.num_tokens:,} tokens")
    return lines


# --- the report ---


def report(checked: Checked, found: Sequence[str] = ()) -> str:
    """Return the resolved configuration; it is YAML itself, and running it is running the experiment.

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
    """Return a value as YAML can show it: "module:name" for classes and functions."""
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
    """Return the logical resources of the largest trial but for its memory, for example {"CPU": 2, "GPU": 0}."""
    needed: dict[str, float] = {"CPU": 0, "GPU": 0}
    for bundles in checked.bundles_per_trial():
        for name in {name for bundle in bundles for name in bundle if name != "memory"}:
            needed[name] = max(needed.get(name, 0), sum(bundle.get(name, 0) for bundle in bundles))
    return needed
