"""ALFWorld's games: their files, and how they are played from here, in processes of their own, see `player.py`."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rllm_gym.envs.game_process import MAKE_TIMEOUT_S, GameProcess, Games, process_after
from rllm_gym.errors import ConfigError

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
FOLDERS = ("train", "valid_seen", "valid_unseen")
GAME = "game.tw-pddl"
GAMES = Games("ALFWorld-v0", package="alfworld", extra="alfworld", player=Path(__file__).with_name("player.py"))
_TAIL_BYTES = 16_384  # of a game's file, whose last entries say whether it can be solved, and how


class Reply(NamedTuple):
    """A game's words.

    Args:
        text: the reply.
        is_won: the goal is reached.
        commands: all that can be done now, sorted.
    """

    text: str
    is_won: bool
    commands: list[str]


class Game:
    """One running game.

    Args:
        file: the game's.
        replaces: a game that ends, and whose process plays this one.

    Raises:
        ConfigError: alfworld is not installed.
        EnvError: the file holds no game; here and later, the process died or did not answer.
    """

    def __init__(self, file: Path, *, replaces: Game | None = None) -> None:
        self.process: GameProcess = process_after(None if replaces is None else replaces.process, GAMES)
        self.opening = Reply(**self.process.begin(str(file), "begin", str(file)))

    def step(self, command: str) -> Reply:
        """Carry out a command; "Nothing happens." answers one that is not possible now."""
        return Reply(**self.process.ask("step", command))

    def plan(self) -> list[str]:
        """Return the commands that reach the goal from here, by the planner, which knows where everything is."""
        plan: list[str] = self.process.ask("plan", timeout_s=MAKE_TIMEOUT_S)["plan"]
        return plan


@dataclass(frozen=True)
class Catalog:
    """The games that are there.

    Args:
        folder: what the names are relative to.
        names: like "valid_seen/pick_and_place_simple-Mug-None-Desk-308/trial_T20190907_222606_903630"; sorted within a
            split, in the order of `FOLDERS`.
    """

    folder: Path
    names: tuple[str, ...]

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def file(self, index: int) -> Path:
        return self.folder / self.names[index] / GAME

    def indices(self, *splits: str) -> list[int]:
        return [i for i, name in enumerate(self.names) if name.partition("/")[0] in splits]

    def task_type(self, index: int) -> str:
        return self.names[index].split("/")[1].partition("-")[0]


def data_folder(data: str | Path | None) -> Path:
    """Return where the games are: as asked, as `ALFWORLD_DATA` says, or where `alfworld-download` puts them."""
    return Path(data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser()


@functools.lru_cache(maxsize=8)
def find_games(data: Path) -> Catalog:
    """Find the games that ALFWorld plays: its six tasks without sliced or movable things, where they can be solved.

    Raises:
        ConfigError: there are none.
    """
    folder = data / "json_2.1.1"
    names = []
    for split in FOLDERS:
        found = (path.parent for path in (folder / split).glob(f"*/*/{GAME}"))
        names += sorted(str(path.relative_to(folder)) for path in found if _is_played(path))
    if not names:
        GAMES.check_installed()  # it brings alfworld-download
        raise ConfigError(
            f"ALFWorld-v0: the games must lie in {folder}/train and so on; got none there. Run alfworld-download, and "
            "set ALFWORLD_DATA, or data in env_config, to the folder that holds json_2.1.1."
        )
    return Catalog(folder, tuple(names))


def _is_played(folder: Path) -> bool:
    kind = folder.parent.name
    if kind.partition("-")[0] not in TASK_TYPES or "Sliced" in kind or "movable" in kind:
        return False
    file = folder / GAME
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        tail = opened.read()
    if b'"solvable": ' in tail:
        return b'"solvable": true' in tail
    return bool(json.loads(file.read_text(encoding="utf-8")).get("solvable"))
