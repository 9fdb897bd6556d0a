"""Makes and plays TextWorld's games, for `game_server.py`; the only file that imports textworld."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PROMPT = re.compile(r">? {20,}-=.*")  # with the status line


def load(folder: Path) -> None:
    os.environ["HOME"] = str(folder)  # the Inform compiler writes into ~/Inform
    import textworld  # noqa: F401
    from textworld.generator.data import KnowledgeBase

    # Every game holds the same rules. What they are parsed to is kept, so that no fork has to parse them (0.5 s).
    KnowledgeBase.deserialize(KnowledgeBase.default().serialize())


class Player:
    """Plays games, one after the other: (level, seed, folder of games) begins one, (command,) is a step."""

    def __init__(self, folder: Path) -> None:
        self._env: Any = None
        self._num_moves = 0

    def answer(self, *request: Any) -> dict[str, Any]:
        match request:
            case [level, seed, games]:
                return self._begin(level, seed, Path(games))
            case _:
                return self._step(*request)

    def _begin(self, level: int, seed: int, games: Path) -> dict[str, Any]:
        if self._env is not None:
            self._env.close()
        try:
            self._env, state = start(games, level, seed)
        except Exception as error:  # the generator and the Inform compiler raise what they like
            return {"error": f"{type(error).__name__}: {error}"}
        self._num_moves = state.moves
        opening = clean(state.feedback[max(state.feedback.find(state.objective), 0) :])  # below the banner
        return {"opening": opening, "plan": state.policy_commands, "max_score": state.max_score}

    def _step(self, command: str) -> dict[str, Any]:
        state, score, _ = self._env.step(command)
        is_understood, self._num_moves = state.moves > self._num_moves, state.moves
        return {
            "text": clean(state.feedback),
            "is_understood": is_understood,
            "score": score,
            "is_over": state.won or state.lost,
            "is_won": state.won,
            "plan": state.policy_commands or (),
        }


def start(games: Path, level: int, seed: int) -> tuple[Any, Any]:
    """Return a game's interpreter and first state, after making the game if it is not there."""
    import textworld

    # The same seed may be another game to another version.
    path = games / textworld.__version__ / f"{level}_{seed}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):  # other processes that want this game wait for it
            if not path.exists():
                make(path, level, seed)
    infos = textworld.EnvInfos(objective=True, policy_commands=True, max_score=True, score=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jericho's, that it has no walkthrough of this game
        env = textworld.start(str(path / "game.z8"), infos)
        return env, env.reset()


def make(path: Path, level: int, seed: int) -> None:
    """Write a game's files into a folder, which is there with all of them or not at all."""
    import textworld

    options = textworld.GameOptions()
    options.seeds = seed
    options.nb_rooms = 1 + level // 2
    options.nb_objects = 3 + level
    options.quest_length = level
    for killed in path.parent.glob(f"{path.name}.*/"):
        shutil.rmtree(killed)
    partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))
    try:
        options.path = str(partial / "game.z8")
        textworld.make(options)
        (partial / "game.ni").unlink(missing_ok=True)  # the source that Inform has compiled
        try:
            partial.rename(path)
        except OSError:  # another process has made it meanwhile
            if not path.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: the game may be made twice
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clean(text: str) -> str:
    """Return a text without prompts, the question that follows the end, and runs of empty lines."""
    text = _PROMPT.sub("", text).partition("Would you like to RESTART")[0]
    lines = "\n".join(line.strip() for line in text.splitlines())
    return re.sub(r"\n{2,}", "\n\n", lines).strip()
