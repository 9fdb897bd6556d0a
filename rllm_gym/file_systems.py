"""Locks that end with their process and folders forced to the disk, where the file system has them."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

# A file system says so of what it cannot do; an error of the disk, or none left, is another matter.
_CANNOT = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EISDIR, errno.EPERM})


def lock(fd: int, what: Path, *, waits: bool) -> bool:
    """Take the lock of an open file or folder; return whether the file system has locks, and say it in a line if not.

    Args:
        what: the locked thing, for the line.
        waits: for another process that holds it.

    Raises:
        BlockingIOError: another process holds it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        logger.warning(
            "%s cannot be locked (%s); see to it that no other run writes it.", what, error.strerror or error
        )
        return False
    return True


def force_folder(folder: Path) -> None:
    """Force a folder's entries to the disk, where its file system can: some cannot, and lose nothing but the order."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(fd)
