"""`rllm-gym export`: writes a trained policy as a Hugging Face model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.common import errors_in_one_line
from rllm_gym.cli.requirements import need


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run or trial folder: its newest checkpoint.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The Hugging Face folder to write.")],
    module: Annotated[str | None, typer.Option(help="Which policy, where a checkpoint holds several.")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the adapter of `lora` alone, in peft's form.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write a trained policy as a Hugging Face model folder."""
    with errors_in_one_line():
        need("rllm-gym export")
        from rllm_gym.checkpoints import resolve_checkpoint
        from rllm_gym.cli.ray_session import prepare_driver

        path = resolve_checkpoint(checkpoint)
        prepare_driver(None)
        from rllm_gym.evaluation.export import export_adapter, export_policy

        write = export_adapter if adapter else export_policy
        chosen = write(path, folder, module=module, overwrite=force)
    typer.echo(f"wrote {chosen} of {path} to {folder}")
