"""The horizon study, see `plan.md`:

python -m benchmarks.learning run --out DIR       # the search, then every run that has no row yet, one at a time
                                                  # (--seeds 4 5: these alone; rows of several folders are appended)
python -m benchmarks.learning report              # tables and curves of rows.jsonl
python -m benchmarks.learning pilot --out DIR     # two runs at full length: what the plan's minutes come from
python -m benchmarks.learning search --out DIR    # the runs on seeds that are not reported
python -m benchmarks.learning panels              # writes panels/ anew
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning import report, study, tasks, training
from benchmarks.learning.runner import (
    CHUNK_S,
    NICE,
    chosen_lrs,
    folder_of,
    make_runs,
    only_one,
    read_rows,
    say,
)

FOLDER = Path(__file__).parent
ROWS, SEARCH_ROWS = "rows.jsonl", "search.jsonl"


def run(out: Path, seeds: Sequence[int]) -> None:
    lrs = search(out)
    make_runs(out, [run for run in study.reported_runs(lrs) if run.seed in seeds], out / ROWS)


def search(out: Path) -> dict[str, float]:
    """Make the runs of the search; return the lr of each schedule that was searched."""
    file = out / SEARCH_ROWS
    make_runs(out, list(study.search_runs()), file)
    lrs = chosen_lrs(read_rows(file))
    make_runs(out, list(study.fixed_search_runs(lrs["long"])), file)
    say(f"lr: {lrs}; the best fixed horizon: {report.best_fixed_of(read_rows(file))}")
    return lrs


def pilot(out: Path) -> None:
    runs = [study.Run("babyai", schedule, seed=200, lr=study.LRS[1]) for schedule in ("long", "scaling_inter")]
    make_runs(out, runs, out / "pilot.jsonl")


def chunk(out: Path, of: study.Run) -> None:
    """Train a part of a run, in this process."""
    deadline_s = time.monotonic() + CHUNK_S
    training.train(of, folder_of(out, of), out / "start.json", deadline_s=deadline_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "pilot", "search"):
        of_runs = commands.add_parser(name)
        of_runs.add_argument("--out", type=Path, required=True, help="folder of the results")
        if name == "run":
            of_runs.add_argument("--seeds", type=int, nargs="+", choices=study.SEEDS, default=study.SEEDS)
    commands.add_parser("panels")
    of_report = commands.add_parser("report")
    of_report.add_argument("--rows", type=Path, default=FOLDER / ROWS)
    of_report.add_argument("--search", type=Path, default=FOLDER / SEARCH_ROWS)
    of_report.add_argument("--images", type=Path, default=FOLDER)
    of_chunk = commands.add_parser("chunk", help="a part of a run; the others start it")
    of_chunk.add_argument("out", type=Path)
    of_chunk.add_argument("run", type=json.loads)
    args = parser.parse_args()

    if args.command == "panels":
        tasks.write_panels(shortest=study.SHORT, horizon=study.LONG, max_new_tokens=study.MAX_NEW_TOKENS)
    elif args.command == "report":
        report.write_report(args.rows, args.search, args.images)
    elif args.command == "chunk":
        chunk(args.out, study.Run(**args.run))
    else:
        out = args.out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        os.nice(max(0, NICE - os.nice(0)))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the chunk ends, too
        with only_one(out):
            {"run": lambda out: run(out, args.seeds), "pilot": pilot, "search": search}[args.command](out)


if __name__ == "__main__":
    main()
