"""A Python that has imported a function's module, and forks for each program that calls it.

Started as `python -P -m rllm_gym.envs.program.fork_server MODULE:FUNCTION FD`. FD is one end of a pair of sockets. Each
message brings five files: the pipe of the program's owner (see `supervisor`), the request, which is JSON, standard
output and error, and the pipe that the supervisor's exit code is written to. What answers is the supervisor's id. The
process ends when nobody holds the other socket any more.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from rllm_gym.envs.program.supervisor import MARK, begin_program, supervise
from rllm_gym.importing import import_object

NUM_FILES = 5
ENV_START = 49  # of the fields of /proc/self/stat, the first being 0
# Room for the mark in the block of variables that Linux shows of a process. It is written when a process begins, and
# one that is forked still has its parent's.
MARK_BYTES = 4096


def main() -> None:
    function = import_object("command", sys.argv[1])
    if threading.active_count() > 1:
        sys.exit(
            f"{sys.argv[1]}: its module may start no threads when it is imported, since they do not survive a fork; "
            f"got {[thread.name for thread in threading.enumerate()[1:]]}. Start them in the function."
        )
    channel = socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the supervisors, whose pipes tell
    gc.freeze()
    while True:
        byte, files, _, _ = socket.recv_fds(channel, 1, NUM_FILES)
        if not byte:
            return
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            channel.close()
            return _play(function, *files)
        for file in files:
            os.close(file)
        channel.sendall(pid.to_bytes(4, "little"))


def _play(function: Callable[[Any], Any], owner: int, request: int, stdout: int, stderr: int, status: int) -> None:
    """Supervise a program in this process, and be that program in the one below it, which alone returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    for file in (owner, status):
        os.set_inheritable(file, False)
    for pipe, file in ((stdout, 1), (stderr, 2)):
        os.dup2(pipe, file)
        os.close(pipe)
    with os.fdopen(request, encoding="utf-8") as body:
        asked = json.load(body)
    os.environ.clear()
    os.environ.update(asked["variables"])
    _show_mark(asked["variables"][MARK])
    os.chdir(asked["folder"])
    program = -1

    def start() -> int:
        nonlocal program
        program = os.fork()
        if program:
            return program
        raise _Below

    try:
        code = supervise(owner, asked["folder"], start)
    except _Below:
        os.setpgid(0, 0)
        for file in (owner, status):
            os.close(file)
        begin_program()
        _call(function, json.loads(asked["task"]))
    else:
        os.write(status, str(code).encode())
        os._exit(0)  # what the module does at its end is the program's


class _Below(BaseException):
    """This process is the program, not its supervisor."""


def _call(function: Callable[[Any], Any], task: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator is seeded anew by itself
    result = function(task)
    if inspect.iscoroutine(result):
        import asyncio

        result = asyncio.run(result)
    print(json.dumps(result), flush=True)


def _show_mark(folder: str) -> None:
    """Write the mark into the block of variables that Linux shows of this process, and of those that it forks."""
    with open("/proc/self/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[ENV_START - 2])
    with open("/proc/self/environ", "rb") as file:
        at = file.read().find(f"{MARK}=".encode())
    value = folder.encode()[: MARK_BYTES - 1]
    ctypes.memmove(start + at + len(MARK) + 1, value + bytes(MARK_BYTES - len(value)), MARK_BYTES)


if __name__ == "__main__":
    main()
