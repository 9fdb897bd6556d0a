"""Where runs are kept: a folder, or the address of remote storage."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from rllm_gym.errors import ConfigError

WRITTEN_TO_TRY = b"\0" * 4096


def is_remote(storage: str) -> bool:
    """Return whether a storage path is an address, such as s3://bucket/runs, and no folder."""
    return "://" in storage


def check_storage(storage: str, name: str) -> None:
    """Write something where a run's results will be, and take it away again.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        if is_remote(storage):
            _try_remote(f"{storage.rstrip('/')}/{name}")
        else:
            _try_folder(Path(storage).absolute() / name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--storage-path: must be writable; got {storage!r} ({' '.join(reason.split())}). Choose another one."
        ) from error


def _try_folder(folder: Path) -> None:
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(WRITTEN_TO_TRY)
    finally:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()


def _try_remote(address: str) -> None:
    from pyarrow.fs import FileSystem

    filesystem, path = FileSystem.from_uri(address)
    filesystem.create_dir(path)
    with filesystem.open_output_stream(f"{path}/.rllm_gym_probe") as stream:
        stream.write(WRITTEN_TO_TRY)
    filesystem.delete_file(f"{path}/.rllm_gym_probe")
