"""Questions with their answers: from files in Search-R1's format, numbered as AgentGym numbers them."""

from __future__ import annotations

import bisect
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rllm_gym.envs.searchqa.retrievers.base import need
from rllm_gym.errors import ConfigError

# First item and the one after the last, by dataset and split of its source: the item ranges of AgentGym's SearchQA
# server (agentenv-searchqa, arXiv:2509.08755). Its page lists 221328 as the last item; the code stops one earlier.
AGENTGYM_RANGES = {
    ("nq", "test"): (0, 3610),
    ("triviaqa", "test"): (3610, 14923),
    ("popqa", "test"): (14923, 29190),
    ("hotpotqa", "test"): (29190, 36595),
    ("2wikimultihopqa", "test"): (36595, 49171),
    ("musique", "test"): (49171, 51588),
    ("bamboogle", "test"): (51588, 51713),
    ("nq", "train"): (51713, 130881),
    ("hotpotqa", "train"): (130881, 221328),
}
DATASETS = tuple(dict.fromkeys(dataset for dataset, _ in AGENTGYM_RANGES))
SPLIT_OF_SOURCE = {"train": "train", "test": "eval"}
_COLUMNS = ("question", "golden_answers", "data_source", "reward_model", "extra_info", "prompt")
_FORMATS = (".parquet", ".jsonl")


@dataclass(frozen=True)
class Question:
    """A question.

    Args:
        text: the question.
        answers: every spelling that counts.
        category: its dataset, or the hops of an embedded one.
        queries: searches that find the answer, in order; empty where nobody knows them.
    """

    text: str
    answers: tuple[str, ...]
    category: str
    queries: tuple[str, ...] = ()


class Questions(Protocol):
    """Numbered questions; not every number below `num_items` need have one."""

    num_items: int
    categories: tuple[str, ...]

    def numbers(self, split: str, categories: Collection[str]) -> Sequence[int]:
        """Return the numbers of some categories in a split ("train", "eval" or "all"), in order."""

    def __contains__(self, number: object) -> bool: ...

    def __getitem__(self, number: int) -> Question: ...


class FileQuestions:
    """Questions of files in Search-R1's format, Parquet or JSONL, one row each.

    A row has `data_source` (one of the seven datasets), `question` (or `prompt`, after whose last "Question:" it
    stands), the answers in `reward_model.ground_truth.target` (or `golden_answers`), and in `extra_info` its source's
    `split` and its `index` there. Without `extra_info`, the split is train if the file's name says so and else test,
    and the index counts the rows of the dataset.

    Item number = first number of the dataset and split in `AGENTGYM_RANGES` + index. So AgentGym's `train.parquet` and
    `test.parquet` get AgentGym's numbers, and a part of them keeps its numbers.

    Args:
        paths: files, or folders to look into for files.

    Raises:
        ConfigError: no such file, a row that is not in this form, or two rows of one number.
    """

    num_items = max(stop for _, stop in AGENTGYM_RANGES.values())
    categories = DATASETS

    def __init__(self, paths: Sequence[Path]) -> None:
        pyarrow: Any = need("pyarrow")  # columns of Arrow take a quarter of the memory of Python's objects
        rows: dict[int, tuple[str, list[str]]] = {}
        counts: dict[tuple[str, str], int] = {}
        for path in _files(paths):
            for line, row in _rows(path):
                number, question, answers = _parse(row, path, line, counts)
                if number in rows:
                    raise _bad_row(path, line, "has the number of another row", f"{number} twice")
                rows[number] = question, answers
        self._numbers = sorted(rows)
        self._texts = pyarrow.array([rows[number][0] for number in self._numbers], pyarrow.string())
        self._answers = pyarrow.array([rows[number][1] for number in self._numbers], pyarrow.list_(pyarrow.string()))

    def numbers(self, split: str, categories: Collection[str]) -> Sequence[int]:
        chosen: list[int] = []
        for (dataset, source_split), (start, stop) in AGENTGYM_RANGES.items():  # in ascending order
            if dataset in categories and split in ("all", SPLIT_OF_SOURCE[source_split]):
                first, last = (bisect.bisect_left(self._numbers, bound) for bound in (start, stop))
                chosen += self._numbers[first:last]
        return chosen

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._row(number) is not None

    def __getitem__(self, number: int) -> Question:
        row = self._row(number)
        if row is None:
            raise KeyError(number)
        return Question(self._texts[row].as_py(), tuple(self._answers[row].as_py()), _range_of(number)[0])

    def _row(self, number: int) -> int | None:
        row = bisect.bisect_left(self._numbers, number)
        return row if row < len(self._numbers) and self._numbers[row] == number else None


def _range_of(number: int) -> tuple[str, str]:
    return next(key for key, (start, stop) in AGENTGYM_RANGES.items() if start <= number < stop)


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        found = sorted(p for p in path.rglob("*") if p.suffix in _FORMATS) if path.is_dir() else [path]
        if not found or found[0].suffix not in _FORMATS or not found[0].is_file():
            raise ConfigError(
                f"SearchQAEnv: data must be .parquet or .jsonl files, or a folder with some; got {str(path)!r}. "
                "Correct the path."
            )
        files += found
    return files


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file, with their numbers counted from 1."""
    if path.suffix == ".parquet":
        pyarrow, parquet = need("pyarrow"), need("pyarrow.parquet", "pyarrow")
        try:
            file = parquet.ParquetFile(path)
        except pyarrow.ArrowException as e:
            raise ConfigError(f"SearchQAEnv: {path} must be a Parquet file; got {e}. Correct it.") from e
        batches = file.iter_batches(columns=[name for name in file.schema_arrow.names if name in _COLUMNS])
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as e:
                    raise _bad_row(path, number, "must be JSON", line[:80]) from e


def _parse(row: Any, path: Path, line: int, counts: dict[tuple[str, str], int]) -> tuple[int, str, list[str]]:
    """Return the number, question and answers of a row."""
    if not isinstance(row, dict):
        raise _bad_row(path, line, "must be an object", row)
    extra = row.get("extra_info")
    split = "train" if "train" in str(_inside(extra, "split") or path.stem) else "test"
    key = (str(row.get("data_source")), split)
    if key not in AGENTGYM_RANGES:
        raise _bad_row(path, line, f"must have a data_source of {', '.join(DATASETS)} with a {split} split", key[0])
    start, stop = AGENTGYM_RANGES[key]
    index = _inside(extra, "index")
    if index is None:
        index = counts[key] = counts.get(key, -1) + 1
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < stop - start:
        raise _bad_row(path, line, f"must have an index below {stop - start} in {key[0]}'s {split} split", index)
    answers = _inside(row, "reward_model", "ground_truth", "target")
    answers = row.get("golden_answers") if answers is None else answers
    answers = [answers] if isinstance(answers, str) else answers
    if not (isinstance(answers, list) and answers and all(isinstance(answer, str) for answer in answers)):
        raise _bad_row(path, line, "must have answers in reward_model.ground_truth.target or golden_answers", answers)
    question = row.get("question") or _from_prompt(row.get("prompt"))
    if not (isinstance(question, str) and question.strip()):
        raise _bad_row(path, line, "must have a question, or a prompt with one after 'Question:'", row.get("prompt"))
    return start + index, question.strip(), answers


def _inside(value: Any, *keys: str) -> Any:
    """Return the value in nested objects under some keys, or None where one of them is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _from_prompt(prompt: Any) -> str:
    try:
        return prompt[-1]["content"].rpartition("Question:")[2].strip()
    except (AttributeError, TypeError, KeyError, IndexError):
        return ""


def _bad_row(path: Path, line: int, rule: str, got: object) -> ConfigError:
    return ConfigError(f"SearchQAEnv: row {line} of {path} {rule}; got {got!r}. Correct it.")
