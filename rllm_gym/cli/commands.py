"""The two commands' beginnings, which say in one line what is not installed."""

from __future__ import annotations

import sys
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


def rllib() -> None:
    """Run `rllib`."""
    if missing := missing_of(TRAINER):
        sys.exit(trainer_message("rllib", missing))
    from rllm_gym.cli.rllib import main

    main()


def rllm_gym() -> None:
    """Run `rllm-gym`, of which some commands do without the trainer."""
    if missing := missing_of(("rich", "typer")):
        sys.exit(
            f'rllm-gym: needs {" and ".join(missing)}: pip install "rllm-gym[train]", or {" ".join(missing)} alone for '
            "what needs no trainer."
        )
    from rllm_gym.cli.rllm_gym import main

    main()


def missing_of(modules: tuple[str, ...]) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def trainer_message(who: str, missing: list[str]) -> str:
    return (
        f"{who}: needs the trainer, of which {', '.join(missing)} is missing. For a CPU: "
        'pip install "rllm-gym[cpu]" (see Install in the README); for CUDA: pip install "rllm-gym[cuda]".'
    )
