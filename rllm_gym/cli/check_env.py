"""`rllm-gym check-env`: checks an environment against the contract that training and evaluation count on."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rllm_gym.cli.common import FAILED, errors_in_one_line, parse_mapping


def check_env(
    env: Annotated[str, typer.Argument(help="module:Class, or an id like my_env:me/MyEnv-v0.")],
    env_config: Annotated[str | None, typer.Option(help="Keywords of the environment, as JSON.")] = None,
) -> None:
    """Check that an environment keeps the rules of a text environment: one line a rule; fails if one is broken."""
    with errors_in_one_line():
        from rllm_gym.envs.contract import findings

        num_broken = num_rules = 0
        for found in findings(functools.partial(find_maker(env), **parse_mapping("--env-config", env_config))):
            num_rules += 1
            if found.broken:
                num_broken += 1
                typer.echo(f"BROKEN       {found.rule}: {found.broken}")
            elif found.not_checked:
                typer.echo(f"not checked  {found.rule}: {found.not_checked}")
            else:
                typer.echo(f"ok           {found.rule}")
    if num_broken:
        typer.echo(f"check-env: {num_broken} of {num_rules} rules are broken", err=True)
        raise typer.Exit(FAILED)


def find_maker(env: str) -> Callable[..., Any]:
    """Return a callable that makes the environment at the text level, with the keywords that it is called with."""
    if re.fullmatch(r"[\w.]+:\w+", env):
        from rllm_gym.importing import import_object
        from rllm_gym.registration import create_multi_agent, make_env

        create = import_object("check-env", env)
        if hasattr(create, "possible_agents"):
            return functools.partial(create_multi_agent, create)
        return functools.partial(make_env, create, obs_type="text")
    from rllm_gym.registration import normalize_env_id
    from rllm_gym.rollout.environments import EnvironmentSpec, make_text_env

    env_id = normalize_env_id(env)
    return lambda **kwargs: make_text_env(EnvironmentSpec(env_id, env_id, kwargs))
