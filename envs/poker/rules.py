"""The two games: their texts, their cards, and how a move is read. Everything else is OpenSpiel's."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rllm_gym.envs.base import parse_action
from rllm_gym.errors import ConfigError, MachineError, nearest


class Rules(NamedTuple):
    """The rules of a game of OpenSpiel's, played as text.

    Args:
        moves: how a policy writes OpenSpiel's actions 0, 1, ...
        cards: the names of OpenSpiel's cards 0, 1, ...
        num_dealt: cards of a deal: one for each player, then those on the table.
        stake: (state, seat) -> the chips that the player has put into the pot.
        introduction: the rules in words.
    """

    game: str
    moves: tuple[str, ...]
    cards: tuple[str, ...]
    num_dealt: int
    stake: Callable[[Any, int], float]
    introduction: str

    @property
    def deals(self) -> list[tuple[int, ...]]:
        """Every way in which the cards can lie."""
        return list(itertools.permutations(range(len(self.cards)), self.num_dealt))

    @property
    def move_form(self) -> str:
        """The regular expression, without regard to case, of a text that is nothing but a move."""
        return rf"\s*(?:action:\s*)?\[?\s*({'|'.join(self.moves)})\s*\]?\s*\.?\s*"


def _kuhn_stake(state: Any, seat: int) -> float:
    played = state.history()[2:]  # behind the two cards; players act by turns
    return 1.0 + sum(action for k, action in enumerate(played) if k % 2 == seat)


KUHN = Rules(
    "kuhn_poker",
    ("pass", "bet"),
    ("J", "Q", "K"),
    2,
    _kuhn_stake,
    "You play Kuhn poker against another player. There are three cards: J, Q and K, of which K is the highest. Each "
    "player has put 1 chip into the pot and got one card, which the other does not see. The players act by turns. "
    "Before any bet, bet puts in 1 more chip and pass puts in none. After a bet, bet puts in 1 chip, too, and pass "
    "gives up the pot. When both have passed or both have bet, the higher card wins the pot. A move that is not "
    "allowed loses the chips that you have put in.",
)
LEDUC = Rules(
    "leduc_poker",
    ("fold", "call", "raise"),
    tuple(f"{rank} of {suit}" for rank in "JQK" for suit in ("hearts", "spades")),
    3,
    lambda state, seat: 100.0 - state.money()[seat],
    "You play Leduc poker against another player. There are six cards: J, Q and K of hearts and of spades. Each "
    "player has put 1 chip into the pot and got one card, which the other does not see. There are two rounds of "
    "betting; before the second, a card is laid on the table. In a round the players act by turns: raise puts in what "
    "the other has put in, and 2 chips more in the first round or 4 in the second; call puts in what the other has "
    "put in, which may be nothing more; fold gives up the pot and is only allowed after a raise. In a round there are "
    "at most two raises. At the end a card of the rank of the one on the table wins the pot, else the higher rank (K, "
    "Q, J); equal ranks share it. A move that is not allowed loses the chips that you have put in.",
)
RULES = {rules.game: rules for rules in (KUHN, LEDUC)}
BARE = "Answer with your move alone, in one word."
WITH_THOUGHTS = """\
Each turn, write one thought and one action:
Thought: what to do next and why
Action: your move, in one word"""


def rules_of(game: str) -> Rules:
    """Return a game's rules.

    Raises:
        ConfigError: there is no such game here.
    """
    if game not in RULES:
        raise ConfigError(
            f"game: must be one of {', '.join(RULES)}; got {game!r}. Did you mean {nearest(game, RULES)!r}?"
        )
    return RULES[game]


def move_in(text: str, rules: Rules, *, thoughts: bool) -> int | None:
    """Return OpenSpiel's number of the move in a policy's text, or None.

    Args:
        thoughts: the move is what follows the last "Action:"; else nothing may stand beside it.
    """
    match = re.fullmatch(rules.move_form, parse_action(text) if thoughts else text, re.IGNORECASE | re.ASCII)
    return None if match is None else rules.moves.index(match[1].lower())


def open_spiel() -> Any:
    """Return OpenSpiel's module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyspiel
    except ImportError as e:
        raise MachineError('Kuhn and Leduc poker need the open_spiel package: pip install "rllm-gym[games]".') from e
    return pyspiel


@functools.cache
def load_game(game: str) -> Any:
    """Return OpenSpiel's game."""
    return open_spiel().load_game(rules_of(game).game)


@functools.cache
def reference_policy(game: str) -> Any:
    """Return a policy of OpenSpiel's that is nearly optimal, found by counterfactual regret minimisation.

    Source: CFR+, Tammelin 2014, arXiv:1407.5042.
    """
    solver = open_spiel().CFRPlusSolver(load_game(game))
    for _ in range(100):  # 0.1 s for Kuhn, 3 s for Leduc; NashConv 0.0025 and 0.027
        solver.evaluate_and_update_policy()
    return solver.tabular_average_policy()


def chances(policy: Any, information_state: str, legal: Sequence[int]) -> list[float]:
    """Return a policy's probability of each legal action."""
    by_action = dict(policy.action_probabilities(information_state))
    return [by_action.get(action, 0.0) for action in legal]
