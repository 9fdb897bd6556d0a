"""The process that makes TextWorld's games and forks for each to play it; the only file that imports textworld.

`games.py` runs this file by its path. Native code plays the games: what it crashes or hangs here is one episode.
Nothing of this package is imported, so that it starts fast.

A byte on the control socket, with a socket beside it, asks for a fork that plays one game at the other end of that
socket: JSON lists, one of (level, seed), then one of (command,) for each step. When that socket is closed the game
ends; when the control socket is, also by the death of the other process, everything here ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PROMPT = re.compile(r">? {20,}-=.*")  # with the status line


def main(control: socket.socket, max_kept_games: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="textworld_"))
    os.environ["HOME"] = str(folder)  # the Inform compiler writes into ~/Inform
    os.chdir(folder)  # TextWorld would take its rules from a folder textworld_data
    (folder / "games").mkdir()
    (folder / "locks").mkdir()
    try:
        import textworld
        from textworld.generator.data import KnowledgeBase
    except ImportError as error:
        control.sendall(f"{error.name or error}\n".encode())
    else:
        control.sendall(b"\n")
        # Every game holds the same rules. What they are parsed to is kept, so that no fork has to parse them (0.5 s).
        KnowledgeBase.deserialize(KnowledgeBase.default().serialize())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while (request := socket.recv_fds(control, 1, 1))[0]:
            connection = Connection(request[1][0])
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Inform's compilers are waited for
                control.close()
                with contextlib.suppress(EOFError, ConnectionError):  # the other end is closed
                    play(textworld, connection, folder, max_kept_games)
                os._exit(0)
            connection.close()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)  # also those that hang
    shutil.rmtree(folder, ignore_errors=True)


def play(textworld: Any, connection: Connection, folder: Path, max_kept_games: int) -> None:
    """Say one's process id, then play one game until the other end is closed."""
    connection.send_bytes(json.dumps(os.getpid()).encode())
    level, seed = json.loads(connection.recv_bytes())
    try:
        env, state = start(textworld, folder, level, seed)
    except Exception as error:  # the generator and the Inform compiler raise what they like
        connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    remove_oldest(folder, max_kept_games)
    opening = clean(state.feedback[max(state.feedback.find(state.objective), 0) :])  # below the banner
    answer = {"opening": opening, "plan": state.policy_commands, "max_score": state.max_score}
    num_moves = state.moves
    while True:
        connection.send_bytes(json.dumps(answer).encode())
        [command] = json.loads(connection.recv_bytes())
        state, score, _ = env.step(command)
        answer = {
            "text": clean(state.feedback),
            "is_understood": state.moves > num_moves,
            "score": score,
            "is_over": state.won or state.lost,
            "is_won": state.won,
            "plan": state.policy_commands or (),
        }
        num_moves = state.moves


def start(textworld: Any, folder: Path, level: int, seed: int) -> tuple[Any, Any]:
    """Return a game's interpreter and first state, after making the game if it is not there (a second)."""
    name = f"{level}_{seed}"
    path = folder / "games" / name / "game.z8"
    with locked(folder / "locks" / name):
        if not path.exists():
            options = textworld.GameOptions()
            options.seeds = seed
            options.nb_rooms = 1 + level // 2
            options.nb_objects = 3 + level
            options.quest_length = level
            options.path = str(path)
            try:
                textworld.make(options)
            except BaseException:
                shutil.rmtree(path.parent, ignore_errors=True)
                raise
        os.utime(path.parent)
        infos = textworld.EnvInfos(objective=True, policy_commands=True, max_score=True, score=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jericho's, that it has no walkthrough of this game
            env = textworld.start(str(path), infos)
            return env, env.reset()


def remove_oldest(folder: Path, max_kept_games: int) -> None:
    """Keep the games that were used last."""
    with locked(folder / "locks" / "all"):
        by_age = sorted((folder / "games").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in by_age[:-max_kept_games]:
            with contextlib.suppress(BlockingIOError), locked(folder / "locks" / path.name, fcntl.LOCK_NB):
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, flag: int = 0) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | flag)
        yield


def clean(text: str) -> str:
    """Return a text without prompts, the question that follows the end, and runs of empty lines."""
    text = _PROMPT.sub("", text).partition("Would you like to RESTART")[0]
    lines = "\n".join(line.strip() for line in text.splitlines())
    return re.sub(r"\n{2,}", "\n\n", lines).strip()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
