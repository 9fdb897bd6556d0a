"""The two commands, `rllib` and `rllm-gym`; each says in one line what it needs and is not installed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rllm_gym.cli.requirements import TRAINER, find_missing, trainer_message

if TYPE_CHECKING:
    import typer


def rllib() -> None:
    """Run `rllib`."""
    if missing := find_missing(TRAINER):
        sys.exit(trainer_message("rllib", missing))
    make_rllib_app()()


def rllm_gym() -> None:
    """Run `rllm-gym`; some of its commands need no trainer."""
    if missing := find_missing(("rich", "typer")):
        sys.exit(
            f'rllm-gym: needs {" and ".join(missing)}: pip install "rllm-gym[train]", or {" ".join(missing)} alone for '
            "what needs no trainer."
        )
    make_rllm_gym_app()()


def make_rllib_app() -> typer.Typer:
    """Return `rllib`: it trains and evaluates, with the grammar of RLlib's classic command."""
    import typer

    from rllm_gym.cli.common import find_own_modules
    from rllm_gym.cli.evaluate import evaluate
    from rllm_gym.cli.examples import examples
    from rllm_gym.cli.train.command import train_app

    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Train and evaluate LLM agents on Gymnasium environments with RLlib.",
    )
    app.add_typer(train_app, name="train")
    app.command()(examples)
    app.command()(evaluate)
    app.callback()(find_own_modules)
    return app


def make_rllm_gym_app() -> typer.Typer:
    """Return `rllm-gym`: the commands that RLlib's classic command does not have."""
    import typer

    from rllm_gym.cli.check_env import check_env
    from rllm_gym.cli.common import find_own_modules
    from rllm_gym.cli.compare import compare
    from rllm_gym.cli.convert import convert
    from rllm_gym.cli.doctor import doctor
    from rllm_gym.cli.export import export
    from rllm_gym.cli.gateway import gateway
    from rllm_gym.cli.index import index
    from rllm_gym.cli.new_env import new_env
    from rllm_gym.cli.panel import panel
    from rllm_gym.cli.play import play
    from rllm_gym.cli.serve import serve
    from rllm_gym.cli.serve_index import serve_index
    from rllm_gym.cli.show import show
    from rllm_gym.cli.view import view
    from rllm_gym.cli.web_check import web_check

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
    app.command()(doctor)
    app.command()(compare)
    app.command()(panel)
    app.command()(show)
    app.command()(convert)
    app.command()(play)
    app.command()(view)
    app.command()(serve)
    app.command()(serve_index)
    app.command()(gateway)
    app.command()(export)
    app.callback(help="Tools for trained LLM agents.")(find_own_modules)
    return app


if __name__ == "__main__":  # python -m rllm_gym.cli.main rllib ...
    {"rllib": rllib, "rllm-gym": rllm_gym}[sys.argv.pop(1)]()
