"""The process that loads a game library and forks for each game that is played.

`game_process.py` runs this file by its path, with the path of a player. Native code plays the games: what it crashes or
hangs here is one episode. Nothing of this package is imported, so that it starts fast.

A player is a file with `load(folder)`, which imports the library, and `Player(folder)`, whose
`answer(*request)` plays; requests and answers are what JSON has words for. What a first request raises is answered as
{"error": ...}.

A byte on the control socket, with a socket beside it, asks for a fork that plays at the other end of that socket. When
that socket is closed the fork ends; when the control socket is, also by the death of the other process, everything here
ends, and the folder goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main(control: socket.socket, player_file: str) -> None:
    spec = importlib.util.spec_from_file_location("player", player_file)
    assert spec is not None and spec.loader is not None
    player = importlib.util.module_from_spec(spec)
    folder = Path(tempfile.mkdtemp(prefix="games_"))
    os.chdir(folder)  # a library may read what lies here: TextWorld, rules from textworld_data
    try:
        spec.loader.exec_module(player)
        player.load(folder)
    except ImportError as error:
        control.sendall(f"{error.name or error}\n".encode())
    else:
        control.sendall(b"\n")
        gc.freeze()  # else each fork's collector would copy what they share
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while (request := socket.recv_fds(control, 1, 1))[0]:
            connection = Connection(request[1][0])
            if os.fork() == 0:
                end_with_parent()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # what a player starts is waited for
                control.close()
                with contextlib.suppress(EOFError, ConnectionError):  # the other end is closed
                    play(player.Player(folder), connection)
                return
            connection.close()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)  # also those that hang
    shutil.rmtree(folder, ignore_errors=True)


def end_with_parent() -> None:
    """Let the kernel kill a fork whose parent is killed: one that hangs in native code notices nothing."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def play(player: Any, connection: Connection) -> None:
    """Say one's process id, then answer until the other end is closed."""
    answer: Any = os.getpid()
    while True:
        connection.send_bytes(json.dumps(answer).encode())
        answer = player.answer(*json.loads(connection.recv_bytes()))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
