"""Shared by all commands: one line per error, exit codes, options."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from rllm_gym.errors import ConfigError, RllmGymError

FAILED = 1
BAD_INPUT = 2

RayAddress = Annotated[
    str | None, typer.Option(envvar="RAY_ADDRESS", help="Join a running Ray cluster: auto, or host:port.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what Ray and its workers log.")]


def find_own_modules() -> None:
    """Add the present folder to the search path, as Ray's workers do, so that the user's modules are found."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def refuse_unused(context: typer.Context, option: str, others: tuple[str, ...], why: str) -> None:
    """Refuse options that have no effect beside another one.

    Raises:
        ConfigError: names the first that was given.
    """
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{option}: {why}; got --{name.replace('_', '-')} as well. Leave it out.")


def parse_mapping(option: str, text: str | None) -> dict[str, Any]:
    """Parse an option that is a JSON object; {} where it is left out.

    Raises:
        ConfigError: it is something else.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise ConfigError(f"{option}: must be a JSON object, like '{{\"depth\": 1}}'; got {text!r}. Correct it.")
    return found


def parse_environments(envs: list[str], env_configs: list[str]) -> list[tuple[str | None, dict[str, Any]]]:
    """Return each environment of --env with its --env-config; without any, None with the one or no --env-config.

    Raises:
        ConfigError: there are more or fewer --env-config than --env.
    """
    configs = [parse_mapping("--env-config", text) for text in env_configs]
    if len(configs) > max(1, len(envs)) or (len(envs) > 1 and 0 < len(configs) < len(envs)):
        raise ConfigError(
            f"--env-config: must be given once for each --env, or never; got {len(configs)} for {len(envs)}."
        )
    names: list[str | None] = list(envs) or [None]
    return list(zip(names, configs or [{}] * len(names), strict=True))


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Print the caller's mistakes without a traceback and exit with code 2; with code 1 what fails on its own."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from error
    except RllmGymError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt as error:
        print("ended at once, without a checkpoint", file=sys.stderr)
        number = error.args[0] if error.args else signal.SIGINT
        raise typer.Exit(128 + number) from error
