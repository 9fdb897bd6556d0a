"""What a trajectories folder needs of its file system."""

import errno
import fcntl
import os
import stat

import pytest

from rllm_gym.checkpoints import force_to_disk
from rllm_gym.data.writer import TrajectoryWriter


def test_a_folder_without_locks_is_written_and_named(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with TrajectoryWriter(tmp_path):
        assert "cannot be locked (Function not implemented)" in caplog.text


def test_a_folder_that_cannot_be_forced_to_the_disk_is_written(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with TrajectoryWriter(tmp_path / "trajectories"):
        pass
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "weights").write_text("0")
    force_to_disk(tmp_path / "checkpoint")


def test_a_full_disk_is_no_file_system_without_fsync(tmp_path, monkeypatch):
    def fsync(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        force_to_disk(tmp_path)
