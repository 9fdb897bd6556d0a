"""SeatedEnv: the base of games of several players who take turns and change seats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium

from rllm_gym.envs.items import HasItems, ItemIds
from rllm_gym.envs.multi_agent import Infos, TextMultiAgentEnv, Texts
from rllm_gym.errors import ConfigError


class Move(NamedTuple):
    """The outcome of a player's text.

    Args:
        rewards: of every seat.
        is_over: the game has ended.
        is_invalid: the rules do not allow the move, or there was none in the text.
        winners: the seats that have won, once the game has ended.
    """

    rewards: Sequence[float]
    is_over: bool = False
    is_invalid: bool = False
    winners: Sequence[int] = ()


class SeatedEnv(HasItems, TextMultiAgentEnv):
    """A game of numbered tasks ("items"), in which one player acts at a time.

    The agents are `player_0`, `player_1`, ...; seats are numbered from 0. `reset(options={"seating": k})` gives player
    i the seat (i + k) % n; without it, player i has seat i. Training and evaluation count `seating` up from one episode
    of a group to the next, so that everyone plays a task from every seat.

    A subclass sets `name`, `num_items` and `default_system_prompt`, and writes `split_indices`, `category`, `_begin`
    and `act`; `_tell` and `_ask` say things to seats. A player is told what came since its last turn when it must act,
    and at the end of the game, if it has ever acted.

    Info keys, of every player that reads something: `item_id`, `category`, `role` ("seat_0": what the player is in this
    episode), `is_success` (has won), `is_invalid_action` (of its own last action), and what `_info_of` adds.

    Args:
        num_players: that sit down.
        split: see `TextEnv`.
        item_ids: see `TextEnv`.
        splits: see `TextEnv`.
        system_prompt: replaces the instruction, which is the same for all; "" means that there is none.

    Raises:
        ConfigError: see `TextEnv`.
    """

    default_system_prompt: str = ""
    rotates_seats = True

    def __init__(
        self,
        num_players: int,
        *,
        split: str | None = None,
        item_ids: ItemIds | None = None,
        splits: Mapping[str, ItemIds] | None = None,
        system_prompt: str | None = None,
    ) -> None:
        if not isinstance(system_prompt, str | None):
            raise ConfigError(
                f'{self._who}: system_prompt must be a text; got {system_prompt!r}. Put it in quotes; "" is none.'
            )
        prompt = self.default_system_prompt if system_prompt is None else system_prompt
        players = [f"player_{k}" for k in range(num_players)]
        super().__init__(players, system_prompts=dict.fromkeys(players, prompt))
        self._choose_items(split, item_ids, splits)
        self._seating = 0
        self._actor: int | None = None  # the seat that must act; None before the first reset and at the end

    # What a game writes.

    def _begin(self, index: int) -> None:
        """Begin item `index`: tell the seats what they must know, and `_ask` one for its move."""
        raise NotImplementedError

    def act(self, seat: int, text: str) -> Move:
        """Carry out the text of the seat that was asked, and `_ask` the next one, unless the game is over."""
        raise NotImplementedError

    @property
    def category(self) -> str:
        """The label of the present item."""
        raise NotImplementedError

    def _expert(self, seat: int) -> str:
        """Return the text of an expert in this seat, which must act."""
        raise NotImplementedError(f"{self._who} has no expert.")

    def _info_of(self, seat: int) -> dict[str, Any]:
        """Return more of a player's info."""
        return {}

    # What it gets.

    def seat_of(self, player: str) -> int:
        """Return where a player sits in the present episode."""
        return (self.possible_agents.index(player) + self._seating) % len(self.possible_agents)

    def player_at(self, seat: int) -> str:
        """Return who sits in a seat."""
        return self.possible_agents[(seat - self._seating) % len(self.possible_agents)]

    def expert_action(self, player: str) -> str:
        """Return an expert's text in the place of a player whose turn it is; it changes nothing.

        Raises:
            NotImplementedError: the game has no expert.
            ValueError: it is not this player's turn.
        """
        if self._actor is None or self.player_at(self._actor) != player:
            raise ValueError(f"{self._who}: it is not {player}'s turn. Ask for the agent in the last observations.")
        return self._expert(self._actor)

    def _tell(self, text: str, *seats: int) -> None:
        """Let seats read a text in their next observation."""
        for seat in seats:
            self._news[seat].append(text)

    def _ask(self, seat: int, question: str) -> None:
        """Make it a seat's turn."""
        self._actor = seat
        self._tell(question, seat)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Texts, Infos]:
        """Begin an episode.

        Args:
            seed: seeds `np_random`, from which everything random of the episode comes.
            options: {"item_id": 17} asks for an item, {"seating": 1} moves everybody by one seat.

        Raises:
            ConfigError: an unknown option or item id.
        """
        asked = self._asked_item(options, ("seating",))
        seating = (options or {}).get("seating", 0)
        if isinstance(seating, bool) or not isinstance(seating, int):
            raise ConfigError(f"{self._who}: seating must be a whole number; got {seating!r}. Leave it out for 0.")
        super().reset(seed=seed)
        self._seating = seating % len(self.possible_agents)
        num_seats = len(self.possible_agents)
        self._news: list[list[str]] = [[] for _ in range(num_seats)]
        self._has_acted = [False] * num_seats
        self._is_invalid = [False] * num_seats
        self._winners: tuple[int, ...] = ()
        self._actor = None
        self._begin(self._draw_item(asked))
        return self._observe()

    def step(self, action_dict: Texts) -> tuple[Texts, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        if self._actor is None:
            raise gymnasium.error.ResetNeeded(f"{self._who}: the game has not begun or is over. Call reset().")
        seat, player = self._actor, self.player_at(self._actor)
        if set(action_dict) != {player}:
            raise ValueError(f"{self._who}: it is the turn of {player}; got actions of {sorted(action_dict)}.")
        self._actor = None
        self._has_acted[seat] = True
        move = self.act(seat, action_dict[player])
        self._is_invalid[seat] = move.is_invalid
        self._winners = tuple(move.winners)
        if move.is_over:
            self._actor = None
        rewards = {self.player_at(k): float(reward) for k, reward in enumerate(move.rewards)}
        ends = dict.fromkeys([*self.possible_agents, "__all__"], move.is_over)
        observations, infos = self._observe()
        return observations, rewards, ends, dict.fromkeys(ends, False), infos

    def _observe(self) -> tuple[Texts, Infos]:
        """Return the observation of the seat that must act; at the end, of everyone who has acted."""
        if self._actor is None:
            seats = [seat for seat, has_acted in enumerate(self._has_acted) if has_acted]
        else:
            seats = [self._actor]
        texts, infos = {}, {}
        for seat in seats:
            texts[self.player_at(seat)] = "\n".join(self._news[seat])
            self._news[seat].clear()
            infos[self.player_at(seat)] = {
                "item_id": self._item_id(self.index),
                "category": self.category,
                "role": f"seat_{seat}",
                "is_success": seat in self._winners,
                "is_invalid_action": self._is_invalid[seat],
                **self._info_of(seat),
            }
        return texts, infos
