"""What a trajectories folder needs of its file system."""

import errno
import fcntl

from rllm_gym.data.writer import TrajectoryWriter


def test_a_folder_without_locks_is_written_and_named(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with TrajectoryWriter(tmp_path):
        assert "cannot be locked (Function not implemented)" in caplog.text
