"""A worker process: `python -m rllm_gym.server.worker FD` answers requests that come as JSON lines on a socket.

The first line says which environments there are, and is answered by an empty list. A request is [number, method,
arguments...], its answer [number, "ok", result] or [number, why there is none...]. Requests run in threads, so that an
environment that waits, for a browser or a server, delays no other. When the socket is closed, also by the death of the
server, the process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rllm_gym.server.host import EnvHost

MAX_THREADS = 256  # environments that wait at once; threads are started as they are needed


def main(connection: socket.socket) -> None:
    lines = connection.makefile("rb")
    with contextlib.suppress(ConnectionError):  # the server is gone
        first = lines.readline()
        if first:
            serve(connection, lines, EnvHost(json.loads(first)))
    os.kill(os.getpid(), signal.SIGKILL)  # a thread that hangs in an environment would keep the process


def serve(connection: socket.socket, lines: Iterable[bytes], host: EnvHost) -> None:
    connection.sendall(b"[]\n")
    sending = threading.Lock()

    def answer(number: int, request: list[Any]) -> None:
        line = json.dumps([number, *host.answer(*request)]).encode() + b"\n"
        with sending:
            connection.sendall(line)

    pool = ThreadPoolExecutor(MAX_THREADS)
    try:
        for line in lines:
            number, *request = json.loads(line)
            pool.submit(answer, number, request)
    finally:
        host.close_all()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
