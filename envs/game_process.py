"""Games that native code plays, in processes of their own, see `game_server.py`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rllm_gym.errors import ConfigError, EnvError, MachineError

MAKE_TIMEOUT_S = 100.0  # making a game, or planning how to win it, takes seconds on an idle machine
STEP_TIMEOUT_S = 10.0  # a step takes milliseconds

_all: list[Games] = []


class Games:
    """The games of one environment, whose processes are forks of one that has loaded their library.

    That process starts with the first game and ends with the last; also by the end of this process.

    Args:
        env: the environment's name, for messages.
        package: the library's, imported by the player.
        extra: of this package, which installs it.
        player: the file that plays, see `game_server.py`.
    """

    def __init__(self, env: str, *, package: str, extra: str, player: Path) -> None:
        self.env = env
        self.server: GameServer | None = None
        self._package, self._extra = package, extra
        self.command = [str(player)]
        self._lock = threading.Lock()  # guards the server
        _all.append(self)

    def begin(self) -> tuple[GameServer, Connection]:
        """Return the connection to a new game's process, for which `end` is due.

        Raises:
            ConfigError: the library is not installed.
            EnvError: the server does not start.
        """
        with self._lock:
            if self.server is not None and self.server.process.poll() is not None:
                self.server.socket.close()  # someone has killed it
                self.server = None
            self.server = self.server or self._start()
            connection = self.server.begin_game()
            self.server.num_open += 1
            return self.server, connection

    def end(self, server: GameServer) -> None:
        with self._lock:
            server.num_open -= 1
            if server.num_open == 0:
                server.close()
                if self.server is server:
                    self.server = None

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if self.server is not None:
            self.server.socket.close()  # it is the parent's, and ends with the parent
            self.server = None

    def check_installed(self) -> None:
        """Say in one line that the library is missing.

        Raises:
            ConfigError: it is.
        """
        if find_spec(self._package) is None:
            raise self._missing(self._package)

    def _start(self) -> GameServer:
        self.check_installed()
        server = GameServer(self.command)
        said = server.socket.makefile().readline()
        if said != "\n":
            server.close()
            if said:
                raise self._missing(said.strip())
            code = server.process.returncode
            raise EnvError(f"{self.env}: the games' process did not start; it ended with {code}.")
        return server

    def _missing(self, module: str) -> ConfigError:
        package = module.partition(".")[0]
        return MachineError(f'{self.env} needs the {package} package: pip install "rllm-gym[{self._extra}]".')


class GameServer:
    """A process that forks for each game.

    Args:
        command: the player's file and arguments.
    """

    def __init__(self, command: list[str]) -> None:
        self.num_open = 0
        self.socket, theirs = socket.socketpair()
        with theirs:
            script = Path(__file__).with_name("game_server.py")
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(script), str(theirs.fileno()), *command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # an interpreter that loops writes gigabytes
                process_group=0,  # Ctrl-C is for this process
            )

    def begin_game(self) -> Connection:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.socket, [b"+"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return Connection(ours.detach())

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


class GameProcess:
    """A process that plays one game at a time.

    Args:
        games: which.

    Raises:
        ConfigError: the library is not installed.
        EnvError: the process does not start.
    """

    def __init__(self, games: Games) -> None:
        self._games = games
        self._owner_pid = os.getpid()
        self._what = "a new game"
        self._server, self._connection = games.begin()
        self.pid: int | None = None
        try:
            self.pid = self._answer(MAKE_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    @property
    def is_foreign(self) -> bool:
        """Whether another process began it: after a fork the child must begin its own."""
        return self._owner_pid != os.getpid()

    @property
    def is_closed(self) -> bool:
        return self._connection.closed

    def begin(self, what: str, *request: Any) -> Any:
        """Begin a game, in place of the one that is played.

        Args:
            what: names it in messages.
            request: for the player.

        Raises:
            EnvError: it could not be made; here and in `ask`, the process died or did not answer.
        """
        self._what = what
        answer = self.ask(*request, timeout_s=MAKE_TIMEOUT_S)
        if "error" in answer:
            self.close()
            raise EnvError(f"{self._games.env}: {what} could not be made: {answer['error']}")
        return answer

    def ask(self, *request: Any, timeout_s: float | None = None) -> Any:
        """Return the player's answer; `timeout_s` is `STEP_TIMEOUT_S` where it is left out."""
        try:
            self._connection.send_bytes(json.dumps(request).encode())
        except OSError as e:
            raise self._died() from e
        return self._answer(STEP_TIMEOUT_S if timeout_s is None else timeout_s)

    def close(self) -> None:
        """End it; safe to call twice."""
        if not self._connection.closed:
            self._connection.close()
            if not self.is_foreign:
                self._games.end(self._server)

    def _answer(self, timeout_s: float) -> Any:
        try:
            if self._connection.poll(timeout_s):
                return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as e:
            raise self._died() from e
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self.close()
        raise EnvError(f"{self._games.env}: {self._what} must answer within {timeout_s:g} s; got nothing. Reset it.")

    def _died(self) -> EnvError:
        self.close()
        return EnvError(f"{self._games.env}: the process of {self._what} has died. Reset it.")


def process_after(former: GameProcess | None, games: Games) -> GameProcess:
    """Return the process of a game that has ended, or a new one where it cannot play another."""
    is_usable = former is not None and not former.is_closed and not former.is_foreign
    return former if former is not None and is_usable else GameProcess(games)


def _after_fork_in_child() -> None:
    for games in _all:
        games.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
