"""`rllm-gym compare`: says whether one policy does better than another on the same tasks, and on which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rllm_gym.cli.common import errors_in_one_line
from rllm_gym.cli.requirements import need

NUM_SHOWN = 20


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="A B [C...]", help="What `rllib evaluate --out` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every task that changed.")] = False,
) -> None:
    """Compare evaluations on one panel, each with the first: difference, interval, McNemar's test, changed tasks."""
    with errors_in_one_line():
        need("rllm-gym compare")
        from rllm_gym.evaluation.compare import compare as compared
        from rllm_gym.evaluation.compare import read_result
        from rllm_gym.evaluation.report import markdown_table

        read = [{**read_result(path), "model": str(path)} for path in results]
        pairs = compared(read)
        if as_json:
            typer.echo(json.dumps(pairs, indent=1))
            return
        typer.echo(markdown_table(read))
        for pair in pairs:
            typer.echo(_describe_pair(pair))


def _describe_pair(pair: dict[str, Any]) -> str:
    low, high = pair["interval"]
    left_out = f", {pair['left_out']} left out for errors" if pair["left_out"] else ""
    lines = [
        f"{pair['b']} against {pair['a']}: {100 * pair['difference']:+.1f} points "
        f"({100 * low:+.1f} to {100 * high:+.1f}), p = {pair['p_value']:.4f}, on {pair['num_tasks']} tasks{left_out}"
    ]
    for which in ("better", "worse"):
        tasks = pair[which]
        more = f", and {len(tasks) - NUM_SHOWN} more (--json)" if len(tasks) > NUM_SHOWN else ""
        lines.append(f"  {which} on {len(tasks)}{': ' if tasks else ''}{', '.join(tasks[:NUM_SHOWN])}{more}")
    return "\n".join(lines)
