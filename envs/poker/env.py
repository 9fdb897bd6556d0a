"""KuhnPokerEnv and LeducPokerEnv: two players, text, and OpenSpiel's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

from rllm_gym.envs.items import ItemOptions, restrict
from rllm_gym.envs.poker.rules import (
    BARE,
    KUHN,
    LEDUC,
    WITH_THOUGHTS,
    Rules,
    chances,
    load_game,
    move_in,
    reference_policy,
)
from rllm_gym.envs.seats import Move, SeatedEnv

ROUNDS, TRAIN_ROUNDS = 100, 90  # in every round, each deal is played once
SEAT_NAMES = ("first", "second")
EXPERTS = ("reference", "uniform")


class PokerEnv(SeatedEnv):
    """The base of Kuhn and Leduc poker; their docstrings say the rest.

    Attributes:
        exact_game: the name of the game for `rllm_gym.evaluation.nash_conv`.
        thoughts: whether a turn is a thought and a move, or a move alone.
    """

    rules: ClassVar[Rules]
    exact_game: ClassVar[str]

    def __init__(
        self,
        *,
        thoughts: bool = False,
        expert: str = "reference",
        **items: Unpack[ItemOptions],
    ) -> None:
        [self.expert] = restrict(f"{self._who}: expert must be {' or '.join(EXPERTS)}", str(expert), EXPERTS)
        self.thoughts = bool(thoughts)
        self.default_system_prompt = f"{self.rules.introduction}\n{WITH_THOUGHTS if thoughts else BARE}"
        self._deals = self.rules.deals
        self.num_items = ROUNDS * len(self._deals)
        self._state: Any = None
        super().__init__(2, **items)

    def split_indices(self, split: str) -> Sequence[int]:
        first, last = {"all": (0, ROUNDS), "train": (0, TRAIN_ROUNDS), "eval": (TRAIN_ROUNDS, ROUNDS)}[split]
        return range(first * len(self._deals), last * len(self._deals))

    @property
    def category(self) -> str:
        return self.exact_game

    @property
    def deal(self) -> tuple[int, ...]:
        """OpenSpiel's cards of the present episode."""
        return self._deals[self.index % len(self._deals)]

    def _begin(self, index: int) -> None:
        self._state = load_game(self.exact_game).new_initial_state()
        # What decides the reference policy's moves, so that asking it changes nothing.
        self._luck = self.np_random.random(16)
        self._num_laid = 0
        self._lay_cards()
        for seat in (0, 1):
            card = self.rules.cards[self.deal[seat]]
            self._tell(f"You are the {SEAT_NAMES[seat]} player. Your card is {card}.", seat)
        self._ask_next()

    def _lay_cards(self) -> bool:
        """Lay the cards that are due; return whether there were any."""
        is_due = self._state.is_chance_node()
        while self._state.is_chance_node():
            self._state.apply_action(self.deal[self._num_laid])
            self._num_laid += 1
        return is_due

    def _ask_next(self) -> None:
        seat = self._state.current_player()
        *others, last = self._legal_moves
        self._ask(seat, f"Your move: {', '.join(others)} or {last}?" if others else f"Your move: {last}?")

    @property
    def _legal_moves(self) -> list[str]:
        return [self.rules.moves[action] for action in self._state.legal_actions()]

    def _info_of(self, seat: int) -> dict[str, Any]:
        if self._state.is_terminal() or self._state.current_player() != seat:
            return {}
        return {
            "legal_actions": self._legal_moves,
            "information_state": self._state.information_state_string(seat),
        }

    def act(self, seat: int, text: str) -> Move:
        action = move_in(text, self.rules, thoughts=self.thoughts)
        other = 1 - seat
        if action is None or action not in self._state.legal_actions():
            stake = self.rules.stake(self._state, seat)
            self._tell(f"That is no move that is allowed here. You lose {_chips(stake)}.", seat)
            self._tell(f"The other player's move is not allowed. You win {_chips(stake)}.", other)
            rewards = (-stake, stake) if seat == 0 else (stake, -stake)
            return Move(rewards, is_over=True, is_invalid=True, winners=(other,))
        self._state.apply_action(action)
        self._tell(f"The other player: {self.rules.moves[action]}.", other)
        if self._lay_cards():
            self._tell(f"Round 2. The card on the table is {self.rules.cards[self.deal[-1]]}.", 0, 1)
        if not self._state.is_terminal():
            self._ask_next()
            return Move((0.0, 0.0))
        rewards = self._state.returns()
        self._tell_end(rewards, is_shown=self._is_showdown(action))
        return Move(rewards, is_over=True, winners=[k for k, reward in enumerate(rewards) if reward > 0])

    def _is_showdown(self, action: int) -> bool:
        """Return whether the last action, which has ended the game, left both players in it."""
        if self.rules is LEDUC:
            return action != LEDUC.moves.index("fold")
        *_, before = self._state.history()[2:-1]
        return action == before

    def _tell_end(self, rewards: Sequence[float], *, is_shown: bool) -> None:
        for seat, reward in enumerate(rewards):
            if is_shown:
                self._tell(f"The other player has {self.rules.cards[self.deal[1 - seat]]}.", seat)
            outcome = f"{'win' if reward > 0 else 'lose'} {_chips(abs(reward))}" if reward else "win and lose nothing"
            self._tell(f"You {outcome}.", seat)

    def _expert(self, seat: int) -> str:
        """Return a legal move, drawn from the probabilities of the expert's policy."""
        legal = self._state.legal_actions()
        if self.expert == "uniform":
            return self.turn_of(legal[int(self._luck[len(self._state.history())] * len(legal))])
        of_each = chances(reference_policy(self.exact_game), self._state.information_state_string(seat), legal)
        luck = self._luck[len(self._state.history())]
        drawn = next((k for k in range(len(legal)) if luck < sum(of_each[: k + 1])), len(legal) - 1)
        return self.turn_of(legal[drawn])

    def turn_of(self, action: int) -> str:
        """Return how a policy writes OpenSpiel's action."""
        move = self.rules.moves[action]
        return f"Thought: I choose to {move}.\nAction: {move}" if self.thoughts else move


def _chips(number: float) -> str:
    return f"{number:g} chip{'' if number == 1 else 's'}"


class KuhnPokerEnv(PokerEnv):
    """Play Kuhn poker against another player.

    Task:
        Three cards, one for each player; pass or bet. The rules are OpenSpiel's `kuhn_poker`. Item i is deal i % 6, so
        that all deals come equally often.

    Observation:
        Text: the player's card; what the other player did; the moves that are allowed; at the end, the other player's
        card where it is shown, and what was won or lost.

    Action:
        Text: `pass` or `bet`, in small or capital letters, also in brackets or behind "Action:". With `thoughts` a
        turn is `Thought: ...` and `Action: ...`, and the move is what stands behind the last "Action:". Any other text
        is no move.

    Reward:
        At the end, the chips that were won (positive) or lost (negative), 1 or 2. A move that is not allowed, or none,
        ends the game: the player's stake so far, 1 or 2 chips, goes to the other. 0 before the end.

    Episode end:
        Terminated when the pot goes to a player, or by a move that is not allowed. Never truncated from inside.

    Info keys:
        `item_id` ("kuhn_17"), `category` ("kuhn_poker"), `role` ("seat_0" for the player who begins, or "seat_1"),
        `is_success` (has won), `is_invalid_action`; for the player who must act `legal_actions` (["pass", "bet"]) and
        `information_state` (OpenSpiel's string of what the player knows).

    Data:
        None; the package open_spiel (Apache-2.0; Lanctot et al. 2019, arXiv:1908.09453) plays. 600 items: `train` is
        0 to 539, `eval` the rest. Both hold all six deals: the game is the same.
        Source: Kuhn 1950, A simplified two-person poker.

    Version history:
        v0: first version.

    Args:
        thoughts: let the policy write a thought before its move. Without, the chances of every move can be computed.
        expert: whose moves `expert_action` draws: `reference` is a nearly optimal policy, `uniform` plays every legal
            move equally often, as data for a policy that shall learn by playing.
        items: `split`, `item_ids`, `splits` and `system_prompt`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; or, at the first reset, open_spiel is not installed.
    """

    name, rules, exact_game = "kuhn", KUHN, KUHN.game


class LeducPokerEnv(PokerEnv):
    """Play Leduc poker against another player.

    Task:
        Six cards in two suits, one for each player and one on the table; two rounds of betting. The rules are
        OpenSpiel's `leduc_poker`. Item i is deal i % 120, so that all deals come equally often.

    Observation:
        Text: the player's card; what the other player did, and the card on the table once it is there; the moves that
        are allowed; at the end, the other player's card where it is shown, and what was won or lost.

    Action:
        Text: `fold`, `call` or `raise`, as in Kuhn poker.

    Reward:
        At the end, the chips that were won (positive) or lost (negative), at most 13; 0 where the pot is shared. A move
        that is not allowed, or none, ends the game: the player's stake so far goes to the other. 0 before the end.

    Episode end:
        Terminated when the pot goes to a player, or by a move that is not allowed. Never truncated from inside.

    Info keys:
        Those of Kuhn poker; `item_id` is like "leduc_17", `category` is "leduc_poker".

    Data:
        None; the package open_spiel (Apache-2.0) plays. 12,000 items: `train` is 0 to 10,799, `eval` the rest. Both
        hold all 120 deals. Source: Southey et al. 2005, Bayes' bluff, arXiv:1207.1411.

    Version history:
        v0: first version.

    Args:
        thoughts: let the policy write a thought before its move. Without, the chances of every move can be computed.
        expert: whose moves `expert_action` draws: `reference` is a nearly optimal policy, `uniform` plays every legal
            move equally often, as data for a policy that shall learn by playing.
        items: `split`, `item_ids`, `splits` and `system_prompt`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; or, at the first reset, open_spiel is not installed.
    """

    name, rules, exact_game = "leduc", LEDUC, LEDUC.game
