"""Makes, keeps and runs TextWorld's games; the only file that imports textworld."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from rllm_gym.errors import ConfigError, EnvError

NUM_LEVELS = 10
MAX_KEPT_GAMES = 256  # of some 400 kB each, on disk
# Commands about the program and not about the environment: they end or rewind the game, ask back, write files, or
# change how it prints.
_META = frozenset({"q", "quit", "restart", "restore", "save", "undo", "oops", "version"})
_META |= {"script", "transcript", "noscript", "unscript", "brief", "superbrief", "verbose"}
_NEXT_COMMAND = re.compile(r"[.,;]|\bthen\b")  # Inform carries out several in a line
_PROMPT = re.compile(r">? {20,}-=.*")  # with the status line
_MAX_COMMAND_CHARS = 190  # the interpreter reads 198 bytes

# A game is made with objects that all games of a process share.
_lock = threading.Lock()


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
    """One running game.

    Args:
        level: 1 to 10: how many commands the quest takes.
        seed: of the map, the objects, the quest and the words.

    Raises:
        ConfigError: textworld is not installed.
        EnvError: the game could not be made.
    """

    def __init__(self, level: int, seed: int) -> None:
        textworld = _textworld()
        self._games = _games(os.getpid())
        infos = textworld.EnvInfos(objective=True, policy_commands=True, max_score=True, score=True)
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jericho's, that it has no walkthrough of this game
            self._env = textworld.start(str(self._games.path(level, seed)), infos)
            self._games.num_open += 1
            state = self._env.reset()
        self.max_score: int = state.max_score
        text = state.feedback
        self.opening = _clean(text[max(text.find(state.objective), 0) :])  # below the banner
        self.plan = tuple(state.policy_commands)
        self._num_moves: int = state.moves

    def step(self, command: str) -> Reply:
        """Carry out a command; the game must not be over."""
        state, score, _ = self._env.step(command)
        plan = tuple(state.policy_commands or ())
        is_understood, self._num_moves = state.moves > self._num_moves, state.moves
        return Reply(_clean(state.feedback), is_understood, score, state.won or state.lost, state.won, plan)

    def close(self) -> None:
        """Free it; safe to call twice."""
        if self._env is not None:
            self._env.close()
            with _lock:
                self._games.num_open -= 1
                self._games.clean_up()
        self._env = None


def as_command(text: str) -> str:
    """Return what the interpreter is given for a text: one line of printable ASCII, or "" for what is no command.

    Commands to the program, such as "quit" and "undo", are none.
    """
    line = " ".join(text.encode("ascii", "replace").decode().split())[:_MAX_COMMAND_CHARS].lower()
    first_words = [part.split()[0] for part in _NEXT_COMMAND.split(line) if part.strip()]
    is_meta = any(word in _META or word.startswith("tw-") for word in first_words)
    return "" if is_meta else line


def _clean(text: str) -> str:
    """Return a text without prompts, the question that follows the end, and runs of empty lines."""
    text = _PROMPT.sub("", text).partition("Would you like to RESTART")[0]
    lines = "\n".join(line.strip() for line in text.splitlines())
    return re.sub(r"\n{2,}", "\n\n", lines).strip()


class _Games:
    """The games that this process has made, as files in a folder of its own; the least recently used go first.

    The folder goes with the last open game, or with the process. A forked child must not touch its parent's.
    """

    def __init__(self, pid: int) -> None:
        self.num_open = 0
        self._pid = pid
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._paths: OrderedDict[tuple[int, int], Path] = OrderedDict()

    def path(self, level: int, seed: int) -> Path:
        """Return the file of a game, after making it if it is not there (a second)."""
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="textworld_")
        key = (level, seed)
        if key not in self._paths or not self._paths[key].exists():  # a forked child may have ended and cleaned up
            path = Path(self._folder.name) / f"{level}_{seed}" / "game.z8"
            _make(level, seed, path)
            self._paths[key] = path
        self._paths.move_to_end(key)
        if len(self._paths) > MAX_KEPT_GAMES:
            _, oldest = self._paths.popitem(last=False)
            shutil.rmtree(oldest.parent, ignore_errors=True)
        return self._paths[key]

    def clean_up(self) -> None:
        """Remove the files if no game is open."""
        if self.num_open == 0 and self._folder is not None and self._pid == os.getpid():
            self._folder.cleanup()
            self._folder = None
            self._paths.clear()


@functools.cache
def _games(pid: int) -> _Games:
    return _Games(pid)


def _make(level: int, seed: int, path: Path) -> None:
    textworld = _textworld()
    options = textworld.GameOptions()
    options.seeds = seed
    options.nb_rooms = 1 + level // 2
    options.nb_objects = 3 + level
    options.quest_length = level
    options.path = str(path)
    try:
        textworld.make(options)
    except Exception as e:  # the generator and the Inform compiler raise what they like
        raise EnvError(
            f"TextWorld-v0: level {level} with seed {seed} could not be made: {type(e).__name__}: {e}"
        ) from e


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


@functools.cache
def _textworld() -> Any:
    try:
        import textworld
    except ModuleNotFoundError as e:
        raise ConfigError(
            f'TextWorld-v0 needs the {str(e.name).partition(".")[0]} package: pip install "rllm-gym[textworld]".'
        ) from e
    return textworld
