"""The games of TextArena for several players that are played here, one match of one, and a reference player of each."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from rllm_gym.envs.textarena.games import Instance
from rllm_gym.errors import EnvError

MAX_CHARS = 2_000  # of what a player says in a turn
_TOO_LONG_A_NUMBER = re.compile(r"[0-9]{5,}")  # no game has one; some would look for its square for a long time

Player = Callable[[Any, int], str]  # (TextArena's object, seat) -> what to say


class Duel(NamedTuple):
    """A game for several players.

    Args:
        num_players: how many may play.
        reference: a player that keeps to the rules.
        talks: whether what stands outside brackets means something, so that none are put around a turn without any.
    """

    num_players: range
    reference: Player
    talks: bool = False


def tic_tac_toe(world: Any, seat: int) -> str:
    """Play best possible."""
    board = "".join(cell or "." for row in world.state.game_state["board"] for cell in row)
    mine = "XO"[seat == 0]  # the player in seat 0 has O
    return f"[{max(_free(board), key=lambda k: (-_value(_put(board, k, mine), _other(mine), mine), -k))}]"


def _free(board: str) -> list[int]:
    return [k for k, cell in enumerate(board) if cell == "."]


def _put(board: str, k: int, mark: str) -> str:
    return board[:k] + mark + board[k + 1 :]


def _other(mark: str) -> str:
    return "X" if mark == "O" else "O"


@functools.cache
def _value(board: str, to_move: str, last: str) -> int:
    """Return the value of a position of Tic Tac Toe for the player to move: 1, 0 or -1."""
    lines = [board[k : k + 3] for k in (0, 3, 6)] + [board[k::3] for k in range(3)] + [board[::4], board[2:7:2]]
    if last * 3 in lines:
        return -1
    if not _free(board):
        return 0
    return max(-_value(_put(board, k, to_move), last, to_move) for k in _free(board))


def connect_four(world: Any, seat: int) -> str:
    """Win, or else prevent a loss, if one move does; else play near the middle."""
    board = [list(row) for row in world.state.game_state["board"]]
    columns = sorted((c for c in range(7) if board[0][c] == "."), key=lambda c: abs(c - 3))

    def wins(column: int, mark: str) -> bool:
        row = max(r for r in range(6) if board[r][column] == ".")
        cells = {(r, c) for r in range(6) for c in range(7) if board[r][c] == mark} | {(row, column)}
        return any(
            all((row + down * (k - back), column + right * (k - back)) in cells for k in range(4))
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
            for back in range(4)
        )

    for mark in ("XO"[seat], "XO"[1 - seat]):
        for column in columns:
            if wins(column, mark):
                return f"[col {column}]"
    return f"[col {columns[0]}]"


def nim(world: Any, seat: int) -> str:
    """Leave an even number of every power of two, where that can be done."""
    piles = world.state.game_state["piles"]
    total = functools.reduce(lambda a, b: a ^ b, piles)
    for k, pile in enumerate(piles):
        if pile ^ total < pile:
            return f"[{k} {pile - (pile ^ total)}]"
    return f"[{next(k for k, pile in enumerate(piles) if pile)} 1]"


def kuhn_poker(world: Any, seat: int) -> str:
    """Bet and call with the king alone."""
    legal = list(world.state.game_state["current_legal_action_tree"])
    is_king = world.state.game_state["player_cards"][seat] == 2
    wanted = ("bet", "call") if is_king else ("check", "fold")
    return f"[{next((action for action in wanted if action in legal), legal[0])}]"


def prisoners_dilemma(world: Any, seat: int) -> str:
    talks = world.state.game_state["phase"] == "conversation"
    return "Let us both cooperate." if talks else "[Cooperate]"


def three_player_dilemma(world: Any, seat: int) -> str:
    if world.state.game_state["phase"] == "conversation":
        return "Let us all cooperate."
    return " ".join(f"[{other} cooperate]" for other in range(3) if other != seat)


def rock_paper_scissors(world: Any, seat: int) -> str:
    return f"[{('rock', 'paper', 'scissors')[world.state.game_state['round'] % 3]}]"


def pig_dice(world: Any, seat: int) -> str:
    """Hold at 20, or when that wins."""
    state = world.state.game_state
    is_enough = state["turn_total"] >= 20 or state["scores"][seat] + state["turn_total"] >= world.winning_score
    return "[hold]" if is_enough else "[roll]"


def negotiation(world: Any, seat: int) -> str:
    """Take what is worth more than it costs, and else keep what one has."""
    offer, values = world.state.game_state["current_offer"], world.state.game_state["player_values"][seat]
    if not offer:
        return "I keep what I have, unless you offer more than it is worth to me."

    def worth(resources: Any) -> int:
        return sum(values[name] * count for name, count in resources.items())

    held = world.state.game_state["player_resources"][seat]
    can_pay = all(held.get(name, 0) >= count for name, count in offer["requested_resources"].items())
    is_good = can_pay and worth(offer["offered_resources"]) > worth(offer["requested_resources"])
    return "[Accept]" if is_good else "[Deny] That is worth too little to me."


def colonel_blotto(world: Any, seat: int) -> str:
    """Send equally many units everywhere."""
    names, units = world.field_names, world.num_total_units
    shares = [units // len(names) + (k < units % len(names)) for k in range(len(names))]
    return f"[{' '.join(f'{name}{share}' for name, share in zip(names, shares, strict=True))}]"


def liars_dice(world: Any, seat: int) -> str:
    """Bid one more of one's most frequent face, as long as a third of all others' dice would be enough."""
    state = world.state.game_state
    mine = state["dice_rolls"][seat]
    face = max(set(mine), key=lambda value: (mine.count(value), value))
    others = sum(state["remaining_dice"].values()) - len(mine)
    bid = state["current_bid"]
    quantity = bid["quantity"] + (1 if bid["quantity"] and face <= bid["face_value"] else 0) or 1
    if bid["quantity"] and quantity > mine.count(face) + others / 3:
        return "[Call]"
    return f"[Bid: {quantity}, {face}]" if face >= bid["face_value"] else f"[Bid: {quantity}, {bid['face_value']}]"


def first_free_cell(world: Any, seat: int) -> str:
    cells = [cell for row in world.state.game_state["board"] for cell in row]
    return f"[{cells.index('')}]"


def first_card(world: Any, seat: int) -> str:
    return "[play 1]"


TWO, THREE = range(2, 3), range(3, 4)
# An item's number begins with its game's place here, so a new game goes to the end.
DUELS: dict[str, Duel] = {
    "TicTacToe-v0": Duel(TWO, tic_tac_toe),
    "ConnectFour-v0": Duel(TWO, connect_four),
    "Nim-v0": Duel(TWO, nim),
    "KuhnPoker-v0": Duel(TWO, kuhn_poker),
    "IteratedPrisonersDilemma-v0": Duel(TWO, prisoners_dilemma, talks=True),
    "IteratedRockPaperScissors-v0": Duel(TWO, rock_paper_scissors),
    "PigDice-v0": Duel(TWO, pig_dice),
    "SimpleNegotiation-v0": Duel(TWO, negotiation, talks=True),
    "ColonelBlotto-v0": Duel(TWO, colonel_blotto),
    "LiarsDice-v0": Duel(range(2, 7), liars_dice),
    "Briscola-v0": Duel(TWO, first_card),  # with more players TextArena 0.7.4 fails at the end of a game
    "ThreePlayerTicTacToe-v0": Duel(THREE, first_free_cell),
    "ThreePlayerIPD-v0": Duel(THREE, three_player_dilemma, talks=True),
}


class Reply(NamedTuple):
    """The outcome of a turn in a match; rewards are TextArena's, at the end of the game, and before it 0."""

    rewards: tuple[float, ...]
    is_over: bool
    is_invalid: bool


class Match(Instance):
    """An instance of a game for several players, one of DUELS."""

    @property
    def seat(self) -> int:
        """Who must act."""
        return int(self.world.state.current_player_id)

    def news(self, seat: int) -> str:
        """Return the messages that a player has not read yet, without its own."""
        messages, self.world.state.observations[seat] = self.world.state.observations[seat], []
        told = []
        for sender, text, kind in messages:
            if kind.name != "PLAYER_ACTION":
                told.append(text.strip())
            elif sender != seat:
                told.append(f"Player {sender}: {text.strip()}")
        return "\n".join(filter(None, told))

    def step(self, text: str) -> Reply | None:
        """Let the player whose turn it is say something; None where it cannot reach the game.

        Raises:
            EnvError: the game failed.
        """
        if _TOO_LONG_A_NUMBER.search(text):
            return None
        text = text[:MAX_CHARS]
        if not DUELS[self.id].talks and "[" not in text and "]" not in text:
            text = f"[{text}]"
        state, seat, errors = self.world.state, self.seat, self.world.state.error_count
        num_players = state.num_players
        try:
            with self._drawing():
                is_over, _ = self.world.step(text)
        except Exception as e:
            raise EnvError(f"TextArena: {self.id} failed at {text!r:.200}: {type(e).__name__}: {e}") from e
        is_invalid = state.error_count > errors or bool(state.game_info[seat]["invalid_move"])
        rewards = tuple(float((state.rewards or {}).get(k, 0.0)) if is_over else 0.0 for k in range(num_players))
        return Reply(rewards, bool(is_over), is_invalid)

    @property
    def reason(self) -> str:
        """Why the game has ended."""
        return str(self.world.state.game_info[0].get("reason") or "")
