"""The policy that is evaluated, a checkpoint's or a Hugging Face model, and the configuration that plays it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.checkpoints import MANIFEST, read_config, resolve_checkpoint
from rllm_gym.errors import ConfigError
from rllm_gym.rollout.environments import EnvironmentSpec, ask_text_env, change_environments, check_evaluation

logger = logging.getLogger(__name__)

# What vLLM has for one or several GPUs only.
GPU_OPTIONS = ("enable_sleep_mode", "pipeline_parallel_size", "tensor_parallel_size")


@dataclass(frozen=True)
class Policy:
    """A policy to evaluate.

    Args:
        name: the checkpoint's path, or the model's name or folder.
        checkpoint: None for a model.
    """

    name: str
    checkpoint: Path | None

    @property
    def identity(self) -> str:
        """An identity of the policy: of a checkpoint the hash of its list of files, else the name."""
        if self.checkpoint is None or not (self.checkpoint / MANIFEST).is_file():
            return self.name
        return hashlib.sha256((self.checkpoint / MANIFEST).read_bytes()).hexdigest()


def find_policy(source: str | Path) -> Policy:
    """Return the policy that a text names: a checkpoint, the newest of a run or trial, or a Hugging Face model.

    Raises:
        ConfigError: a folder with neither, or a model that is not found.
    """
    from rllm_gym.models import resolve_base_model

    path = Path(source)
    if path.is_dir() and not (path / "config.json").is_file():
        checkpoint = resolve_checkpoint(path).absolute()
        return Policy(str(checkpoint), checkpoint)
    is_local = path.is_dir() or (path.parent != Path() and path.parent.is_dir())
    try:
        if is_local and not path.is_dir():  # runs/<a name that is not there> is no model to look for on the hub
            raise ConfigError("there is no such folder.")
        resolve_base_model(source)
    except ConfigError as error:
        raise ConfigError(
            f"evaluate: must be a checkpoint, a run, or a Hugging Face model; got {str(source)!r}: {error}"
        ) from error
    return Policy(str(path.absolute()) if path.is_dir() else str(source), None)


def playing_config(policy: Policy, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """Return the algorithm's class and a configuration with which it plays a policy, whatever it was trained on.

    Args:
        options: of the sampler, such as `engine` and `max_model_len`, in place of the checkpoint's or the defaults.
    """
    from rllm_gym.algorithms.registry import get_algorithm_class

    if policy.checkpoint is not None:
        algorithm, config = read_config(policy.checkpoint)
    else:
        algorithm = get_algorithm_class("GRPO")
        config = algorithm.get_default_config()
        config.base_model = policy.name
    try:
        config.update_from_dict(dict(options or {}))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"evaluate: config: {' '.join(str(error).split())}") from error
    _without_learners(config, policy, options or {})
    # Methods that learn from recorded episodes have EnvRunners only where they evaluate.
    config.evaluation_interval, config.num_env_runners = 1, max(1, config.num_env_runners)
    config.save_trajectories = False
    if hasattr(config, "without_data"):
        config.without_data()
    return algorithm, config


def _without_learners(config: Any, policy: Policy, options: Mapping[str, Any]) -> None:
    """Let nothing learn, and ask for nothing that learners would have."""
    config.dtype = config.weight_dtype  # depends on the learners' GPUs
    config.trains = False
    for name, value in {"num_learners": 0, "num_gpus_per_learner": 0, "weight_transfer": "object_store"}.items():
        if options.get(name, value) != value:
            raise ConfigError(f"evaluate: config: nothing learns here; got {name}: {options[name]!r}. Leave it out.")
        config.update_from_dict({name: value})
    pools = [agent_id for agent_id, opponent in config.opponent_specs.items() if opponent.kind == "pool"]
    if pools and policy.checkpoint is None:
        raise ConfigError(
            f"evaluate: config: opponents: a pool is of the earlier selves of a run; got one of {policy.name!r} for "
            f"{pools[0]}. Name a checkpoint, or another opponent."
        )


def leave_out_gpus(config: Any, options: Mapping[str, Any]) -> None:
    """Let one sampler play on the CPU what a run has trained with GPUs, where there are none.

    Args:
        options: of the sampler, as they were asked for; these stay.
    """
    import ray
    import torch

    if config.num_gpus_per_env_runner == 0 or "num_gpus_per_env_runner" in options:
        return
    if ray.cluster_resources().get("GPU", 0) if ray.is_initialized() else torch.cuda.is_available():
        return
    kept = {name: value for name, value in config.engine_options.items() if name not in GPU_OPTIONS}
    alone = {"num_gpus_per_env_runner": 0, "num_env_runners": 1, "engine_options": kept}
    changes = {name: value for name, value in alone.items() if name not in options}
    for name, value in changes.items():
        setattr(config, name, value)  # RLlib's update would merge the dictionaries
    logger.warning(
        "evaluate: the run sampled on GPUs, and there are none; one sampler plays on the CPU, in %s", config.dtype
    )


def sampled_policy(policy: Policy, config: Any) -> Policy:
    """Return whose tokens are played: the policy's, or those of the endpoint's model where one samples.

    Raises:
        ConfigError: a checkpoint would be played by an endpoint, which has a model of its own.
    """
    if config.engine != "openai":
        return policy
    if policy.checkpoint is not None:
        raise ConfigError(
            f"evaluate: the engine openai samples from its endpoint's model; got the checkpoint {policy.name!r}. "
            "Name a Hugging Face model, whose tokenizer counts the tokens: `rllib evaluate tiny --config ...`."
        )
    model, url = config.engine_options["model"], config.engine_options.get("base_url")
    return Policy(f"{model} at {url}" if url else model, None)


def with_environment(
    config: Any, who: str, *, env: str | None, env_config: Mapping[str, Any] | None, split: str
) -> None:
    """Set the environments of a configuration: those that its run evaluates on, or another.

    Args:
        env: another environment's id; the run's `env_config` then does not apply.
        env_config: keys to add to or replace in `env_config`.
        split: what will be evaluated; it is checked by making the environment once.

    Raises:
        ConfigError: the environment cannot be made, or the split holds what is trained on.
    """
    set_environments(config, change_environments(config.evaluation_environments, env, env_config or {}))
    if config.env is None:
        raise ConfigError(f"evaluate: needs an environment; {who} has none of its own. Name it with --env.")
    config.evaluation_splits = (split,)
    try:
        for spec in config.environments:
            ask_text_env(spec, lambda env: None)
        check_evaluation(config)
    except (ConfigError, TypeError) as error:
        raise ConfigError(" ".join(str(error).split())) from error


def set_environments(config: Any, environments: Sequence[EnvironmentSpec]) -> None:
    """Let a configuration play these environments, and evaluate on no others."""
    if len(environments) == 1:  # a name given to ray.tune.register_env may stand alone only
        env, env_config = environments[0].env, dict(environments[0].env_config)
    else:
        env = [{"id": spec.env, "env_config": dict(spec.env_config), "name": spec.name} for spec in environments]
        env_config = {}
    # RLlib's environment() would merge the dictionaries.
    config.env, config.env_config = env, env_config
    sampling = {k: v for k, v in (config.evaluation_config or {}).items() if k not in ("env", "env_config")}
    config.evaluation_config = sampling or None
