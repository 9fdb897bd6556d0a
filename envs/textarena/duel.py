"""TextArenaDuelEnv: TextArena's games for two and more players."""

from __future__ import annotations

from typing import Unpack

from rllm_gym.envs.base import parse_action
from rllm_gym.envs.items import ItemOptions, restrict
from rllm_gym.envs.seats import Move, SeatedEnv
from rllm_gym.envs.textarena.duel_games import DUELS, Match
from rllm_gym.envs.textarena.env import ITEMS_PER_GAME, TRAIN_ITEMS_PER_GAME
from rllm_gym.errors import ConfigError

SYSTEM_PROMPT = """\
You play a game with others. The first message tells the rules and what you can see.
Each turn, write one thought, which the others do not read, and one action:
Thought: what to do next and why
Action: one move, written as the rules say"""


class TextArenaDuelEnv(SeatedEnv):
    """Play a game of TextArena's for two and more players.

    Task:
        TicTacToe, ConnectFour, Nim, KuhnPoker (three rounds), IteratedPrisonersDilemma, IteratedRockPaperScissors,
        PigDice, SimpleNegotiation, ColonelBlotto, Briscola (two players), LiarsDice (2 to 6),
        ThreePlayerTicTacToe and ThreePlayerIPD (three), each by TextArena's id (`TicTacToe-v0`). Item i is game number
        i // 1000 of `duel_games.DUELS`, with TextArena's seed i % 1000. A seat is a player's number in the game.

    Observation:
        Text: what a player has not read yet: at first the rules, then what the game says to it, and what other players
        said, behind "Player 1: "; at the end why the game has ended. Nothing is said twice.

    Action:
        Text: `Thought: ...` and `Action: ...`; without "Action:" the whole text is the action. It reaches the game, and
        the other players where the game shows moves, up to 2,000 characters; a text without any bracket gets a pair,
        but in games in which players talk.

    Reward:
        TextArena's, to every player, at the end: 1 for winners, -1 for losers, 0 for a draw, or the game's own shares.

    Episode end:
        Terminated when the game is over, at its own limit of turns, and by the second move in a row that its rules
        forbid (TextArena forgives one; of more than two players the one who makes it is out). Never truncated from
        inside.

    Info keys:
        `item_id` ("textarenaduel_17"), `category` (TextArena's id), `role` ("seat_0", ...), `is_success` (has won),
        `is_invalid_action` (the rules forbid it, or it could not reach the game: a number of five digits).

    Data:
        Made by the package textarena (MIT; Guertler et al. 2025, arXiv:2504.11442); nothing is downloaded. 1,000 items
        for each game: `train` is the seeds up to 899, `eval` the rest. Games without chance have one instance, so that
        both hold the same.

    Version history:
        v0: first version.

    Args:
        game: TextArena's id.
        num_players: how many play; None is the least that the game allows.
        items: `split`, `item_ids`, `splits` and `system_prompt`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; an unknown game, or a number of players that it does not allow; or, at the first
            reset, textarena is not installed.
        EnvError: TextArena cannot make an instance, or fails at a move.
    """

    name = "textarenaduel"
    safe_options = ("game", "num_players")
    num_items = len(DUELS) * ITEMS_PER_GAME
    default_system_prompt = SYSTEM_PROMPT

    def __init__(
        self,
        *,
        game: str = "TicTacToe-v0",
        num_players: int | None = None,
        **items: Unpack[ItemOptions],
    ) -> None:
        [self.game] = restrict(f"TextArenaDuelEnv: game must be one of {', '.join(DUELS)}", str(game), tuple(DUELS))
        allowed = DUELS[self.game].num_players
        if num_players is not None and num_players not in allowed:
            least, most = allowed[0], allowed[-1]
            raise ConfigError(
                f"TextArenaDuelEnv: num_players of {self.game} must be "
                f"{least if least == most else f'from {least} to {most}'}; got {num_players!r}. Correct it."
            )
        self._match: Match | None = None
        super().__init__(num_players or allowed[0], **items)

    def split_indices(self, split: str) -> range:
        first = list(DUELS).index(self.game) * ITEMS_PER_GAME
        begin, end = {
            "all": (0, ITEMS_PER_GAME),
            "train": (0, TRAIN_ITEMS_PER_GAME),
            "eval": (TRAIN_ITEMS_PER_GAME, ITEMS_PER_GAME),
        }[split]
        return range(first + begin, first + end)

    @property
    def category(self) -> str:
        return self._playing.id

    def _begin(self, index: int) -> None:
        if index not in self.split_indices("all"):
            raise ConfigError(
                f"TextArenaDuelEnv: the items of {self.game} are those from {self.split_indices('all')[0]} to "
                f"{self.split_indices('all')[-1]}; got {index}. Choose one, or another game."
            )
        self._match = Match(self.game, index % ITEMS_PER_GAME, len(self.possible_agents))
        self._ask(self._match.seat, self._match.news(self._match.seat))

    def act(self, seat: int, text: str) -> Move:
        match, still = self._playing, [0.0] * len(self.possible_agents)
        reply = match.step(parse_action(text))
        if reply is None:
            self._ask(seat, "A number in it is too long. Write a move as the rules say.")
            return Move(still, is_invalid=True)
        if not reply.is_over:
            self._ask(match.seat, match.news(match.seat))
            return Move(still, is_invalid=reply.is_invalid)
        for k in range(len(self.possible_agents)):
            self._tell("\n".join(filter(None, (match.news(k), match.reason))) or "The game is over.", k)
        best = max(reply.rewards)
        winners = [k for k, reward in enumerate(reply.rewards) if reward == best > 0]
        return Move(reply.rewards, is_over=True, is_invalid=reply.is_invalid, winners=winners)

    def _expert(self, seat: int) -> str:
        move = DUELS[self.game].reference(self._playing.world, seat)
        return f"Thought: I keep to my plan.\nAction: {move}"

    @property
    def _playing(self) -> Match:
        assert self.index is not None and self._match is not None  # index raises before the first reset
        return self._match
