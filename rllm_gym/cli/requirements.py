"""What a command needs to be installed."""

from __future__ import annotations

from importlib.util import find_spec

# What the extra `train` installs and the package imports.
TRAINER = (
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


def missing_of(modules: tuple[str, ...]) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def trainer_message(who: str, missing: list[str]) -> str:
    return (
        f"{who}: needs the trainer, of which {', '.join(missing)} is missing. For a CPU: "
        'pip install "rllm-gym[cpu]" (see Install in the README); for CUDA: pip install "rllm-gym[cuda]".'
    )
