"""Appends episode records to a trajectories folder; a kill at any moment loses at most what is being written."""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import zstandard
from pydantic_core import PydanticSerializationError

from rllm_gym import file_systems
from rllm_gym.data.keep import Keep
from rllm_gym.data.reader import PLAIN, SEALED, count_lines, is_whole, read_whole_lines, sealed_name
from rllm_gym.data.records import SCHEMA_VERSION, VERSIONS, VERSIONS_IN_WORDS, EpisodeRecord, make_records
from rllm_gym.errors import ConfigError, StorageError, TrajectoryError
from rllm_gym.types import Episode, Sample

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_LOCK = ".lock"
# No reader's `*.jsonl*` matches it. What a kill leaves behind is written over when its shard is sealed after all.
_TEMPORARY = ".tmp"
_BLOCK_BYTES = 2**20


class TrajectoryWriter:
    """Appends records to JSON Lines shards: the open one plain, full ones compressed.

        episodes-000000.jsonl.zst  episodes-000001.jsonl.zst  episodes-000002.jsonl  manifest.json

    `append` hands whole lines to the kernel in one call, so they outlive the process. They are not forced to the disk
    one by one: a power failure can take the last seconds. A sealed shard is forced to the disk before the plain one
    goes. The manifest only sums up; readers trust the files.

    A folder that holds trajectories is continued: what a killed writer left unfinished is completed or cut off.

    Args:
        folder: created where missing. One writer at a time.
        shard_bytes: size at which the open shard is sealed.
        compression_level: Zstandard's, 1 to 22.
        keep: what stays of sealed shards whenever one is sealed; None keeps everything.

    Raises:
        TrajectoryError: another writer has the folder, or its manifest is of an unknown schema version.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        shard_bytes: int = 64 * 2**20,
        compression_level: int = 3,
        keep: Keep | None = None,
    ) -> None:
        if shard_bytes < 1:
            raise ConfigError(f"TrajectoryWriter: shard_bytes must be at least 1; got {shard_bytes}. Leave it out.")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._shard_bytes = shard_bytes
        self._compression_level = compression_level
        self._keep = keep
        self._fd: int | None = None
        self._lock: IO[str] | None = self._take_lock()
        try:
            self._shards = self._recover()
            self._write_manifest()
        except BaseException:
            self._lock.close()
            raise

    @property
    def num_records(self) -> int:
        """Records in the folder."""
        return sum(self._shards.values())

    def append(self, records: Iterable[EpisodeRecord]) -> None:
        """Append records, all or none.

        Raises:
            StorageError: the disk is full, and the folder stays as it was; or the folder was deleted meanwhile.
        """
        if self._lock is None:
            raise TrajectoryError(f"TrajectoryWriter: append comes before close; got a closed writer of {self.folder}.")
        lines = [_line(record) for record in records]
        if not lines:
            return
        try:
            self._write(b"".join(lines))
        except OSError as error:
            raise StorageError(
                f"TrajectoryWriter: episodes must be stored, and {self.folder} does not take them: "
                f"{error.strerror or error}. Make room or another folder, and go on with --resume."
            ) from error
        self._shards[self._open_name] += len(lines)

    def _write(self, data: bytes) -> None:
        fd = self._open_fd()
        size = os.fstat(fd).st_size
        if size >= self._shard_bytes:
            self._seal()
            fd, size = self._open_fd(), 0
        if os.fstat(fd).st_nlink == 0:  # the kernel would take what nobody can read again
            raise OSError(f"its open shard {self._open_name} was deleted")
        try:
            num_written = os.write(fd, data)
            if num_written < len(data):
                raise OSError(f"only {num_written} of {len(data)} bytes fit in")
        except BaseException:
            os.ftruncate(fd, size)
            raise

    def close(self) -> None:
        """Seal the open shard and let the folder go; safe to call twice."""
        if self._lock is None:
            return
        try:
            if self._shards and self._open_name.endswith(PLAIN):
                if self._shards[self._open_name]:
                    self._seal()
                else:
                    (self.folder / self._open_name).unlink()
        finally:
            self._close_fd()
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _open_name(self) -> str:
        """The last shard's name. It is the open one unless it is sealed."""
        return next(reversed(self._shards))

    def _take_lock(self) -> IO[str]:
        # flock, not a pid file: the kernel lets it go however the process ends.
        lock = (self.folder / _LOCK).open("a+")
        try:
            file_systems.lock(lock.fileno(), self.folder, waits=False)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise TrajectoryError(
                f"TrajectoryWriter: a folder has one writer at a time; got {self.folder}, which process {holder} is "
                "writing. End that run or use another folder."
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def _recover(self) -> dict[str, int]:
        """Finish what a killed writer left half done; return {shard name: number of records}, in order."""
        known = self._read_manifest()
        shards = {}
        for shard in sorted(self.folder.glob(f"episodes-[0-9]*{PLAIN}*")):
            if shard.name.endswith(PLAIN):
                if sealed_name(shard).exists():  # killed between the two steps of sealing
                    shard.unlink()
                    continue
                _cut_torn_tail(shard)
                shards[shard.name] = count_lines(shard)
            elif shard.name.endswith(SEALED):
                shards[shard.name] = known[shard.name] if shard.name in known else count_lines(shard)
        return shards

    def _open_fd(self) -> int:
        """Return the open shard's descriptor; start the next shard where none is open."""
        if self._fd is None:
            if not self._shards or self._open_name.endswith(SEALED):
                index = int(self._open_name.split("-")[1].split(".")[0]) + 1 if self._shards else 0
                self._shards[f"episodes-{index:06d}{PLAIN}"] = 0
            self._fd = os.open(self.folder / self._open_name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self._fd

    def _close_fd(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _seal(self) -> None:
        """Compress the open shard. In this order, so that after a kill each record is in a file that readers take."""
        self._close_fd()
        plain = self.folder / self._open_name
        sealed = sealed_name(plain)
        compressor = zstandard.ZstdCompressor(level=self._compression_level, write_checksum=True)
        temporary = self.folder / (plain.stem + _TEMPORARY)
        with plain.open("rb") as source, temporary.open("wb") as target:
            compressor.copy_stream(source, target, size=plain.stat().st_size)
            _sync(target)
        temporary.rename(sealed)
        self._sync_folder()
        plain.unlink()
        self._shards[sealed.name] = self._shards.pop(plain.name)
        if self._keep is not None:
            self._thin(self._keep)
        self._write_manifest()

    def _thin(self, keep: Keep) -> None:
        """Write every sealed shard anew that holds a record which need not stay, each in one step as readers see it."""
        sealed = [self.folder / name for name in self._shards if name.endswith(SEALED)]
        stay = keep.choose(sealed, read_whole_lines)
        for shard in sealed:
            lines = [line for number, line in read_whole_lines(shard) if (shard.name, number) in stay]
            if len(lines) < self._shards[shard.name]:
                self._replace(shard, b"".join(lines))
                self._shards[shard.name] = len(lines)

    def _replace(self, shard: Path, data: bytes) -> None:
        temporary = self.folder / (shard.name.partition(".")[0] + _TEMPORARY)
        with temporary.open("wb") as target:
            target.write(zstandard.ZstdCompressor(level=self._compression_level, write_checksum=True).compress(data))
            _sync(target)
        temporary.rename(shard)
        self._sync_folder()

    def _read_manifest(self) -> dict[str, int]:
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text())
            version = manifest["schema_version"]
            shards = manifest["shards"] if version in VERSIONS else []
            known = {shard["name"]: shard["num_records"] for shard in shards}
        except FileNotFoundError:
            return {}
        except (ValueError, LookupError, TypeError):
            logger.warning("TrajectoryWriter: %s is damaged; it is made again from the files", self.folder / MANIFEST)
            return {}
        if version not in VERSIONS:
            raise TrajectoryError(
                f"TrajectoryWriter: schema_version must be {VERSIONS_IN_WORDS}; got {version!r} in "
                f"{self.folder / MANIFEST}. Use another folder, or the rllm-gym release that wrote this one."
            )
        return known

    def _write_manifest(self) -> None:
        """List the sealed shards. The open one's count would be out of date with the next append."""
        shards: list[dict[str, Any]] = [
            {"name": name, "num_records": count, "num_bytes": (self.folder / name).stat().st_size}
            for name, count in self._shards.items()
            if name.endswith(SEALED)
        ]
        total = sum(shard["num_records"] for shard in shards)
        manifest = {"schema_version": SCHEMA_VERSION, "num_records_sealed": total, "shards": shards}
        temporary = self.folder / (MANIFEST + _TEMPORARY)
        with temporary.open("w") as file:
            json.dump(manifest, file, indent=1)
            _sync(file)
        temporary.rename(self.folder / MANIFEST)

    def _sync_folder(self) -> None:
        file_systems.force_folder(self.folder)


def _line(record: EpisodeRecord) -> bytes:
    try:
        return record.model_dump_json().encode() + b"\n"
    except PydanticSerializationError:
        # Half of a surrogate pair in an environment's text has no UTF-8 form. It becomes "?" and does not end the run.
        return json.dumps(record.model_dump(), ensure_ascii=False).encode(errors="replace") + b"\n"


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _cut_torn_tail(shard: Path) -> None:
    """Cut off an incomplete last line, reading backwards in blocks; a complete one gets its missing newline."""
    with shard.open("r+b") as file:
        size = position = file.seek(0, os.SEEK_END)
        tail = b""
        while position and b"\n" not in tail:
            block = min(_BLOCK_BYTES, position)
            position = file.seek(position - block)
            tail = file.read(block) + tail
        tail = tail[tail.rfind(b"\n") + 1 :]
        if not tail:
            return
        if is_whole(tail):
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
            return
        file.truncate(size - len(tail))
        logger.warning("TrajectoryWriter: cut a torn tail of %d bytes off %s", len(tail), shard)


class Environment(Protocol):
    """The stored facts of an environment: the name of its horizon, its version and, where it has one, its split."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def env_config(self) -> Mapping[str, Any]: ...


class Recorder:
    """Stores episodes of a run's environments; the folder is made with the first ones.

    Args:
        environments: what a task group's `env_index` counts.
        keep: see `TrajectoryWriter`.
    """

    def __init__(self, folder: Path, environments: Sequence[Environment], keep: Keep | None = None) -> None:
        self._keep = keep
        self._folder = folder
        self._versions = [environment.version for environment in environments]
        self._splits = [str(environment.env_config.get("split") or "train") for environment in environments]
        self._writer: TrajectoryWriter | None = None

    def append(
        self,
        episodes: Iterable[Episode],
        samples: Iterable[Sample] = (),
        *,
        train_step: int | None,
        split: str | None = None,
    ) -> list[EpisodeRecord]:
        """Append episodes, with what `samples` hold of their tokens; returns their records.

        Args:
            split: what was evaluated; None in training, whose episodes are of the environment's own split.
        """
        parts: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        for sample in samples:
            parts[sample.episode, sample.agent].append(sample)
        records = []
        for episode in episodes:
            index = episode.group.env_index
            records += make_records(
                episode,
                env_version=self._versions[index],
                train_step=train_step,
                max_episode_steps=episode.horizon,
                split=split or self._splits[index],
                is_evaluation=split is not None,
                samples={agent: parts[episode.episode_id, agent] for agent in episode.streams},
            )
        if self._writer is None:
            self._writer = TrajectoryWriter(self._folder, keep=self._keep)
        self._writer.append(records)
        return records

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
