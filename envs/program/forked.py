"""Programs that are functions: a process imports the function's module once, and forks for each episode."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO

from rllm_gym.envs.program.fork_server import MARK_BYTES
from rllm_gym.envs.program.supervisor import MARK
from rllm_gym.errors import EnvError

START_TIMEOUT_S = 300.0  # in which it must have imported the module


class ForkServer:
    """The process that forks, see `fork_server`; it ends with this one.

    Args:
        function: "module:function".
        variables: its environment.
    """

    def __init__(self, function: str, variables: Mapping[str, str]) -> None:
        self._function = function
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(START_TIMEOUT_S)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rllm_gym.envs.program.fork_server", function, str(theirs.fileno())],
                env={**variables, MARK: "x" * MARK_BYTES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for this process
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def start(self, owner: int, request: int) -> ForkedProcess:
        """Start a program.

        Args:
            owner: the end of a pipe whose other end this process holds, see `supervisor`.
            request: an open file with `task`, `folder` and `variables` as JSON.

        Raises:
            EnvError: the module cannot be imported, or the process has ended.
        """
        ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
        try:
            with self._lock:
                socket.send_fds(self._channel, [b"+"], [owner, request, *theirs])
                answer = self._channel.recv(4)
        except OSError:
            answer = b""
            self._process.kill()
        for file in theirs if answer else (*theirs, *ours):
            os.close(file)
        if not answer:
            raise EnvError(
                f"ProgramEnv: {self._function}: the process that imports its module has ended with exit code "
                f"{self._process.wait()}; the log says why."
            )
        return ForkedProcess(int.from_bytes(answer, "little"), *ours)


class ForkedProcess:
    """A child of a `ForkServer`, as `subprocess.Popen` has one; a pipe tells how it ends.

    Attributes:
        stdout: the end of its standard output.
        stderr: of its standard error.
    """

    def __init__(self, pid: int, stdout: int, stderr: int, status: int) -> None:
        self.stdout, self.stderr, self._status = (os.fdopen(file, "rb") for file in (stdout, stderr, status))
        self._code: int | None = None
        self._lock = threading.Lock()
        self._pidfd: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # it has ended
            self._pidfd = os.fdopen(os.pidfd_open(pid), "rb", buffering=0)

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired("a program", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(OSError):  # it has ended
                signal.pidfd_send_signal(self._pidfd.fileno(), number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        """Return its exit code, -9 where it was killed; None where it has not ended within a time."""
        if self._code is None:
            poll = select.poll()
            poll.register(self._status)
            if poll.poll(None if timeout_s is None else 1000 * timeout_s):
                with self._lock:
                    if self._code is None:
                        self._code = int(self._status.read() or -signal.SIGKILL)
        return self._code


_servers: dict[tuple[str, frozenset[tuple[str, str]]], ForkServer] = {}
_lock = threading.Lock()


def fork_server(function: str, variables: Mapping[str, str], environment: Mapping[str, str]) -> ForkServer:
    """Return this process's server of a function and the variables of its own; the first call starts it."""
    key = function, frozenset(variables.items())
    with _lock:
        if key not in _servers or not _servers[key].is_running:
            _servers[key] = ForkServer(function, environment)
        return _servers[key]


def _after_fork_in_child() -> None:
    global _lock
    _servers.clear()  # they are the parent's
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
