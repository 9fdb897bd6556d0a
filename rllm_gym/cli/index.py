"""`rllm-gym index`: writes a search index for SearchQA, with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rllm_gym.cli.common import errors_in_one_line


def index(
    corpus: Annotated[str, typer.Argument(help="Passages as JSONL, as wiki-18 has them, or in gzip; or: embedded.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The index folder to write.")],
    kind: Annotated[str, typer.Option(help="bm25; flat or hnsw, which need an encoder.")] = "bm25",
    encoder: Annotated[str | None, typer.Option(help="A Hugging Face encoder, by folder or name.")] = None,
    device: Annotated[str | None, typer.Option(help="Where passages are encoded; default: a GPU if any.")] = None,
    preset: Annotated[str | None, typer.Option(help="k1 and b of bm25: bm25s (1.5, 0.75) or pyserini (0.9, 0.4).")] = (
        None
    ),
    k1: Annotated[float | None, typer.Option(help="Of bm25, in place of the preset's.")] = None,
    b: Annotated[float | None, typer.Option(help="Of bm25, in place of the preset's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that is there.")] = False,
) -> None:
    """Write a search index for SearchQA."""
    from rllm_gym.envs.searchqa.retrievers.build import build_index

    console = Console(stderr=True)
    with errors_in_one_line(), _progress(console) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage)
            progress.update(tasks[stage], completed=done, total=total)

        num_passages = build_index(
            corpus,
            folder,
            kind=kind,
            encoder=encoder,
            device=device,
            preset=preset,
            k1=k1,
            b=b,
            overwrite=force,
            report=report,
        )
    size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    typer.echo(f"wrote {kind} index of {num_passages:,} passages ({size_mb:,.1f} MB) to {folder}")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
