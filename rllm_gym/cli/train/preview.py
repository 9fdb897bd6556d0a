"""What a dry run finds out after the quick checks: machine, key-value cache, and every environment's first prompt."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllm_gym.cli.ray_session import check_this_machine
from rllm_gym.cli.train.check import Checked
from rllm_gym.cli.train.dry_run import bundles_per_trial
from rllm_gym.cli.train.first_prompt import first_prompts
from rllm_gym.cli.train.sampler_memory import describe_cache
from rllm_gym.cli.train.source import KeyPath, one_line
from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.models import resolve_base_model


def preview(checked: Checked, *, address: str | None, with_reset: bool) -> list[str]:
    """Return lines on what was found, and one for each thing that was not looked at.

    Raises:
        ConfigError: training would refuse the experiment.
        RllmGymError: training would fail once it had begun.
    """
    lines, unchecked = [], []
    if address:
        unchecked.append(f"whether the cluster at {address} has room for a trial")
    else:
        check_this_machine(bundles_per_trial(checked))
    for config in _distinct(
        checked.configs, ("base_model", "weight_dtype", "engine", "engine_options", "max_model_len")
    ):
        model = resolve_base_model(config.base_model, allow_lookup=False)
        if not Path(model).is_dir():
            unchecked.append(f"{model}, which is not on this machine: prompts, max_model_len and the key-value cache")
        elif config.num_env_runners and config.engine == "vllm":
            with _as_failure(checked, ("config", "max_model_len")):
                _check_vllm(config, str(model))
            with _as_failure(checked, ("config", "engine_options")):
                lines.append(describe_cache(config, str(model), is_joined=address is not None))
        elif config.num_env_runners:
            unchecked.append(f"the engine {config.engine}")
    if not with_reset:
        unchecked.append("the environments' reset (--no-reset), and what it starts: browsers, Java, games")
    elif checked.config["env"] is not None:
        for config in _distinct(checked.configs, ("base_model", "chat_template", "env_config", "max_model_len")):
            if Path(resolve_base_model(config.base_model, allow_lookup=False)).is_dir():
                lines += _prompts(checked, config)
    if checked.config.get("data") is not None:
        unchecked.append("data")
    return [*dict.fromkeys(lines), *(f"not checked: {what}" for what in dict.fromkeys(unchecked))]


def _distinct(configs: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return configurations of a sweep that differ in these options."""
    return list({repr([getattr(config, name) for name in names]): config for config in configs}.values())


@contextlib.contextmanager
def _as_failure(checked: Checked, path: KeyPath) -> Iterator[None]:
    """Make of what the sampler would refuse what it becomes in a run: a trial that fails, at the key `path`."""
    try:
        yield
    except ValueError as error:
        text = one_line(error).partition("Value error, ")[2].partition(" [type=")[0] or one_line(error)
        raise RllmGymError(checked.experiment.source.fault(path, text)) from error


def _check_vllm(config: Any, model: str) -> None:
    """Ask vLLM for what it says of a model with these options; nothing is loaded."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        from rllm_gym.rollout.engines.vllm import EngineArgs

        args = EngineArgs(
            model=model,
            dtype=config.weight_dtype,
            max_model_len=config.max_model_len,
            skip_tokenizer_init=True,
            **config.engine_options,
        )
        args.create_model_config()
    has_gpu, compilers = config.num_gpus_per_env_runner > 0, (os.environ.get("CC"), "cc", "gcc", "clang")
    if has_gpu and not any(name and shutil.which(name) for name in compilers):
        raise ConfigError("engine: vllm compiles for a GPU with a C compiler; got none. Install gcc, or set CC.")


def _prompts(checked: Checked, config: Any) -> Iterator[str]:
    source = checked.experiment.source
    strangers = {agent_id for agent_id, opponent in config.opponent_specs.items() if opponent.kind != "self"}
    for spec, found in zip(config.environments, first_prompts(config), strict=False):
        if found.error is not None:
            raise RllmGymError(source.fault(("env",), f"{spec.name}: {found.error}"))
        assert found.num_tokens is not None
        try:
            for agent_id in sorted(set(found.agents) - strangers):
                config.policy_of(agent_id)
        except ConfigError as error:
            raise RllmGymError(source.fault(("config", "policies"), error)) from error
        if found.num_tokens + config.max_new_tokens > config.max_model_len:
            raise RllmGymError(
                source.fault(
                    ("config", "max_model_len"),
                    f"a first prompt and one turn must fit in max_model_len = {config.max_model_len}; got "
                    f"{found.num_tokens} + {config.max_new_tokens} tokens of {spec.name}. Raise max_model_len or lower "
                    "max_new_tokens.",
                )
            )
        of_env = f" of {spec.name}" if len(config.environments) > 1 else ""
        yield f"first prompt{of_env}: {found.num_tokens:,} tokens"
