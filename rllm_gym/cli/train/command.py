"""`rllib train`: trains what a YAML file or options say, with the grammar of RLlib's classic command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.common import RayAddress, Verbose, errors_in_one_line
from rllm_gym.cli.examples import find_example
from rllm_gym.cli.ray_session import prepare_driver
from rllm_gym.cli.scratch import temporary_folder
from rllm_gym.cli.train.experiment import Experiment, experiment_from_options, read_experiment
from rllm_gym.cli.train.storage import check_storage
from rllm_gym.errors import ConfigError

train_app = typer.Typer(invoke_without_command=True, help="Train: from a YAML file, or from options.")

Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run of this name.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check, reset each environment once, print the resolved configuration.")
]
NoReset = Annotated[bool, typer.Option("--no-reset", help="With --dry-run: do not reset the environments.")]
Elsewhere = Annotated[
    bool, typer.Option("--elsewhere", help="With --dry-run: for another machine, leave out what this one lacks.")
]
Runs = Annotated[str, typer.Option("--storage-path", help="Folder of all runs, or an address: s3://bucket/runs.")]
RUNS = "runs"
ShowEvery = Annotated[
    int, typer.Option(min=0, help="Train steps from one episode that is shown in short to the next; 0 shows none.")
]
SHOW_EVERY = 10


@train_app.command("file")
def train_file(
    path: Annotated[Path, typer.Argument(help="A YAML file, or a shipped example's name, see `rllib examples`.")],
    config: Annotated[
        str | None, typer.Option(help="Keys of its config to add or replace, as JSON or YAML; env_config's, too.")
    ] = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    no_reset: NoReset = False,
    elsewhere: Elsewhere = False,
    ray_address: RayAddress = None,
    storage_path: Runs = RUNS,
    show_every: ShowEvery = SHOW_EVERY,
    verbose: Verbose = False,
) -> None:
    """Train the experiment in a YAML file."""
    with errors_in_one_line():
        _train(
            read_experiment(find_example(path), config),
            resume,
            dry_run,
            no_reset,
            elsewhere,
            ray_address,
            storage_path,
            show_every,
            verbose,
        )


@train_app.callback()
def train_options(
    context: typer.Context,
    algo: Annotated[str | None, typer.Option(help="Algorithm, for example GRPO.")] = None,
    env: Annotated[str | None, typer.Option(help="Environment id, for example rllm_gym/TextCraft-v0.")] = None,
    config: Annotated[str | None, typer.Option(help="The algorithm's options, as JSON or YAML.")] = None,
    stop: Annotated[str | None, typer.Option(help="When to end, as JSON: '{\"training_iteration\": 10}'.")] = None,
    checkpoint_config: Annotated[str | None, typer.Option(help="When to save, as JSON.")] = None,
    num_samples: Annotated[int, typer.Option(help="Trials of every grid point.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help='Of a sweep, as JSON: \'{"type": "asha", ...}\'.')] = None,
    loggers: Annotated[str | None, typer.Option(help="As JSON, of: tensorboard, csv, wandb, mlflow.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; default: algorithm and environment.")] = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    no_reset: NoReset = False,
    elsewhere: Elsewhere = False,
    ray_address: RayAddress = None,
    storage_path: Runs = RUNS,
    show_every: ShowEvery = SHOW_EVERY,
    verbose: Verbose = False,
) -> None:
    """Train: `rllib train file X.yaml`, or `rllib train --algo GRPO --env ... --config '{...}'`."""
    if context.invoked_subcommand is not None:
        return
    if algo is None:
        typer.echo("rllib train: needs `file X.yaml`, or --algo and --env. See rllib train --help.", err=True)
        raise typer.Exit(2)
    with errors_in_one_line():
        experiment = experiment_from_options(
            algo=algo,
            env=env,
            config=config,
            stop=stop,
            checkpoint_config=checkpoint_config,
            num_samples=num_samples,
            scheduler=scheduler,
            loggers=loggers,
            name=name,
        )
        _train(experiment, resume, dry_run, no_reset, elsewhere, ray_address, storage_path, show_every, verbose)


def _train(
    experiment: Experiment,
    resume: bool,
    dry_run: bool,
    no_reset: bool,
    elsewhere: bool,
    ray_address: str | None,
    storage_path: str,
    show_every: int,
    verbose: bool,
) -> None:
    if no_reset and not dry_run:
        raise ConfigError("--no-reset: goes with --dry-run; training has to reset the environments. Leave it out.")
    if elsewhere and not dry_run:
        raise ConfigError("--elsewhere: goes with --dry-run; training needs this machine. Leave it out.")
    if dry_run:
        from rllm_gym.cli.train import dry_run as dry

        code = dry.dry_run(
            experiment, address=ray_address, storage=storage_path, with_reset=not no_reset, elsewhere=elsewhere
        )
    else:
        code = _train_for_real(experiment, resume, ray_address, storage_path, show_every, verbose)
    if code:
        raise typer.Exit(code)


def _train_for_real(
    experiment: Experiment, resume: bool, ray_address: str | None, storage_path: str, show_every: int, verbose: bool
) -> int:
    from rllm_gym.cli.train.check import Faults, check_fully, check_quickly

    faults = Faults(experiment.source)
    config = check_quickly(experiment, faults)
    faults.raise_any()
    check_storage(storage_path, experiment.name)
    typer.echo(f"{experiment.name}: the file is in order; loading Ray, vLLM and DeepSpeed")
    prepare_driver(ray_address)
    checked = check_fully(experiment, config, faults, allow_lookup=True)
    faults.raise_any()
    assert checked is not None  # else there are faults
    from rich.console import Console

    from rllm_gym.cli.train.launch import train

    with temporary_folder(has_own_ray=ray_address is None):
        return train(
            checked,
            storage=storage_path,
            resume=resume,
            address=ray_address,
            show_every=show_every,
            verbose=verbose,
            console=Console(),
        )
