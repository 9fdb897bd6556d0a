"""The games of TextArena that are played here, and one instance of one, which draws from a generator of its own."""

from __future__ import annotations

import contextlib
import random
import re
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from rllm_gym.errors import EnvError, MachineError


class Family(NamedTuple):
    """The rules that games of one kind share.

    Args:
        form: how a move is written.
        moves: the same for the policy.
    """

    form: re.Pattern[str]
    moves: str


def _form(inner: str) -> re.Pattern[str]:
    return re.compile(rf"\[\s*{inner}\s*\]", re.IGNORECASE | re.ASCII)


NUMBER = r"\d{1,4}"
_DIRECTION = Family(_form("(?:up|down|left|right|[wasd])"), "[up], [down], [left] or [right]")
FAMILIES = {
    "2048": _DIRECTION,
    "FrozenLake": _DIRECTION,
    "GuessTheNumber": Family(_form(NUMBER), "a number, like [7]"),
    "LightsOut": Family(_form(rf"{NUMBER}\s+{NUMBER}"), "[row column], like [0 3]"),
    "Mastermind": Family(_form(rf"{NUMBER}(?:\s+{NUMBER}){{1,15}}"), "a code, like [2 1 4 5]"),
    "Minesweeper": Family(_form(rf"{NUMBER}\s+{NUMBER}"), "[row column], like [0 3]"),
    "Sokoban": _DIRECTION,
    "Sudoku": Family(_form(rf"{NUMBER}\s+{NUMBER}\s+{NUMBER}"), "[row column number], like [5 3 7]"),
    "TowerOfHanoi": Family(_form(r"[abc]\s*,?\s*[abc]"), "[source target], like [A C]"),
}
# An item's number begins with its game's place here, so a new game goes to the end.
GAMES = (
    *(f"2048-v0{level}" for level in ("-ultra-easy", "-mega-easy", "-super-easy", "-very-easy", "-easy", "")),
    *(f"2048-v0{level}" for level in ("-hard", "-very-hard", "-extreme", "-3x3", "-5x5", "-6x6", "-8x8", "-10x10")),
    *(f"FrozenLake-v0{level}" for level in ("", "-random", "-hardcore")),
    *(f"GuessTheNumber-v0{level}" for level in ("", "-hardcore")),
    "LightsOut-v0",
    *(f"Mastermind-v0{level}" for level in ("", "-hard", "-extreme")),
    *(f"Minesweeper-v0{level}" for level in ("", "-small", "-medium", "-hard")),
    "Sokoban-v0",
    *(f"Sudoku-v0{level}" for level in ("-very-easy", "-easy", "", "-medium", "-hard")),
    *(f"TowerOfHanoi-v0{level}" for level in ("", "-medium", "-hard", "-hardcore", "-extreme")),
)

# How the reason of an end begins where the game was solved; a part of 2048 can count as much as the whole.
WON = ("Congratulations", "You have cracked the code")

_generator: ContextVar[Any] = ContextVar("generator", default=random)
_making = threading.Lock()  # Sokoban's rooms are searched for in variables of its module


class _Drawn:
    """Stands for Python's `random` in TextArena's modules: it draws from the generator of the game that runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_generator.get(), name, None) or getattr(random, name)


_DRAWN = _Drawn()


class Reply(NamedTuple):
    """The outcome of a move.

    Args:
        text: what it says.
        reward: TextArena's, at the end of the game; before it 0.
        is_over: the game has ended.
        is_won: it was solved.
        is_invalid: the rules forbid the move.
    """

    text: str
    reward: float
    is_over: bool
    is_won: bool
    is_invalid: bool


class Instance:
    """One instance of a game of TextArena's. Its randomness is its own, so that many may be played in one process.

    Args:
        id: TextArena's.
        seed: TextArena's, at least 0.
        num_players: that play it.

    Raises:
        ConfigError: textarena is not installed.
        EnvError: TextArena cannot make this instance.
    """

    def __init__(self, id: str, seed: int, num_players: int) -> None:
        make = _textarena().make
        self.id = id
        self._generator = random.Random()
        self.world = make(f"{id}-raw")  # without the wrappers, which repeat the whole history in every observation
        try:
            with _making, self._drawing():
                self.world.reset(num_players=num_players, seed=seed)
        except (ArithmeticError, RuntimeError, RuntimeWarning) as e:
            raise EnvError(f"TextArena: {id} with seed {seed} could not be made: {type(e).__name__}: {e}") from e

    @property
    def family(self) -> str:
        return self.id.partition("-")[0]

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        for name in ("textarena.core", type(self.world).__module__):  # here, since a copy may be in a new process
            sys.modules[name].random = _DRAWN  # type: ignore[attr-defined]
        token = _generator.set(self._generator)
        try:
            yield
        finally:
            _generator.reset(token)


class Game(Instance):
    """An instance of a game for one player, one of GAMES."""

    def __init__(self, id: str, seed: int) -> None:
        super().__init__(id, seed, num_players=1)
        self.opening = self._said()

    @property
    def moves(self) -> str:
        """The form of a move, for the policy."""
        return FAMILIES[self.family].moves

    def move_in(self, text: str) -> str | None:
        """Return the first move in a text, or None. As with TextArena, a text without brackets gets some."""
        match = FAMILIES[self.family].form.search(text if "[" in text or "]" in text else f"[{text}]")
        return match and re.sub(r"\s+", " ", match.group()).replace("[ ", "[").replace(" ]", "]")

    def step(self, move: str) -> Reply:
        """Make a move, in the form of `move_in`."""
        state = self.world.state
        errors = state.error_count
        with self._drawing():
            is_over, _ = self.world.step(move)
        end = state.game_info[0]
        is_invalid = state.error_count > errors or end["invalid_move"]
        reward = float(state.rewards[0]) if is_over else 0.0
        text = "\n".join(filter(None, (self._said(), end["reason"] if is_over else "")))
        is_won = is_over and end["reason"].startswith(WON)
        return Reply(text, reward, is_over, is_won, is_invalid)

    def _said(self) -> str:
        _, messages = self.world.get_observation()
        return "\n".join(text.strip() for _, text, kind in messages if kind.name != "PLAYER_ACTION")


def _textarena() -> Any:
    try:
        import textarena  # takes 2 s
    except ImportError as e:
        raise MachineError('TextArena-v0 needs the textarena package: pip install "rllm-gym[textarena]".') from e
    return textarena
