"""`rllm-gym view`: a page that replays episodes, in a browser on this machine or in one file."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rllm_gym.cli.common import errors_in_one_line, parse_environments, refuse_unused
from rllm_gym.cli.requirements import find_missing, need
from rllm_gym.cli.scratch import temporary_folder
from rllm_gym.errors import ConfigError

if TYPE_CHECKING:
    from rllm_gym.viewer.episode_index import Index

LANGUAGE_MODEL = ("torch", "transformers")
NEEDED = ("pydantic", "starlette", "uvicorn", "zstandard")


def view(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Runs, evaluations, trajectory files; none: the hub."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of 127.0.0.1; 0 is any free one.")] = 8420,
    model: Annotated[
        list[str] | None, typer.Option(help="A model or checkpoint that may act in the hub; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="An environment for the hub: module:Name-v0 of your own, or what --env-config is for."),
    ] = None,
    env_config: Annotated[
        list[str] | None,
        typer.Option(help="Keywords of --env as JSON, one for each; the page can set no path, address or module."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let in every user of this machine, who may play in the hub as you.")
    ] = False,
    tokenizer: Annotated[
        str, typer.Option(help="The model whose tokens the files hold, where they do not say; on this machine.")
    ] = "",
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write one self-contained file instead of serving.")
    ] = None,
    max_episodes: Annotated[int, typer.Option(min=1, help="Of the exported file; whole groups, evenly chosen.")] = 500,
) -> None:
    """Look at episodes, groups and curves of runs while they train or after, and play environments by hand."""
    with errors_in_one_line():
        if missing := find_missing(NEEDED):
            raise ConfigError(f'rllm-gym view: needs {", ".join(missing)}: pip install "rllm-gym[view]".')
        from rllm_gym.viewer.episode_index import Index

        paths = runs or []
        if export is not None:
            refuse_unused(context, "--export", ("port", "model", "env", "env_config", "no_token"), "a file has no hub")
            _export(Index(paths, tokenizer=tokenizer), export, max_episodes)
            return
        refuse_unused(
            context, "view", ("max_episodes",), "a page that is served shows all; --max-episodes is of --export"
        )
        if env_config and not env:
            raise ConfigError("--env-config: goes with an --env; got none. Say which environment it is for.")
        envs = {name: keywords for name, keywords in parse_environments(env or [], env_config or []) if name}
        _serve(Index(paths, tokenizer=tokenizer), port, model or [], envs, has_token=not no_token)


def _export(index: Index, file: Path, max_episodes: int) -> None:
    from rllm_gym.viewer.one_file import export

    index.refresh()
    num_written, num_all = export(index, file, max_episodes=max_episodes)
    size_mb = file.stat().st_size / 1e6
    typer.echo(f"wrote {num_written:,} of {num_all:,} episodes to {file} ({size_mb:.1f} MB)")


def _serve(
    index: Index, port: int, models: list[str], envs: Mapping[str, Mapping[str, Any]], *, has_token: bool
) -> None:
    from rllm_gym.registration import normalize_env_id
    from rllm_gym.viewer.hub import Hub
    from rllm_gym.viewer.policies import find_policies
    from rllm_gym.viewer.server import serve

    ids = {env: normalize_env_id(env).rpartition(":")[2] for env in envs}  # says what is wrong with it
    if models:
        need("rllm-gym view --model", LANGUAGE_MODEL)
    policies = {} if find_missing(LANGUAGE_MODEL) else find_policies(index.paths, models)
    modules = [env.rpartition(":")[0] for env in envs if ":" in env]
    hub = Hub(policies, modules=modules, env_configs={ids[env]: env_config for env, env_config in envs.items()})
    # What the hub's killed environments leave goes with it; Ctrl-C is how it ends.
    with temporary_folder(has_own_ray=False), contextlib.suppress(KeyboardInterrupt):
        serve(
            index,
            hub,
            port=port,
            on_start=_say,
            has_token=has_token,
        )


def _say(url: str) -> None:
    place, _, token = url.partition("?")
    # The place comes first, for whoever reads the port from this line.
    typer.echo(f"{place} serves the page; open {url}   (Ctrl-C ends it)" if token else f"{url}   (Ctrl-C ends it)")
