"""TextWorld's games as they are played from here, in processes of their own, see `server.py`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from rllm_gym.errors import ConfigError, EnvError

NUM_LEVELS = 10
MAX_KEPT_GAMES = 256  # of some 400 kB each, on disk
CALL_TIMEOUT_S = 100.0  # a step takes milliseconds, making a game seconds on an idle machine
# Commands about the program and not about the environment: they end or rewind the game, ask back, write files, or
# change how it prints.
_META = frozenset({"q", "quit", "restart", "restore", "save", "undo", "oops", "version"})
_META |= {"script", "transcript", "noscript", "unscript", "brief", "superbrief", "verbose"}
_NEXT_COMMAND = re.compile(r"[.,;]|\bthen\b")  # Inform carries out several in a line
_MAX_COMMAND_CHARS = 190  # the interpreter reads 198 bytes

_lock = threading.Lock()  # guards the server
_server: _Server | None = None


class Reply(NamedTuple):
    """What a game says.

    Args:
        text: the reply, without the program's own questions.
        is_understood: the game's parser made something of the command, which it then counts as a move.
        score: points so far.
        is_over: it was won or lost.
        is_won: it was won.
        plan: the commands that win from here; empty where nothing does.
    """

    text: str
    is_understood: bool
    score: int
    is_over: bool
    is_won: bool
    plan: tuple[str, ...]


class Game:
    """One running game, in a process that plays no other.

    Args:
        level: 1 to 10: how many commands the quest takes.
        seed: of the map, the objects, the quest and the words.
        replaces: a game that ends, and whose process plays this one.

    Raises:
        ConfigError: textworld is not installed.
        EnvError: the game could not be made; here and in `step`, its process died or did not answer.
    """

    def __init__(self, level: int, seed: int, *, replaces: Game | None = None) -> None:
        self._owner_pid = os.getpid()
        self._what = f"level {level} with seed {seed}"
        self._server: _Server
        self._connection: Connection
        self._process_id: int | None = None
        if replaces is not None and not replaces._connection.closed and not replaces.is_foreign:
            self._server, self._connection, self._process_id = (
                replaces._server, replaces._connection, replaces._process_id
            )  # fmt: skip
        else:
            self._server, self._connection = _begin_game()
        try:
            if self._process_id is None:
                self._process_id = self._answer()
            state = self._ask(level, seed)
            if "error" in state:
                raise EnvError(f"TextWorld-v0: {self._what} could not be made: {state['error']}")
        except BaseException:
            self.close()
            raise
        self.opening: str = state["opening"]
        self.max_score: int = state["max_score"]
        self.plan: tuple[str, ...] = tuple(state["plan"])

    @property
    def is_foreign(self) -> bool:
        """Whether another process began it: after a fork the child must begin its own."""
        return self._owner_pid != os.getpid()

    def step(self, command: str) -> Reply:
        """Carry out a command; the game must not be over."""
        state = self._ask(command)
        return Reply(**{**state, "plan": tuple(state["plan"])})

    def close(self) -> None:
        """End it; safe to call twice."""
        if not self._connection.closed:
            self._connection.close()
            if not self.is_foreign:
                _end_game(self._server)

    def _ask(self, *request: Any) -> Any:
        try:
            self._connection.send_bytes(json.dumps(request).encode())
        except OSError as e:
            raise self._died() from e
        return self._answer()

    def _answer(self) -> Any:
        try:
            if self._connection.poll(CALL_TIMEOUT_S):
                return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as e:
            raise self._died() from e
        if self._process_id is not None:
            os.kill(self._process_id, signal.SIGKILL)
        self.close()
        raise EnvError(f"TextWorld-v0: {self._what} must answer within {CALL_TIMEOUT_S:g} s; got nothing. Reset it.")

    def _died(self) -> EnvError:
        self.close()
        return EnvError(f"TextWorld-v0: the process of {self._what} has died. Reset it.")


def as_command(text: str) -> str:
    """Return what the interpreter is given for a text: one line of printable ASCII, or "" for what is no command.

    Commands to the program, such as "quit" and "undo", are none.
    """
    # Control characters crash the interpreter, or hang it.
    ascii_text = "".join(c for c in text.encode("ascii", "replace").decode() if c.isprintable() or c.isspace())
    line = " ".join(ascii_text.split())[:_MAX_COMMAND_CHARS].lower()
    first_words = [part.split()[0] for part in _NEXT_COMMAND.split(line) if part.strip()]
    is_meta = any(word in _META or word.startswith("tw-") for word in first_words)
    return "" if is_meta else line


class _Server:
    """The process whose forks play the games. It ends when its socket is closed here, also by the end of this process.

    The games that were made go with it.
    """

    def __init__(self) -> None:
        if find_spec("textworld") is None:
            raise _missing("textworld")
        self.num_open = 0
        self.socket, theirs = socket.socketpair()
        with theirs:
            script = Path(__file__).with_name("server.py")
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(script), str(theirs.fileno()), str(MAX_KEPT_GAMES)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for this process
            )
        said = self.socket.makefile().readline()
        if said != "\n":
            self.close()
            if said:
                raise _missing(said.strip())
            raise EnvError(f"TextWorld-v0: the games' process did not start; it ended with {self.process.returncode}.")

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


def _missing(package: str) -> ConfigError:
    return ConfigError(
        f'TextWorld-v0 needs the {package.partition(".")[0]} package: pip install "rllm-gym[textworld]".'
    )


def _begin_game() -> tuple[_Server, Connection]:
    """Return the connection to a new game's process, for which `_end_game` is due."""
    global _server
    with _lock:
        if _server is not None and _server.process.poll() is not None:
            _server.socket.close()  # someone has killed it
            _server = None
        _server = _server or _Server()
        connection = _server.begin_game()
        _server.num_open += 1
        return _server, connection


def _end_game(server: _Server) -> None:
    global _server
    with _lock:
        server.num_open -= 1
        if server.num_open == 0:
            server.close()
            if _server is server:
                _server = None


def _after_fork_in_child() -> None:
    global _lock, _server
    _lock = threading.Lock()  # another thread of the parent may have held it
    if _server is not None:
        _server.socket.close()  # it is the parent's, and ends with the parent
        _server = None


os.register_at_fork(after_in_child=_after_fork_in_child)
