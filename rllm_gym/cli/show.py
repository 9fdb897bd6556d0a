"""`rllm-gym show`: prints stored episodes."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.common import errors_in_one_line
from rllm_gym.cli.requirements import need
from rllm_gym.errors import ConfigError

MAX_CHARS = 2000


def show(
    run: Annotated[Path, typer.Argument(help="A run, a trial, an evaluation's folder, or one trajectory file.")],
    item: Annotated[str | None, typer.Option(help="Episodes of this task alone, for example textcraft_17.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Those that were not solved.")] = False,
    solved: Annotated[bool, typer.Option("--solved", help="Those that were solved.")] = False,
    split: Annotated[str | None, typer.Option(help="Those of this split.")] = None,
    last: Annotated[int, typer.Option(min=1, help="How many, the latest.")] = 1,
    full: Annotated[bool, typer.Option("--full", help=f"Whole messages, not {MAX_CHARS} characters of each.")] = False,
) -> None:
    """Print episodes, the latest last: what the environment and the agent said, rewards and end."""
    with errors_in_one_line():
        need("rllm-gym show", ("pydantic", "zstandard"))
        if failed and solved:
            raise ConfigError("show: --failed and --solved exclude each other; got both. Leave one out.")
        from rllm_gym.cli.episode_text import episode_lines
        from rllm_gym.data import EpisodeRecord, read_episodes

        found: deque[EpisodeRecord] = deque(maxlen=last)
        num_read = num_found = 0
        try:
            for record in read_episodes(run):
                num_read += 1
                is_asked = (
                    (item is None or str(record.item_id) == item)
                    and (split is None or record.split == split)
                    and not (failed and record.is_success)
                    and not (solved and not record.is_success)
                )
                if is_asked:
                    num_found += 1
                    found.append(record)
        except FileNotFoundError as error:
            raise ConfigError(f"show: must be a folder or file with trajectories; got {str(run)!r}.") from error
        if not num_read:
            raise ConfigError(f"show: {str(run)!r} holds no episodes. Name a run, an evaluation's folder, or a file.")
        for record in found:
            for line in episode_lines(record, max_chars=None if full else MAX_CHARS):
                typer.echo(line)
            typer.echo()
        typer.echo(f"{len(found)} of {num_found} episodes that match, of {num_read}")
