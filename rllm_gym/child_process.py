"""Processes of this package's own modules, which talk to the one that has started them through a socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import IO

PARENT_CHECK_S = 1.0


def start_module(module: str, *, stdout: IO[str] | None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `python -m MODULE FD` and return the process, and the other end of the socket FD.

    Args:
        stdout: takes what the process prints.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        # A module of the user's own is found where this process finds it.
        paths = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            process_group=0,  # Ctrl-C is for this process
        )
    return process, ours


def end_with_parent(parent: int) -> None:
    """End this process and what it has started when its parent is gone: nobody else would."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os.killpg(0, signal.SIGKILL)
