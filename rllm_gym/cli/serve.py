"""`rllm-gym serve`: environments over HTTP, in OpenEnv's protocol and in AgentGym's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Annotated, Any

import typer

from rllm_gym.cli.common import RayAddress, errors_in_one_line, parse_mapping
from rllm_gym.cli.requirements import find_missing, need
from rllm_gym.cli.scratch import temporary_folder
from rllm_gym.errors import ConfigError, nearest

PORT = 36001
SERVER = ("fastapi", "uvicorn", "websockets")
# Not in the extra: what it pins clashes with vLLM.
OPENENV = ("openenv", "fastmcp")
PROTOCOLS = ("openenv", "agentgym", "both")


def serve(
    env: Annotated[list[str], typer.Option(help="An environment's id; give it again for more.")],
    env_config: Annotated[
        list[str] | None, typer.Option(help="Keywords of the environment, as JSON; for several, one for each.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="openenv, agentgym or both.")] = "both",
    host: Annotated[str, typer.Option(help="Address to listen on; another than this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    workers: Annotated[
        str, typer.Option(help="Processes that environments run in; auto is one for each CPU.")
    ] = "auto",
    token: Annotated[
        str | None, typer.Option(envvar="RLLM_GYM_TOKEN", help="Bearer token that every request must have.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Open at once; more get 503, or CAPACITY_REACHED.")] = 2000,
    session_ttl: Annotated[float, typer.Option(min=1, help="Seconds after which an idle session is closed.")] = 1800,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that one call of an environment may take.")] = 120,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that calls under way may take after SIGTERM.")] = 10,
    max_request_mb: Annotated[float, typer.Option(min=0.001, help="Size of one request or message.")] = 4,
    ray: Annotated[
        bool, typer.Option("--ray", help="The workers are Ray actors, so that they may be on other nodes.")
    ] = (False),
    ray_address: RayAddress = None,
) -> None:
    """Serve environments over HTTP, for this package's clients and for those of OpenEnv and AgentGym."""
    with errors_in_one_line():
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"serve: --protocol must be one of {', '.join(PROTOCOLS)}; got {protocol!r}. "
                f"Did you mean {nearest(protocol, PROTOCOLS)!r}?"
            )
        _need_libraries(protocol)
        check_reach("serve", host, token)
        environments = _environments(env, env_config or [])
        logging.basicConfig(level=logging.WARNING, format="rllm-gym serve: %(message)s")
        from rllm_gym.server.app import Binding
        from rllm_gym.server.app import serve as serve_until_stopped
        from rllm_gym.server.sessions import SessionTable
        from rllm_gym.server.workers import ProcessWorker, RayWorker

        num_workers = _num_workers(workers)
        table = SessionTable(
            environments,
            RayWorker if ray else ProcessWorker,
            num_workers=num_workers,
            max_sessions=max_sessions,
            session_ttl_s=session_ttl,
            timeout_s=timeout,
        )
        binding = Binding(host, port, token, max_bytes=int(max_request_mb * 2**20), drain_s=drain)
        try:
            # What killed workers leave goes with the server.
            with temporary_folder(has_own_ray=ray_address is None), _cluster(ray, ray_address, num_workers):
                asyncio.run(serve_until_stopped(table, protocol, binding, say=say))
        except OSError as error:
            raise address_error("serve", host, port, error) from error


def check_reach(who: str, host: str, token: str | None) -> None:
    """Refuse to serve other machines without a token."""
    from rllm_gym.bearer_token import is_own_host

    if token is None and not is_own_host(host):
        raise ConfigError(
            f"{who}: who reaches an address from elsewhere must have a token; got --host {host} and no --token. "
            "Set --token, or RLLM_GYM_TOKEN, or leave --host out."
        )


def address_error(who: str, host: str, port: int, error: OSError) -> ConfigError:
    why = error.strerror or error
    return ConfigError(f"{who}: the address must be free; got {host}:{port} ({why}). Set --port.")


def say(text: str) -> None:
    print(text, flush=True)  # for whoever waits for the line on a pipe


def _need_libraries(protocol: str) -> None:
    missing = find_missing(SERVER)
    if missing:
        raise ConfigError(f'serve: needs {", ".join(missing)}: pip install "rllm-gym[server]".')
    missing = find_missing(OPENENV) if protocol != "agentgym" else []
    if missing:
        raise ConfigError(
            f'serve: OpenEnv\'s protocol needs {" and ".join(missing)}: pip install "rllm-gym[server]" and then '
            "pip install --no-deps openenv==0.10.0; or serve with --protocol agentgym."
        )


def _environments(env: list[str], env_config: list[str]) -> dict[str, dict[str, Any]]:
    from rllm_gym.registration import normalize_env_id

    if len(env_config) not in (0, len(env)):
        raise ConfigError(
            f"serve: --env-config must come once for each --env, or not at all; got {len(env_config)} for {len(env)}."
        )
    environments = {}
    for env_id, config in zip(env, env_config or ["{}"] * len(env), strict=True):
        full_id = normalize_env_id(env_id)
        name = full_id.rpartition("/")[2].rpartition(":")[2]
        if name in environments:
            raise ConfigError(f"serve: --env must name each environment once; got {name} twice. Start two servers.")
        environments[name] = {"env": full_id, "env_config": parse_mapping("--env-config", config)}
    return environments


def _num_workers(workers: str) -> int:
    if workers == "auto":
        return max(1, os.cpu_count() or 1)
    if not workers.isdigit() or not int(workers):
        raise ConfigError(f"serve: --workers must be auto or a number from 1 on; got {workers!r}.")
    return int(workers)


def _cluster(is_wanted: bool, address: str | None, num_workers: int) -> contextlib.AbstractContextManager[None]:
    if not is_wanted:
        return contextlib.nullcontext()
    need("serve: --ray")
    from rllm_gym.cli.ray_session import prepare_driver, ray_session

    prepare_driver(address)
    return ray_session(address, [[{"CPU": 1}] * num_workers], verbose=False)
