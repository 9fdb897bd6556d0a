"""The embedded corpus and its questions, which `build_embedded.py` wrote and the package ships."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.envs.searchqa.questions import Question

FOLDER = Path(__file__).with_name("data")
CORPUS = FOLDER / "corpus.jsonl.gz"
CATEGORIES = {1: "one_hop", 2: "two_hop"}


class EmbeddedQuestions:
    """The questions over the embedded corpus, numbered from 0. A named thing is asked about in one split only."""

    categories = tuple(CATEGORIES.values())

    def __init__(self) -> None:
        rows = load_rows("questions.jsonl.gz")
        self.num_items = len(rows)
        self._splits = [row["split"] for row in rows]
        self._questions = [
            Question(row["question"], tuple(row["golden_answers"]), CATEGORIES[row["hops"]], tuple(row["queries"]))
            for row in rows
        ]

    def numbers(self, split: str, categories: Collection[str]) -> Sequence[int]:
        return [
            i
            for i, question in enumerate(self._questions)
            if question.category in categories and split in ("all", self._splits[i])
        ]

    def __contains__(self, number: object) -> bool:
        return number in range(self.num_items)

    def __getitem__(self, number: int) -> Question:
        return self._questions[number]


def load_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of this package's data."""
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@functools.cache
def load_passages() -> tuple[str, ...]:
    return tuple(row["contents"] for row in load_rows("corpus.jsonl.gz"))
