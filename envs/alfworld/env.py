"""ALFWorldEnv: household tasks in the text games of ALFWorld."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from rllm_gym.envs.agents.functions import REACT, Function
from rllm_gym.envs.alfworld.games import TASK_TYPES, Game, data_folder, find_games
from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.items import TextOptions, restrict
from rllm_gym.errors import ConfigError, EnvError

OVER = "The game is over."
BANNER = "-= Welcome to TextWorld, ALFRED! =-"
MAX_COMMAND_CHARS = 200

INTRODUCTION = "You do household tasks in a house. The first message says what to do, and what you see around you."
SYSTEM_PROMPT = f"""\
{INTRODUCTION}
Each turn, write one thought and one action:
Thought: what to do next and why
Action: one of the commands below (OBJ is a thing, PLACE furniture, both with their numbers, like mug 1 and desk 2)
- look, inventory, examine OBJ, examine PLACE
- go to PLACE, open PLACE, close PLACE
- take OBJ from PLACE, move OBJ to PLACE
- clean OBJ with PLACE, heat OBJ with PLACE, cool OBJ with PLACE
- use OBJ, to switch it on or off"""
FUNCTIONS = (
    Function("look", "look", "see what is around you"),
    Function("inventory", "inventory", "see what you carry"),
    Function("examine", "examine {thing}", "look at a thing or at furniture"),
    Function("go_to", "go to {place}", "go to a piece of furniture"),
    Function("open", "open {place}", "open a piece of furniture"),
    Function("close", "close {place}", "close a piece of furniture"),
    Function("take", "take {thing} from {place}", "take a thing from where it is"),
    Function("move", "move {thing} to {place}", "put down a thing that you carry"),
    Function("clean", "clean {thing} with {place}", "clean a thing that you carry"),
    Function("heat", "heat {thing} with {place}", "heat a thing that you carry"),
    Function("cool", "cool {thing} with {place}", "cool a thing that you carry"),
    Function("use", "use {thing}", "switch a thing on or off"),
)
# Games that were published before ALFWorld 0.4 say "put", later ones "move".
MAX_COMMAND_CHARS = 1_000  # no game has a longer one
_PUT = re.compile(r"put (.+) (?:in/on|in|on|into|onto) (.+)")
_MOVE = re.compile(r"move (.+) to (.+)")


class ALFWorldEnv(TextEnv):
    """Do a household task in a text game made of an ALFRED room.

    Task:
        "Put a clean mug on the desk" and the like, of six types. Item i is the i-th of the games that are there:
        those of `train` by their names, then `valid_seen`, then `valid_unseen`.

    Observation:
        Text: first the room and the task, then the game's reply to each command; "Nothing happens." to what is not
        possible now. With `show_commands` all that is possible follows.

    Action:
        Text: `Thought: ...` and `Action: ...`, on one line or several; without "Action:" the whole text is the action.
        A command of the game, in either case; `put OBJ in/on PLACE` is the same as `move OBJ to PLACE`.

    Reward:
        1.0 for reaching the goal, 0.0 for everything else.

    Episode end:
        Terminated when the goal is reached; never truncated from inside. Later actions change nothing.

    Info keys:
        `item_id` ("valid_seen/pick_and_place_simple-Mug-None-Desk-308/trial_T20190907_222606_903630"), `category` (the
        task's type), `is_success` (the goal is reached), `is_invalid_action` (the command is not possible now),
        `admissible_commands` (list of str, all that are).

    Data:
        ALFWorld's published games (MIT; Shridhar et al. 2021, arXiv:2010.03768), which `alfworld-download` fetches:
        3,553 in `train`, 140 in `valid_seen` and 134 in `valid_unseen`; `eval` is the last two together. They are
        played by TextWorld with Fast Downward (GPL-3.0), which pip compiles.

    Differs from ALFWorld's own interface: one game a time, any split, no batches, and no limit of steps.

    Version history:
        v0: first version.

    Args:
        task_types: restricts draws to this type of task, or to one of these.
        show_commands: list what is possible below each observation, as AgentGym does.
        data: the folder that holds `json_2.1.1`; None takes `$ALFWORLD_DATA`, or `~/.cache/alfworld`.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; an unknown type; no games; or, at the first reset, alfworld is not installed.
        EnvError: a file holds no game, or its process dies or hangs, as native code can.
    """

    name = "alfworld"
    safe_options = ("task_types", "show_commands")
    num_items = 3_827
    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form, functions = INTRODUCTION, REACT, FUNCTIONS

    def __init__(
        self,
        *,
        task_types: str | Sequence[str] | None = None,
        show_commands: bool = False,
        data: str | Path | None = None,
        **items: Unpack[TextOptions],
    ) -> None:
        if not isinstance(show_commands, bool):
            raise ConfigError(f"ALFWorldEnv: show_commands must be true or false; got {show_commands!r}. Correct it.")
        rule = f"ALFWorldEnv: task_types must be of {', '.join(TASK_TYPES)}"
        self._task_types = restrict(rule, task_types, TASK_TYPES)
        self._show_commands = show_commands
        self._catalog = find_games(data_folder(data))
        self.num_items = len(self._catalog.names)
        self._game: Game | None = None
        self._commands: list[str] = []  # possible now
        self._history: list[tuple[str, str]] = []  # (command, reply)
        own = {name: ids for name in ("valid_seen", "valid_unseen") if (ids := self._of(name))}
        if own and items.get("splits") is None and items.get("item_ids") is None:
            items["splits"] = own
        super().__init__(**items)

    def _of(self, *folders: str) -> list[int]:
        catalog = self._catalog
        return [i for i in catalog.indices(*folders) if catalog.task_type(i) in self._task_types]

    def split_indices(self, split: str) -> Sequence[int]:
        folders = {"train": ("train",), "eval": ("valid_seen", "valid_unseen")}
        return self._of(*folders.get(split, ("train", "valid_seen", "valid_unseen")))

    @property
    def category(self) -> str:
        return self._catalog.task_type(self.index)

    def named_item(self, entry: Any) -> int | None:
        if isinstance(entry, Mapping):
            entry = entry.get("item_id")
        return self._catalog.numbers.get(entry) if isinstance(entry, str) else None

    def _item_id(self, index: int) -> str:
        return self._catalog.names[index]

    def reset_item(self, index: int) -> str:
        self._history = []
        self._game = Game(self._catalog.file(index), replaces=self._game)
        self._commands = self._game.opening.commands
        return self._with_commands(self._game.opening.text.removeprefix(BANNER).strip())

    def act(self, action: str) -> StepResult:
        command = " ".join(parse_action(action).lower().split())[:MAX_COMMAND_CHARS]
        if self.is_success:
            return StepResult(OVER, 0.0, is_over=True, is_invalid=False)
        if command not in self._commands:
            command = _otherwise(command)
        is_invalid = command not in self._commands
        reply = self._live_game().step(command)
        self._history.append((command, reply.text))
        self._commands, self.is_success = reply.commands, reply.is_won
        return StepResult(self._with_commands(reply.text), float(reply.is_won), reply.is_won, is_invalid)

    def expert_action(self) -> str:
        """Return the next command of a planner, which knows where everything is."""
        plan = [] if self.is_success else self._live_game().plan()
        if not plan:
            return "Thought: There is nothing left to do.\nAction: look"
        return f"Thought: My next step is to {plan[0]}.\nAction: {plan[0]}"

    def close(self) -> None:
        if self._game is not None:
            self._game.process.close()
        self._game = self._index = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts its own game and repeats the commands, when it is stepped."""
        return {**self.__dict__, "_game": None}

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "admissible_commands": list(self._commands)}

    def _with_commands(self, text: str) -> str:
        return f"{text}\n\nYou can: {', '.join(self._commands)}." if self._show_commands else text

    def _live_game(self) -> Game:
        if self._game is None or self._game.process.is_foreign:
            game = Game(self._catalog.file(self.index))
            for command, text in self._history:
                if game.step(command).text != text:
                    raise EnvError("ALFWorldEnv: a copied episode must repeat; a reply differed. Reset it.")
            self._game = game
        return self._game


def _otherwise(command: str) -> str:
    """Return a command of the other way to say where a thing is put down, or the command itself."""
    if len(command) > MAX_COMMAND_CHARS:
        return command
    if put := _PUT.fullmatch(command):
        return f"move {put[1]} to {put[2]}"
    if move := _MOVE.fullmatch(command):
        return f"put {move[1]} in/on {move[2]}"
    return command
