"""TextWorldEnv: the environment of TextWorld's generated adventures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from rllm_gym.envs.agents.functions import REACT, Function
from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.items import TextOptions, restrict
from rllm_gym.envs.textworld.games import NUM_LEVELS, Game, as_command
from rllm_gym.errors import EnvError

NUM_ITEMS = 2_000  # 200 games of each level
NUM_EVAL_ITEMS = 200
NOT_UNDERSTOOD = "That's not a verb I recognise."
OVER = "The game is over."

INTRODUCTION = "You play a text adventure in a house. The first message says what to do there."
SYSTEM_PROMPT = f"""\
{INTRODUCTION}
Each turn, write one thought and one action:
Thought: what to do next and why
Action: one of the commands below (OBJ is an object that you see)
- look, inventory, examine OBJ
- go north, go south, go east, go west
- open OBJ, close OBJ, unlock OBJ with OBJ, lock OBJ with OBJ
- take OBJ, take OBJ from OBJ, drop OBJ, put OBJ on OBJ, insert OBJ into OBJ
- eat OBJ"""
FUNCTIONS = (
    Function("look", "look", "see the room"),
    Function("inventory", "inventory", "see what you carry"),
    Function("examine", "examine {thing}", "look at an object"),
    Function("go", "go {direction}", "go north, south, east or west"),
    Function("open", "open {thing}", "open a container or a door"),
    Function("close", "close {thing}", "close a container or a door"),
    Function("unlock", "unlock {thing} with {key}", "unlock a container or a door"),
    Function("lock", "lock {thing} with {key}", "lock a container or a door"),
    Function("take_from", "take {thing} from {place}", "take an object out of a container or off a support"),
    Function("take", "take {thing}", "take an object that lies in the room"),
    Function("drop", "drop {thing}", "lay an object down"),
    Function("put", "put {thing} on {support}", "put an object on a support"),
    Function("insert", "insert {thing} into {container}", "put an object into a container"),
    Function("eat", "eat {thing}", "eat it"),
)


class TextWorldEnv(TextEnv):
    """Play a generated text adventure.

    Task:
        A quest of 1 to 10 commands in 1 to 6 rooms: fetch, unlock, open, carry, drop. Item i is level i % 10 + 1 with
        TextWorld's seed i // 10; level n has a quest of n commands, 1 + n // 2 rooms and at least 3 + n objects.

    Observation:
        Text: first the goal, which tells the whole quest in words, and the room; then the game's reply to each command.
        "I beg your pardon?" answers an empty one, "That's not a verb I recognise." one to the program itself (quit,
        save, undo and the like), "The game is over." anything after the end.

    Action:
        Text: `Thought: ...` and `Action: ...`, on one line or several; without "Action:" the whole text is the action.
        A command of the game; the system prompt lists them, and `help` does. At most 190 characters are read.

    Reward:
        1.0 for completing the quest, 0.0 for everything else.

    Episode end:
        Terminated when the quest is completed, or cannot be any more (as when its food was eaten); never truncated from
        inside. Later actions change nothing.

    Info keys:
        `item_id` ("textworld_17"), `category` ("quest_1" to "quest_10", the length of the quest), `is_success` (the
        quest is completed), `is_invalid_action` (the game took no move for it: it did not understand the command, or
        sees no such thing).

    Data:
        Made by the package textworld 1.7.0 (MIT; Cote et al. 2018, arXiv:1806.11532), compiled with Inform 7 (Artistic
        License 2.0), played with Jericho (GPL-2.0), which pip compiles from C. 2,000 items, 200 of each level: there is
        no end to seeds. `eval` is the last 200 (20 of each level); `train` is the rest.

    Version history:
        v0: first version.

    Args:
        levels: restricts draws to this level, a number from 1 to 10, or to one of these.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; an unknown level; or, at the first reset, textworld is not installed.
        EnvError: a game cannot be made, or its process dies or hangs, as native code can.
    """

    name = "textworld"
    safe_options = ("levels",)
    num_items = NUM_ITEMS
    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form, functions = INTRODUCTION, REACT, FUNCTIONS

    def __init__(
        self,
        *,
        levels: int | Sequence[int] | None = None,
        **items: Unpack[TextOptions],
    ) -> None:
        known = range(1, NUM_LEVELS + 1)
        self._levels = restrict(f"TextWorldEnv: levels must be numbers from 1 to {NUM_LEVELS}", levels, known)
        self._game: Game | None = None
        self._history: list[str] = []  # commands
        self._plan: tuple[str, ...] = ()
        self._is_over = False
        super().__init__(**items)

    def split_indices(self, split: str) -> Sequence[int]:
        first = NUM_ITEMS - NUM_EVAL_ITEMS
        items = {"all": range(NUM_ITEMS), "train": range(first), "eval": range(first, NUM_ITEMS)}[split]
        return [i for i in items if i % NUM_LEVELS + 1 in self._levels]

    @property
    def category(self) -> str:
        return f"quest_{self.index % NUM_LEVELS + 1}"

    def reset_item(self, index: int) -> str:
        self._history = []
        self._is_over = False
        self._game = Game(index % NUM_LEVELS + 1, index // NUM_LEVELS, replaces=self._game)
        self._plan = self._game.plan
        return self._game.opening

    def act(self, action: str) -> StepResult:
        text = parse_action(action)
        command = as_command(text)
        if self._is_over:
            return StepResult(OVER, 0.0, is_over=True, is_invalid=False)
        if text and not command:
            return StepResult(NOT_UNDERSTOOD, 0.0, is_over=False, is_invalid=True)
        reply = self._live_game().step(command)
        self._history.append(command)
        self._plan = reply.plan
        self._is_over, self.is_success = reply.is_over, reply.is_won
        return StepResult(reply.text, float(reply.is_won), self._is_over, is_invalid=not reply.is_understood)

    def expert_action(self) -> str:
        """Return the next command of the game's own plan, or "look" where nothing wins any more."""
        if self._is_over or not self._plan:
            return "Thought: There is nothing left to do.\nAction: look"
        return f"Thought: My next step is to {self._plan[0]}.\nAction: {self._plan[0]}"

    def close(self) -> None:
        self._close_game()
        self._index = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts its own game and repeats the commands, when it is stepped."""
        return {**self.__dict__, "_game": None}

    def _live_game(self) -> Game:
        if self._game is None or self._game.process.is_foreign:
            game = Game(self.index % NUM_LEVELS + 1, self.index // NUM_LEVELS)
            plan = game.plan
            for command in self._history:
                plan = game.step(command).plan
            if plan != self._plan:
                raise EnvError("TextWorldEnv: a copied episode must repeat; the plan differed. Reset it.")
            self._game = game
        return self._game

    def _close_game(self) -> None:
        if self._game is not None:
            self._game.process.close()
        self._game = None
