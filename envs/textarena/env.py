"""TextArenaEnv: TextArena's games for one player."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from rllm_gym.envs.agents.functions import REACT, Function
from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.items import TextOptions, restrict
from rllm_gym.envs.textarena.experts import EXPERTS
from rllm_gym.envs.textarena.games import FAMILIES, GAMES, Game

ITEMS_PER_GAME = 1_000
TRAIN_ITEMS_PER_GAME = 900
OVER = "The game is over."

INTRODUCTION = "You play a game for one player. The first message tells the rules and shows the board."
SYSTEM_PROMPT = f"""\
{INTRODUCTION}
Each turn, write one thought and one action:
Thought: what to do next and why
Action: one move in square brackets, written as the rules say"""
FUNCTIONS = (Function("play", "[{move}]", "make a move: what stands between the square brackets in the rules"),)


class TextArenaEnv(TextEnv):
    """Play a game of TextArena's for one player.

    Task:
        2048, FrozenLake, GuessTheNumber, LightsOut, Mastermind, Minesweeper, Sokoban, Sudoku or TowerOfHanoi, each in
        the sizes that TextArena has. Item i is game number i // 1000 of `games.GAMES`, with TextArena's seed i % 1000.

    Observation:
        Text: first the rules and the board, in TextArena's words; then what the game says to a move, with the board
        where it shows one, and at the end why it has ended. Nothing is said twice: TextArena's own wrappers repeat the
        whole history.

    Action:
        Text: `Thought: ...` and `Action: ...`, on one line or several; without "Action:" the whole text is the action.
        Its first move in square brackets counts; a text without any bracket gets a pair, as in TextArena.

    Reward:
        TextArena's, at the end: 1.0 for solving the game; else what part of it was: under 1.0 but for 2048, where a
        high score counts as much, and below 0 in LightsOut where more lights are on than at the start. 0.0 for every
        other step.

    Episode end:
        Terminated when the game is solved or lost, at its own limit of turns, and at the second move in a row that its
        rules forbid (TextArena forgives one; in Minesweeper a mine counts as such). A text without a move in it does
        not reach the game and ends nothing. Never truncated from inside. Later actions change nothing.

    Info keys:
        `item_id` ("textarena_14017"), `category` (TextArena's id of the game, "FrozenLake-v0"), `is_success` (solved),
        `is_invalid_action` (no move was found in the text, or the rules forbid it).

    Data:
        Made by the package textarena (MIT; Guertler et al. 2025, arXiv:2504.11442). 1,000 items for each game: `train`
        is the seeds up to 899, `eval` the rest. Small games have fewer instances than seeds, so that `eval` shares some
        with `train`: GuessTheNumber has 20 or 50 and TowerOfHanoi has one.

    Version history:
        v0: first version.

    Args:
        game: TextArena's id of a game, or several; None is all.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; an unknown game; or, at the first reset, textarena is not installed.
        EnvError: TextArena cannot make an instance.
    """

    name = "textarena"
    safe_options = ("game",)
    num_items = len(GAMES) * ITEMS_PER_GAME
    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form, functions = INTRODUCTION, REACT, FUNCTIONS

    def __init__(
        self,
        *,
        game: str | Sequence[str] | None = "FrozenLake-v0",
        **items: Unpack[TextOptions],
    ) -> None:
        rule = f"TextArenaEnv: game must be an id of TextArena's for {', '.join(FAMILIES)}, or a list of these"
        self._games = restrict(rule, game, GAMES)
        self._game: Game | None = None
        self._is_over = False
        super().__init__(**items)

    def split_indices(self, split: str) -> Sequence[int]:
        seeds = {
            "all": range(ITEMS_PER_GAME),
            "train": range(TRAIN_ITEMS_PER_GAME),
            "eval": range(TRAIN_ITEMS_PER_GAME, ITEMS_PER_GAME),
        }[split]
        chosen = (number for number, game in enumerate(GAMES) if game in self._games)
        return [number * ITEMS_PER_GAME + seed for number in chosen for seed in seeds]

    @property
    def category(self) -> str:
        return GAMES[self.index // ITEMS_PER_GAME]

    def reset_item(self, index: int) -> str:
        self._is_over = False
        self._game = Game(GAMES[index // ITEMS_PER_GAME], index % ITEMS_PER_GAME)
        return self._game.opening

    def act(self, action: str) -> StepResult:
        text, game = parse_action(action), self._playing()
        if self._is_over:
            return StepResult(OVER, 0.0, is_over=True, is_invalid=False)
        move = game.move_in(text)
        if move is None:
            return StepResult(f"That is no move. Write {game.moves}.", 0.0, is_over=False, is_invalid=True)
        reply = game.step(move)
        self._is_over, self.is_success = reply.is_over, reply.is_won
        return StepResult(reply.text, reply.reward, reply.is_over, reply.is_invalid)

    def expert_action(self) -> str:
        """Return the next move of a solver. Where nothing wins any more, it is some move.

        Raises:
            NotImplementedError: the game is 2048, for which there is none.
        """
        game = self._playing()
        if game.family not in EXPERTS:
            raise NotImplementedError(f"TextArenaEnv: {game.id} has no expert; those of {', '.join(EXPERTS)} have one.")
        if self._is_over:
            return "Thought: There is nothing left to do.\nAction: [0]"
        move = EXPERTS[game.family](game.world)
        return f"Thought: My next move is {move}.\nAction: [{move}]"

    def _playing(self) -> Game:
        assert self.index is not None and self._game is not None  # index raises before the first reset
        return self._game
