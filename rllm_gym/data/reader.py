"""Reads trajectories lazily: a run, a trial, a trajectories folder or one file, torn tails included."""

from __future__ import annotations

import io
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import zstandard
from pydantic import ValidationError

from rllm_gym.data.records import VERSIONS_IN_WORDS, EpisodeRecord
from rllm_gym.errors import TrajectoryError
from rllm_gym.lineage import first_trial
from rllm_gym.strangers_files import MAX_LINE_BYTES, open_regular, read_lines, shown

logger = logging.getLogger(__name__)

PLAIN, SEALED = ".jsonl", ".jsonl.zst"
MAX_WARNINGS = 20  # of damaged records, one by one
_TAIL_BYTES = 2 * 2**20
_BUFFER_BYTES = 2**17


def read_episodes(path: str | Path) -> Iterator[EpisodeRecord]:
    """Return a lazy iterator over the records below a path, in the order in which they were written.

    One record is in memory at a time. Of an episode that a resumed trial has played again, only that trial's record is
    read: its policy is the one that went on. A record that is damaged, or that its writer has not finished, is left
    out, with a warning that names its file and line.

    Args:
        path: a run (`runs/<experiment>`), a trial folder, a trajectories folder, or one `.jsonl` or `.jsonl.zst` file.

    Raises:
        FileNotFoundError: there is no such path.
        TrajectoryError: while iterating: a record has an unknown schema version, a compressed file is damaged, or
            every record is.
    """
    return (record for _, record in read_stored(path))


def read_stored(path: str | Path) -> Iterator[tuple[Path, EpisodeRecord]]:
    """Yield the records of `read_episodes`, each with its file."""
    return _read_shards(path, list_shards(path))


def _read_shards(path: str | Path, shards: list[Path]) -> Iterator[tuple[Path, EpisodeRecord]]:
    num_read = num_damaged = 0
    first: _DamagedRecordError | None = None
    played_again = _played_again(shards)
    for shard in shards:
        again = played_again.get(_trial_of(shard), set())
        for number, line in read_whole_lines(shard):
            if again and _episode_key(line) in again:  # None is in none
                continue
            try:
                yield shard, _parse(line, shard, number)
                num_read += 1
            except _DamagedRecordError as error:
                first = first or error
                num_damaged += 1
                if num_damaged <= MAX_WARNINGS:
                    logger.warning("%s It is left out.", error)
    if first and not num_read:
        raise first
    if first:
        logger.warning("read_episodes: left out %d damaged records of %s; read %d", num_damaged, shown(path), num_read)


# --- what resumed trials have played again ---

_EPISODE_KEY = re.compile(rb'"(episode_id|agent_id)":\s*"((?:[^"\\]|\\.)*)"')


def _trial_of(shard: Path) -> Path:
    return shard.parent.parent


def _played_again(shards: list[Path]) -> dict[Path, set[int]]:
    """Return for each trial which of its episodes are also in a later one that goes on from the same beginning."""
    families: dict[Path, dict[Path, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for shard in shards:
        families[first_trial(_trial_of(shard))][_trial_of(shard)].append(shard)
    found: dict[Path, set[int]] = {}
    for trials in families.values():
        *resumed, first = sorted(trials, reverse=True)  # names begin with the time
        later: set[int] = set()
        for trial in resumed:
            found[trial] = set(later)
            keys = (_episode_key(line) for shard in trials[trial] for _, line in read_whole_lines(shard))
            later.update(key for key in keys if key is not None)
        found[first] = later
    return found


def _episode_key(line: bytes) -> int | None:
    """Return a number for the episode and agent of a line, without parsing its tokens; None where it does not begin so.

    Within a JSON string quotation marks are escaped, so that what is found is never part of a text.
    """
    fields = dict(_EPISODE_KEY.findall(line, 0, 4096))
    return hash((fields[b"episode_id"], fields[b"agent_id"])) if len(fields) == 2 else None


def latest_episode(folder: Path) -> EpisodeRecord | None:
    """Return the last whole record of training in a trajectories folder's open shard; None where it holds none.

    It reads the shard's last two megabytes at most, and so may be asked while a run goes on.
    """
    shards = sorted(file for file in folder.glob(f"episodes-*{PLAIN}") if file.is_file())
    if not shards:
        return None
    with open_regular(shards[-1]) as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    for line in reversed(lines[:-1]):  # what follows the last line break is unfinished
        try:
            record = EpisodeRecord.model_validate_json(line)
        except ValidationError:  # the first one may be cut
            continue
        if not record.is_evaluation and record.error is None:
            return record
    return None


def list_shards(path: str | Path) -> list[Path]:
    """Return the trajectory files below a path in reading order, each shard once.

    Raises:
        FileNotFoundError: there is no such path.
        TrajectoryError: the path is a file of another kind.
    """
    path = Path(path)
    if path.is_file():
        if not path.name.endswith((PLAIN, SEALED)):
            raise TrajectoryError(f"read_episodes: a file must end in {PLAIN} or {SEALED}; got {shown(path)}.")
        return [path]
    if path.exists() and not path.is_dir():
        raise TrajectoryError(f"read_episodes: a path must be a folder or a regular file; got {shown(path)}.")
    if not path.is_dir():
        raise FileNotFoundError(
            f"read_episodes: path must exist; got {shown(path)}. Name a run, a folder in it, or a file."
        )
    found = set()
    for file in path.rglob(f"*{PLAIN}*"):
        if not file.name.endswith((PLAIN, SEALED)):
            logger.warning(
                "read_episodes: %s skipped, since it ends neither in %s nor in %s", shown(file), PLAIN, SEALED
            )
        elif file.exists() and not file.is_file():  # one that is not there is being sealed
            logger.warning("read_episodes: %s skipped, since it is no regular file", shown(file))
        else:
            found.add(file)
    # A kill between the two steps of sealing leaves a shard in both forms.
    return sorted(file for file in found if file.name.endswith(SEALED) or sealed_name(file) not in found)


def sealed_name(shard: Path) -> Path:
    return shard.with_name(shard.name + ".zst")


def is_whole(line: bytes) -> bool:
    """Whether a line is all there. A last one need not end in a newline: an object cut short is never an object."""
    if line.endswith(b"\n"):
        return True
    try:
        EpisodeRecord.model_validate_json(line)
    except ValidationError as e:
        return e.errors()[0]["type"] != "json_invalid"
    return True


def count_lines(shard: Path) -> int:
    """Return the number of lines of a plain or sealed shard, reading it in blocks."""
    with open_shard(shard) as (file, _):
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


def read_whole_lines(shard: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and text of every whole line that is not empty; in place of one that is too long b""."""
    num_empty = 0
    with open_shard(shard) as (file, _):
        for number, (line, num_bytes) in enumerate(read_lines(file), start=1):
            if line == b"\n":
                num_empty += 1
                continue
            if line is not None and not is_whole(line):
                logger.warning("read_episodes: %s:%d: skipped a torn tail of %d bytes", shown(shard), number, num_bytes)
                return
            yield number, b"" if line is None else line
    if num_empty:
        logger.warning("read_episodes: left out %d empty lines of %s", num_empty, shown(shard))


class _DamagedRecordError(TrajectoryError):
    """One line is no record."""


def _parse(line: bytes, shard: Path, number: int) -> EpisodeRecord:
    if not line:
        raise _DamagedRecordError(
            f"read_episodes: {shown(shard)}:{number} must have at most {MAX_LINE_BYTES:,} bytes; got more."
        )
    try:
        return EpisodeRecord.model_validate_json(line)
    except ValidationError as e:
        errors = e.errors()
        for error in errors:
            if error["loc"] == ("schema_version",):
                raise TrajectoryError(
                    f"read_episodes: schema_version must be {VERSIONS_IN_WORDS}; got "
                    f"{error['input']!r:.200} in {shown(shard)}:{number}. "
                    "Read it with the rllm-gym release that wrote it."
                ) from None
        where = ".".join(map(str, errors[0]["loc"])) or "record"
        raise _DamagedRecordError(
            f"read_episodes: {shown(shard)}:{number} must be a trajectory record; got {shown(where):.200}: "
            f"{errors[0]['msg']:.200}."
        ) from e


@contextmanager
def open_shard(shard: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """Open a shard for reading, also one that its writer seals between listing and opening; says whether it is sealed.

    Raises:
        FileNotFoundError: there is none.
        TrajectoryError: it is no regular file; or, while reading, a sealed one is damaged.
    """
    try:
        try:
            file = open_regular(shard)
        except FileNotFoundError:
            shard = sealed_name(shard)
            file = open_regular(shard)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TrajectoryError(f"read_episodes: a shard must be readable; got: {error}.") from error
    with file:
        if not shard.name.endswith(SEALED):
            yield file, False
            return
        try:
            size = zstandard.frame_content_size(file.read(18))  # a frame's header has at most 18 bytes; -1: not said
            file.seek(0)
            with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as decompressed:
                yield io.BufferedReader(decompressed, _BUFFER_BYTES), True  # type: ignore[arg-type]
                # The decompressor takes a file that is cut short for one that ends there.
                if decompressed.tell() < size:
                    logger.warning("read_episodes: %s is cut short; its last records are missing", shown(shard))
        except zstandard.ZstdError as e:
            raise TrajectoryError(
                f"read_episodes: {shown(shard)} must be an intact Zstandard file; got: {e}. Copy it again or remove it."
            ) from e
