"""The index of all episodes: their rows and places in the files, brought up to date while runs go on writing."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from rllm_gym.errors import ConfigError, TrajectoryError
from rllm_gym.strangers_files import MAX_LINE_BYTES
from rllm_gym.viewer.rows import Row, parse_row, says
from rllm_gym.viewer.runs import Trial, find_results, folder_of, make_curves, make_label, read_trial
from rllm_gym.viewer.shards import ReplacedError, Shard, find_shards
from rllm_gym.viewer.token_texts import TokenTexts

logger = logging.getLogger(__name__)

MAX_DAMAGE_SHOWN = 20


class Index:
    """Rows of all records below some paths, in the order in which they were found.

    Args:
        paths: runs, trials, evaluations, trajectory folders, or files.
        tokenizer: the model whose tokens they are, where the files do not say.

    Attributes:
        generation: goes up when what was read before is no longer true, and everything is read anew.

    Raises:
        ConfigError: there is no such path.
    """

    def __init__(self, paths: Sequence[Path], *, tokenizer: str = "") -> None:
        for path in paths:
            if not path.exists():
                raise ConfigError(
                    f"view: must be a run, an evaluation or a trajectory file; got {str(path)!r}, which is not there."
                )
        self.paths = list(paths)
        self.generation = 0
        self._texts = TokenTexts(tokenizer)
        self._lock = threading.Lock()  # one refresh at a time
        self._clear()

    def _clear(self) -> None:
        self.is_complete = False  # all files have been read once
        self.rows: list[Row] = []
        self.json_rows: list[bytes] = []
        self.hidden: set[int] = set()  # what resumed trials have played again
        self.num_damaged = 0
        self.damaged: list[str] = []  # the first ones
        self.trials: list[Trial] = []
        self.labels: list[str] = []  # of runs
        self._runs: dict[str, Path] = {}
        self._shards: dict[Path, tuple[Shard, int]] = {}
        self._places: list[tuple[Shard, int]] = []
        self._by_id: dict[str, int] = {}
        self._num_named: Counter[str] = Counter()
        self._latest: dict[tuple[Any, ...], int] = {}

    def refresh(self) -> None:
        """Read the lines that have come since the last call."""
        with self._lock:
            try:
                for path in self.paths:
                    for folder in find_results(path):
                        self._trial_number(folder)
                    for shard in find_shards(path):
                        self._read(shard)
            except (ReplacedError, FileNotFoundError) as error:
                logger.info("view: %s; everything is read anew", error)
                self.generation += 1
                self._clear()
                return
            self.is_complete = True

    def state(self, since: int, generation: int) -> bytes:
        """Return JSON for the page: the rows from number `since` on, and what else has changed."""
        if generation != self.generation:
            since = 0
        num_rows = len(self.json_rows)
        head = {
            "generation": self.generation,
            "first": since,
            "isComplete": self.is_complete,
            "columns": list(Row.__annotations__),
            "runs": [{"label": label, "kind": self._kind(label)} for label in self.labels],
            "trials": [{"name": trial.folder.name, "model": trial.model} for trial in self.trials],
            "hidden": sorted(self.hidden),
            "numDamaged": self.num_damaged,
            "damaged": self.damaged,
        }
        return json.dumps(head).encode()[:-1] + b',"rows":[' + b",".join(self.json_rows[since:num_rows]) + b"]}"

    def number_of(self, id: str) -> int | None:
        """Return the number of a row by its id."""
        return self._by_id.get(id)

    def episode(self, number: int) -> bytes:
        """Return JSON of a whole record, and the texts of its tokens.

        Raises:
            TrajectoryError: the file is no longer what it was.
        """
        try:
            row, (shard, offset) = self.rows[number], self._places[number]
            record = from_json(shard.line_at(offset))
            trial = self.trials[row.trial]
        except (OSError, ValueError, IndexError) as error:
            raise TrajectoryError(f"view: the files are no longer what they were ({error}). Try again.") from error
        if not isinstance(record, dict) or str(record.get("episode_id")) != row.episode:
            raise TrajectoryError(f"view: {shard.path} has just been written anew. Try again.")
        try:
            ids = {i for turn in record["turns"] for key in ("observation_ids", "action_ids") for i in turn[key]}
            texts, problem = self._texts.of(trial, ids | set(record["final_observation_ids"]))
            return to_json(
                {"id": row.id, "record": record, "texts": texts, "textsProblem": problem},
                inf_nan_mode="strings",
            )
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # a stranger's file
            raise TrajectoryError(f"view: no trajectory record ({type(error).__name__}: {error!s:.200}).") from error

    def search(self, text: str) -> list[int]:
        """Return the numbers of the rows whose messages contain a text, in any case."""
        text = text.lower()
        folded = json.dumps(text, ensure_ascii=False)[1:-1].lower()
        numbers = {(shard, offset): number for number, (shard, offset) in enumerate(list(self._places))}
        found = []
        for shard, _ in list(self._shards.values()):
            for offset, line in shard.lines():
                number = numbers.get((shard, offset))
                if number is not None and says(line, text, folded):
                    found.append(number)
        return sorted(found)

    def curves(self) -> list[dict[str, Any]]:
        """Return the curves of all runs, see `make_curves`, each with its run's label."""
        return [
            {"run": label, **curve}
            for label in self.labels
            for curve in make_curves([t for t in self.trials if self._runs[label] == t.run_folder])
        ]

    def _kind(self, label: str) -> str:
        return next(t.kind for t in self.trials if t.run_folder == self._runs[label])

    def _read(self, path: Path) -> None:
        if path not in self._shards:
            self._shards[path] = Shard(path), self._trial_number(folder_of(path))
        shard, trial = self._shards[path]
        run = self.labels.index(self._label(self.trials[trial].run_folder))
        folder = self.trials[trial].folder
        try:
            for number, offset, line in shard.new_lines():
                if line is not None and not line.strip():
                    continue
                try:
                    if line is None:
                        raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
                    row = parse_row(line, run=run, trial=trial)
                except (ValueError, RecursionError) as error:
                    self._note_damage(f"{path.name}, line {number + 1}: {error}")
                    continue
                self._add(Row(self._make_id(row, folder), *row[1:]), shard, offset)
        except TrajectoryError as error:
            if isinstance(error, ReplacedError):
                raise
            self._note_damage(str(error))
            shard.give_up()

    def _note_damage(self, text: str) -> None:
        self.num_damaged += 1
        if self.num_damaged <= MAX_DAMAGE_SHOWN:
            self.damaged.append(text)

    def _add(self, row: Row, shard: Shard, offset: int) -> None:
        number = len(self.rows)
        self._hide_earlier(row, number)
        self._places.append((shard, offset))
        self._by_id[row.id] = number
        self.rows.append(row)
        self.json_rows.append(json.dumps(row, separators=(",", ":")).encode())

    def _make_id(self, row: Row, folder: Path) -> str:
        """Return a name that stays the record's whatever becomes of its file; a link to an episode holds it."""
        name = f"{self.labels[row.run]}/{folder.name}/{row.episode}/{row.agent}/{row.split}/{row.step}"
        again = self._num_named[name]  # an episode that had failed is played again under its name
        self._num_named[name] += 1
        return hashlib.blake2s(f"{name}/{again}".encode(errors="replace"), digest_size=6).hexdigest()

    def _hide_earlier(self, row: Row, number: int) -> None:
        """Of an episode that a resumed trial has played again only that trial's counts."""
        folder = self.trials[row.trial].folder
        key = (self.trials[row.trial].origin, row.episode, row.agent, row.step)
        other = self._latest.get(key)
        if other is not None and self.rows[other].trial != row.trial:
            is_later = folder.name > self.trials[self.rows[other].trial].folder.name  # names begin with the time
            self.hidden.add(other if is_later else number)
            if not is_later:
                return
        self._latest[key] = number

    def _trial_number(self, folder: Path) -> int:
        for number, other in enumerate(self.trials):
            if other.folder == folder:
                return number
        trial = read_trial(folder)
        self.trials.append(trial)
        self._label(trial.run_folder)
        return len(self.trials) - 1

    def _label(self, folder: Path) -> str:
        label = make_label(folder, self._runs)
        if label not in self._runs:
            self._runs[label] = folder
            self.labels.append(label)
        return label
