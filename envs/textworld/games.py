"""TextWorld's games as they are played from here, in processes of their own, see `player.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rllm_gym.envs.game_process import GameProcess, Games, process_after
from rllm_gym.envs.user_cache import cache_folder

NUM_LEVELS = 10
GAMES = Games(
    "TextWorld-v0",
    package="textworld",
    extra="textworld",
    player=Path(__file__).with_name("player.py"),
)
# Commands about the program and not about the environment: they end or rewind the game, ask back, write files, or
# change how it prints.
_META = frozenset({"q", "quit", "restart", "restore", "save", "undo", "oops", "version"})
_META |= {"script", "transcript", "noscript", "unscript", "brief", "superbrief", "verbose"}
_NEXT_COMMAND = re.compile(r"[.,;]|\bthen\b")  # Inform carries out several in a line
_MAX_COMMAND_CHARS = 190  # the interpreter reads 198 bytes


class Reply(NamedTuple):
    """A game's words.

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
        self.process: GameProcess = process_after(None if replaces is None else replaces.process, GAMES)
        games = str(cache_folder("textworld"))  # made once for all processes of a user
        state = self.process.begin(f"level {level} with seed {seed}", level, seed, games)
        self.opening: str = state["opening"]
        self.max_score: int = state["max_score"]
        self.plan: tuple[str, ...] = tuple(state["plan"])

    def step(self, command: str) -> Reply:
        """Carry out a command; the game must not be over."""
        state = self.process.ask(command)
        return Reply(**{**state, "plan": tuple(state["plan"])})


def as_command(text: str) -> str:
    """Return the interpreter's input for a text: one line of printable ASCII, or "" for a text that is no command.

    Commands to the program, such as "quit" and "undo", are none.
    """
    # Control characters crash the interpreter, or hang it. A backslash begins a command to the terminal, of which an
    # unknown one is read again for ever; no game has one.
    ascii_text = text.encode("ascii", "replace").decode().replace("\\", " ")
    ascii_text = "".join(c for c in ascii_text if c.isprintable() or c.isspace())
    line = " ".join(ascii_text.split())[:_MAX_COMMAND_CHARS].lower()
    first_words = [part.split()[0] for part in _NEXT_COMMAND.split(line) if part.strip()]
    is_meta = any(word in _META or word.startswith("tw-") for word in first_words)
    return "" if is_meta else line
