"""`rllm-gym convert`: trajectories to and from others' files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.common import errors_in_one_line
from rllm_gym.cli.requirements import need
from rllm_gym.errors import ConfigError, nearest


def convert(
    source: Annotated[Path, typer.Argument(help="A run or any trajectories; with --from others' JSON file or folder.")],
    target: Annotated[Path, typer.Argument(help="What to write: a file; of executer_logs and --from a folder.")],
    to: Annotated[str | None, typer.Option(help="agentgym, executer_logs or inspect.")] = None,
    env: Annotated[str | None, typer.Option("--from", help="Import instead: this environment's conversations.")] = None,
    solved: Annotated[bool, typer.Option("--solved", help="Export solved episodes alone.")] = False,
) -> None:
    """Export episodes as AgentGym's conversations, AgentGym-RL's logs or Inspect's log; import the first two."""
    with errors_in_one_line():
        need("rllm-gym convert", ("pydantic", "zstandard"))
        from rllm_gym.data import TrajectoryWriter, read_episodes
        from rllm_gym.data.exchange import EXPORTS, import_records
        from rllm_gym.registration import normalize_env_id

        if (to is None) == (env is None):
            raise ConfigError("convert: needs either --to FORMAT or --from ENVIRONMENT; give one of them.")
        if target.exists() and (target.is_file() or any(target.iterdir())):
            raise ConfigError(f"convert: must write something new; {str(target)!r} is there already. Choose another.")
        if not source.exists():
            raise ConfigError(f"convert: must be a path that exists; got {str(source)!r}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        if env is not None:
            records = import_records(source, env_id=normalize_env_id(env).rpartition(":")[2])
            with TrajectoryWriter(target) as writer:
                for record in records:
                    writer.append([record])
                num_written = writer.num_records
        elif to not in EXPORTS:
            raise ConfigError(
                f"convert: --to must be one of {', '.join(EXPORTS)}; got {to!r}. Did you mean {nearest(to, EXPORTS)!r}?"
            )
        else:
            chosen = (record for record in read_episodes(source) if record.is_success or not solved)
            num_written = EXPORTS[to](chosen, target)
    typer.echo(f"{num_written} episodes in {target}")
