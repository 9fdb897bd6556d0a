"""Packages that a command needs."""

from __future__ import annotations

from importlib.util import find_spec

from rllm_gym.errors import ConfigError

# Installed by the extra `train`, and imported by the package.
TRAINER = (
    "accelerate",  # with which transformers looks at a model without its weights
    "deepspeed",
    "matplotlib",
    "psutil",
    "pydantic",
    "ray",
    "rich",
    "tensorboardX",
    "torch",
    "transformers",
    "typer",
    "yaml",
    "zstandard",
)


def need(who: str, modules: tuple[str, ...] = TRAINER) -> None:
    """Make sure that modules of the trainer are installed.

    Raises:
        ConfigError: names those that are missing, and how to install them.
    """
    if missing := find_missing(modules):
        raise ConfigError(trainer_message(who, missing))


def find_missing(modules: tuple[str, ...]) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def trainer_message(who: str, missing: list[str]) -> str:
    return (
        f"{who}: needs the trainer; {', '.join(missing)} is not installed. For a CPU: "
        'pip install "rllm-gym[cpu]" (see Install in the README); for CUDA: pip install "rllm-gym[cuda]".'
    )
