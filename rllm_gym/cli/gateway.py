"""`rllm-gym gateway`: a policy behind OpenAI's and Anthropic's interfaces, and what it says as trajectories."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.common import errors_in_one_line, parse_mapping
from rllm_gym.cli.requirements import find_missing, need
from rllm_gym.cli.scratch import temporary_folder
from rllm_gym.cli.serve import address_error, check_reach, say
from rllm_gym.errors import ConfigError

PORT = 36003
NEEDED = ("anthropic", "fastapi", "openai", "uvicorn")


def gateway(
    policy: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help="A Hugging Face model, or a checkpoint, run or trial folder.")
    ],
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Store each conversation there once it has ended.")
    ] = None,
    rewards: Annotated[
        bool, typer.Option("--rewards", help="Each conversation ends with a reward that is posted to /reward.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; another than this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    token: Annotated[
        str | None, typer.Option(envvar="RLLM_GYM_TOKEN", help="What every request must have as its key.")
    ] = None,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Conversations open at once; one more ends the one that is idle for longest.")
    ] = 64,
    session_ttl: Annotated[float, typer.Option(min=1, help="Seconds after which an idle conversation ends.")] = 600,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that answers under way may take after SIGTERM.")] = 30,
    config: Annotated[
        str | None,
        typer.Option(help='Options of the sampler, as JSON: \'{"temperature": 0.7, "max_new_tokens": 512}\'.'),
    ] = None,
    module: Annotated[str | None, typer.Option(help="Which policy, where a checkpoint holds several.")] = None,
) -> None:
    """Let any program that speaks OpenAI's or Anthropic's HTTP interface talk to a policy, and keep what is said."""
    with errors_in_one_line():
        need("rllm-gym gateway")
        if missing := find_missing(NEEDED):
            raise ConfigError(f'gateway: needs {", ".join(missing)}: pip install "rllm-gym[server,programs]".')
        check_reach("gateway", host, token)
        options = parse_mapping("--config", config)
        logging.basicConfig(level=logging.WARNING, format="rllm-gym gateway: %(message)s")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        from rllm_gym.cli.ray_session import prepare_driver

        prepare_driver(None)
        from rllm_gym.envs.program.endpoint import MAX_REQUEST_BYTES
        from rllm_gym.server.app import Binding
        from rllm_gym.server.gateway import serve

        binding = Binding(host, port, token, max_bytes=MAX_REQUEST_BYTES, drain_s=drain)
        try:
            with temporary_folder(has_own_ray=False):
                serve(
                    policy, binding, record=record, has_rewards=rewards, max_sessions=max_sessions,
                    session_ttl_s=session_ttl, options=options, module=module, say=say,
                )  # fmt: skip
        except OSError as error:
            raise address_error("gateway", host, port, error) from error
