"""`rllm-gym`: the commands that RLlib's classic command does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.check_env import check_env
from rllm_gym.cli.commands import TRAINER, missing_of, trainer_message
from rllm_gym.cli.common import errors_in_one_line, find_own_modules
from rllm_gym.cli.comparison import compare
from rllm_gym.cli.convert import convert
from rllm_gym.cli.index import index
from rllm_gym.cli.new_env import new_env
from rllm_gym.cli.panels import panel
from rllm_gym.cli.play_env import play
from rllm_gym.cli.serve import serve
from rllm_gym.cli.serve_index import serve_index
from rllm_gym.cli.show import show
from rllm_gym.cli.view import view
from rllm_gym.cli.web_check import web_check
from rllm_gym.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Tools for trained LLM agents.",
)


app.command()(index)
app.command()(web_check)
app.command()(new_env)
app.command()(check_env)
app.command()(compare)
app.command()(panel)
app.command()(show)
app.command()(convert)
app.command()(play)
app.command()(view)
app.command()(serve)
app.command()(serve_index)


@app.callback()
def _commands() -> None:
    """Tools for trained LLM agents."""
    find_own_modules()


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run or trial folder: its newest checkpoint.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The Hugging Face folder to write.")],
    module: Annotated[str | None, typer.Option(help="Which policy, where a checkpoint holds several.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write a trained policy as a Hugging Face model folder."""
    with errors_in_one_line():
        if missing := missing_of(TRAINER):
            raise ConfigError(trainer_message("rllm-gym export", missing))
        from rllm_gym.checkpoints import resolve_checkpoint
        from rllm_gym.cli.ray_session import prepare_driver

        path = resolve_checkpoint(checkpoint)
        prepare_driver(None)
        from rllm_gym.evaluation.export import export_policy

        chosen = export_policy(path, folder, module=module, overwrite=force)
    typer.echo(f"wrote {chosen} of {path} to {folder}")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
