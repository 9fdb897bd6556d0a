"""The study of horizons, see `plan.md` and `plan_textcraft.md`, and of methods, see `plan_methods.md`:

python -m benchmarks.learning run --out DIR       # the search, then every run that has no row yet, one at a time
                                                  # (--seeds 4 5: these alone; rows of several folders are appended)
                                                  # (--on textcraft: the second environment)
python -m benchmarks.learning methods --out DIR   # the same of the methods; GRPO's come from the horizons' rows, too
                                                  # (--only rloo ppo: these alone)
python -m benchmarks.learning report              # tables and curves of all rows
python -m benchmarks.learning pilot --out DIR     # two runs at full length: what the plan's minutes come from
python -m benchmarks.learning search --out DIR    # the runs on seeds that are not reported
python -m benchmarks.learning panels              # writes panels/ anew (--on textcraft: of the second environment)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import report, study, tasks, training
from benchmarks.learning.runner import (
    CHUNK_S,
    NICE,
    as_method_rows,
    chosen_lrs,
    common_lr,
    folder_of,
    make_runs,
    only_one,
    read_rows,
    rows_of,
    say,
    start_of,
)

FOLDER = Path(__file__).parent
ROWS, SEARCH_ROWS = "rows.jsonl", "search.jsonl"
TEXTCRAFT_ROWS, TEXTCRAFT_SEARCH_ROWS = "textcraft.jsonl", "textcraft_search.jsonl"
METHOD_ROWS, METHOD_SEARCH_ROWS = "methods.jsonl", "methods_search.jsonl"


def run(out: Path, seeds: Sequence[int]) -> None:
    lrs = search(out)
    make_runs(out, [run for run in study.reported_runs(lrs) if run.seed in seeds], out / ROWS)


def search(out: Path) -> dict[str, float]:
    """Make the runs of the search; return the lr of each schedule that was searched."""
    file = out / SEARCH_ROWS
    make_runs(out, list(study.search_runs()), file)
    lrs = chosen_lrs(read_rows(file), study.SEARCHED)
    make_runs(out, list(study.fixed_search_runs(lrs["long"])), file)
    say(f"lr: {lrs}; the best fixed horizon: {report.best_fixed_of(read_rows(file), lrs['long'], study.FIXED)}")
    return lrs


def run_textcraft(out: Path, seeds: Sequence[int]) -> None:
    file = out / TEXTCRAFT_SEARCH_ROWS
    make_runs(out, list(study.textcraft_search_runs()), file)
    lr = common_lr(read_rows(file))
    say(f"lr: {lr}")
    for rate in study.textcraft_lrs(lr):
        make_runs(out, [run for run in study.textcraft_runs(rate) if run.seed in seeds], out / TEXTCRAFT_ROWS)


def methods(out: Path, names: Collection[str]) -> None:
    searched, found = list(study.method_search_runs(names)), as_method_rows(read_rows(FOLDER / SEARCH_ROWS))
    make_runs(out, searched, out / METHOD_SEARCH_ROWS, found)
    rows = rows_of(searched, [*found, *read_rows(out / METHOD_SEARCH_ROWS)])
    lrs = chosen_lrs(rows, {run.method for run in searched}, key="method")
    say(f"lr: {lrs}")
    make_runs(out, list(study.method_runs(names, lrs)), out / METHOD_ROWS, as_method_rows(read_rows(FOLDER / ROWS)))


def pilot(out: Path) -> None:
    runs = [study.Run("babyai", schedule, seed=200, lr=study.LRS[1]) for schedule in ("long", "scaling_inter")]
    make_runs(out, runs, out / "pilot.jsonl")


def chunk(out: Path, of: study.Run) -> None:
    """Train a part of a run, in this process."""
    deadline_s = time.monotonic() + CHUNK_S
    training.train(of, folder_of(out, of), start_of(out, of), deadline_s=deadline_s)


def report_on(folder: Path, images: Path) -> None:
    """Print the tables of a folder's rows."""

    def rows(*names: str) -> list[list[dict[str, Any]]]:
        return [read_rows(folder / name) for name in names]

    print("BabyAI")
    report.write_report(*rows(ROWS, SEARCH_ROWS), images)
    print("\nTextCraft")
    report.write_textcraft(*rows(TEXTCRAFT_ROWS, TEXTCRAFT_SEARCH_ROWS), images)
    report.write_methods(*rows(METHOD_ROWS, METHOD_SEARCH_ROWS, ROWS, SEARCH_ROWS), images)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "methods", "pilot", "search"):
        of_runs = commands.add_parser(name)
        of_runs.add_argument("--out", type=Path, required=True, help="folder of the results")
        if name == "run":
            of_runs.add_argument("--on", choices=tasks.TASK_SETS, default="babyai")
            of_runs.add_argument("--seeds", type=int, nargs="+", help="these of the environment's seeds alone")
        if name == "methods":
            of_runs.add_argument("--only", nargs="+", choices=study.METHODS, default=list(study.METHODS))
    commands.add_parser("panels").add_argument("--on", choices=tasks.TASK_SETS, default="babyai")
    of_report = commands.add_parser("report")
    of_report.add_argument("--rows", type=Path, default=FOLDER, help="folder of the rows")
    of_report.add_argument("--images", type=Path, default=FOLDER)
    of_chunk = commands.add_parser("chunk", help="a part of a run; the others start it")
    of_chunk.add_argument("out", type=Path)
    of_chunk.add_argument("run", type=json.loads)
    args = parser.parse_args()
    if args.command == "run":
        every = study.SEEDS_OF[args.on]
        if unknown := set(args.seeds or ()) - set(every):
            parser.error(f"argument --seeds: {args.on} has the seeds {list(every)}, not {sorted(unknown)}")
        args.seeds = args.seeds or every

    if args.command == "panels":
        of = tasks.TASK_SETS[args.on]
        of.write_panels(shortest=study.SHORT, horizon=study.LONG, max_new_tokens=study.MAX_NEW_TOKENS)
    elif args.command == "report":
        report_on(args.rows, args.images)
    elif args.command == "chunk":
        chunk(args.out, study.Run(**args.run))
    else:
        out = args.out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        os.nice(max(0, NICE - os.nice(0)))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the chunk ends, too
        with only_one(out):
            match args.command:
                case "run" if args.on == "textcraft":
                    run_textcraft(out, args.seeds)
                case "run":
                    run(out, args.seeds)
                case "methods":
                    methods(out, args.only)
                case "pilot":
                    pilot(out)
                case "search":
                    search(out)


if __name__ == "__main__":
    main()
