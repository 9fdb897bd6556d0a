"""The storage of runs: a folder, or a remote address."""

from __future__ import annotations

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
    # What is not there yet is not made: another run that tries the same folder could take it away in between.
    with tempfile.TemporaryFile(dir=next(filter(_exists, (folder, *folder.parents)))) as file:
        file.write(WRITTEN_TO_TRY)


def _exists(path: Path) -> bool:
    """Return whether a path exists; the file system's other errors (no folder, too long a name) are raised."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _try_remote(address: str) -> None:
    from pyarrow.fs import FileSystem

    filesystem, path = FileSystem.from_uri(address)
    filesystem.create_dir(path)
    with filesystem.open_output_stream(f"{path}/.rllm_gym_probe") as stream:
        stream.write(WRITTEN_TO_TRY)
    filesystem.delete_file(f"{path}/.rllm_gym_probe")
