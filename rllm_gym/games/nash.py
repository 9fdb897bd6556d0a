"""Measures a policy's distance from optimal play, by OpenSpiel's best responses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rllm_gym.envs.poker.rules import load_game, open_spiel, rules_of
from rllm_gym.errors import ConfigError

# An information-state string of OpenSpiel's -> {legal action: probability}; what is left out has probability 0.
ActionProbabilities = Callable[[str], Mapping[Any, float]]
TOLERANCE = 1e-6


class InformationState(NamedTuple):
    """A player's knowledge when it must act.

    Args:
        name: OpenSpiel's string.
        seat: of the player.
        legal: OpenSpiel's numbers of the legal actions.
        deal: the number of a deal (`Rules.deals`) in which it comes about.
        actions: OpenSpiel's numbers of the actions, of both players, that then lead to it.
    """

    name: str
    seat: int
    legal: tuple[int, ...]
    deal: int
    actions: tuple[int, ...]


@functools.cache
def information_states(game: str) -> tuple[InformationState, ...]:
    """Return every information state of a game, in the order of their names: 12 in Kuhn poker, 936 in Leduc poker.

    Raises:
        ConfigError: an unknown game, or open_spiel is not installed.
    """
    rules = rules_of(game)
    found: dict[str, InformationState] = {}

    def walk(state: Any, deal: int, cards: tuple[int, ...], actions: tuple[int, ...]) -> None:
        while state.is_chance_node():
            state.apply_action(cards[0])
            cards = cards[1:]
        if state.is_terminal():
            return
        seat, legal = state.current_player(), tuple(state.legal_actions())
        name = state.information_state_string(seat)
        found.setdefault(name, InformationState(name, seat, legal, deal, actions))
        for action in legal:
            walk(state.child(action), deal, cards, (*actions, action))

    for deal, cards in enumerate(rules.deals):
        walk(load_game(game).new_initial_state(), deal, cards, ())
    return tuple(found[name] for name in sorted(found))


def nash_conv(game: str, action_probabilities: ActionProbabilities) -> float:
    """Return NashConv of a policy that plays both seats: what best responses to it would win more, summed over seats.

        NashConv(pi) = sum_i max_b u_i(b, pi_-i) - u_i(pi)

    It is 0 for an optimal policy; half of it is the exploitability.

        nash_conv("kuhn_poker", lambda state: {"pass": 0.5, "bet": 0.5})  # 0.916667

    Source: Lanctot et al. 2017, arXiv:1711.00832, section 3.4; computed by OpenSpiel.

    Args:
        game: `kuhn_poker` or `leduc_poker`.
        action_probabilities: an information-state string of OpenSpiel's -> the probability of each legal action, named
            by OpenSpiel's number or as a policy writes it (`{"pass": 1.0}`); those that are left out have 0.

    Raises:
        ConfigError: an unknown game; a probability that is none, of an action that is not legal, or probabilities that
            do not sum to 1; or open_spiel is not installed.
    """
    table = {
        state.name: [(action, p) for action, p in zip(state.legal, _checked(game, state, given), strict=True)]
        for state in information_states(game)
        for given in [action_probabilities(state.name)]
    }
    return float(open_spiel().nash_conv(load_game(game), open_spiel().TabularPolicy(table)))


def _checked(game: str, state: InformationState, given: Mapping[Any, float]) -> list[float]:
    """Return the probability of each legal action."""
    moves = rules_of(game).moves
    names = {**{str(action): action for action in state.legal}, **{moves[action]: action for action in state.legal}}
    where = f"nash_conv: {game}, information state {state.name!r}"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: must be a mapping of legal actions to probabilities; got {given!r}.")
    chances = dict.fromkeys(state.legal, 0.0)
    for action, value in given.items():
        p = float(value)
        known = names.get(str(action).lower())
        if not (math.isfinite(p) and -TOLERANCE <= p <= 1 + TOLERANCE) or (known is None and p > 0):
            legal = ", ".join(f"{moves[a]} ({a})" for a in state.legal)
            raise ConfigError(f"{where}: must give probabilities to {legal} alone; got {action!r}: {value!r}.")
        if known is not None:
            chances[known] += p
    if abs(sum(chances.values()) - 1) > TOLERANCE:
        raise ConfigError(f"{where}: the probabilities must sum to 1; got {sum(chances.values()):.6f}.")
    return [max(0.0, p) for p in chances.values()]
