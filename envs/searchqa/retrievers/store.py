"""An index folder: `meta.json`, and the passages on disk, read by number without loading the rest."""

from __future__ import annotations

import contextlib
import gzip
import json
import mmap
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError

SCHEMA_VERSION = 1
_REPORT_EVERY = 1000  # passages

Report = Callable[[str, int, int], None]  # stage, done, total; the unit of the corpus is bytes, else passages or terms


class PassageStore:
    """The passages of an index folder. Their text stays in the file, which all processes map into their memory."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.memmap(folder / "offsets.bin", np.int64, "r")
        with open(folder / "passages.jsonl", "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        return json.loads(self._bytes[self._offsets[number] : self._offsets[number + 1]])


def copy_passages(corpus: Path, folder: Path, report: Report) -> Iterator[str]:
    """Write the passages of a JSONL file into an index folder, and yield the contents of each once it is written.

    Args:
        corpus: one {"id": ..., "contents": ...} or {"title": ..., "text": ...} a line, or such a file in gzip.

    Raises:
        ConfigError: the file cannot be read, is empty, or a line is no such object.
    """
    try:
        raw = open(corpus, "rb")  # noqa: SIM115 (gzip needs the file below it)
    except OSError as e:
        raise ConfigError(
            f"index: the corpus must be a JSONL file; got {str(corpus)!r} ({e}). Correct the path."
        ) from e
    total, count, offset = corpus.stat().st_size, 0, 0
    with raw, open(folder / "passages.jsonl", "wb") as passages, open(folder / "offsets.bin", "wb") as offsets:
        lines = gzip.GzipFile(fileobj=raw) if corpus.suffix == ".gz" else raw
        offsets.write(np.int64(0).tobytes())
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                contents = read_contents(line)
            except ValueError as e:
                raise ConfigError(f"index: line {number} of the corpus {corpus} {e}. Correct it.") from e
            offset += passages.write(json.dumps(contents, ensure_ascii=True).encode() + b"\n")
            offsets.write(np.int64(offset).tobytes())
            count += 1
            if count % _REPORT_EVERY == 0:
                report("reading", raw.tell(), total)
            yield contents
    if not count:
        raise ConfigError(f"index: the corpus must hold at least one passage; got {str(corpus)!r}, which is empty.")
    report("reading", total, total)


def read_contents(line: bytes) -> str:
    """Return the text of a passage from its line: `contents`, or title and text as wiki-18 joins them.

    Raises:
        ValueError: no such line; the message says what it must be and what it is.
    """
    try:
        row = json.loads(line)
        contents = row["contents"] if "contents" in row else f'"{row["title"]}"\n{row["text"]}'
        if not isinstance(contents, str):
            raise TypeError("contents must be text")
        return contents
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(
            f'must be {{"contents": ...}} or {{"title": ..., "text": ...}}; got {line[:80]!r} ({type(e).__name__}: {e})'
        ) from e


def read_meta(folder: Path, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return `meta.json` of an index folder.

    Raises:
        ConfigError: not an index folder, another version's, or of another kind.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"SearchQAEnv: index must be a folder written by `rllm-gym index`; got {str(folder)!r} ({e}). Build it."
        ) from e
    if meta.get("schema_version") != SCHEMA_VERSION or meta.get("kind") not in kinds:
        raise ConfigError(
            f"SearchQAEnv: index must be of kind {' or '.join(kinds)} and version {SCHEMA_VERSION}; got kind "
            f"{meta.get('kind')!r} and version {meta.get('schema_version')!r} in {str(folder)!r}. Build it anew."
        )
    return meta


def write_meta(folder: Path, **meta: Any) -> None:
    """Write `meta.json`."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **meta}, indent=2)
    (folder / "meta.json").write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a folder to write an index into, which gets the name `folder` once the block is done, and not before.

    Raises:
        ConfigError: something is there that is not to be overwritten, or is not an index.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        is_index = (folder / "meta.json").is_file() and (folder / "passages.jsonl").is_file()
        if not (overwrite and is_index):
            what = "an index" if is_index else "something else"
            hint = "Name another one, or pass --force." if is_index else "Name another one."
            raise ConfigError(
                f"index: the folder to write must be empty; got {str(folder)!r}, which holds {what}. {hint}"
            )
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
