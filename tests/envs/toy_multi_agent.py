"""Toy environments for two agents: PassTheWord, by turns or at the same time, and TakeAway, a game with a winner."""

from __future__ import annotations

from typing import Any

from rllm_gym.envs.multi_agent import TextMultiAgentEnv

WORDS = ("cat", "dog", "sun", "map", "ink", "fox", "bed", "owl")
AGENTS = ("alice", "bob")


def score(text: str, word: str) -> float:
    """Return 1 for a text that begins with the word: by position, a share for the letter, half for another letter."""
    points = [1.0 if a == b else 0.5 if "a" <= a <= "z" else 0.0 for a, b in zip(text, word, strict=False)]
    return sum(points) / len(word)


class PassTheWord(TextMultiAgentEnv):
    """In each round both agents are told a word of their own and must say it.

    By turns, bob is also told how well alice said hers. Reward: an agent's `score / num_rounds` in the step in which it
    acts. Terminated after the last round, with a last observation for those who have just acted; `is_success` if the
    agent was perfect in every round.

    Args:
        is_simultaneous: both act in every step; else alice, then bob.
        num_rounds: rounds in an episode.
        system_prompts: see `TextMultiAgentEnv`.

    Options: {"item_id": i} makes word i alice's first.
    """

    def __init__(
        self,
        *,
        is_simultaneous: bool = False,
        num_rounds: int = 1,
        system_prompts: dict[str, str] | None = None,
    ) -> None:
        super().__init__(AGENTS, system_prompts=system_prompts)
        self.is_simultaneous = is_simultaneous
        self.num_rounds = num_rounds
        self._words: dict[str, str] = {}
        self._points: dict[str, float] = {}
        self._to_act: tuple[str, ...] = ()
        self._num_done = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(WORDS)))
        item_id = (options or {}).get("item_id")
        self._points = dict.fromkeys(AGENTS, 0.0)
        self._num_done = 0
        self._to_act = AGENTS if self.is_simultaneous else AGENTS[:1]
        words = {"alice": WORDS[drawn if item_id is None else int(item_id)]}
        observations = {agent: self._ask(agent, words.get(agent)) for agent in self._to_act}
        return observations, {agent: self._info(agent) for agent in observations}

    def step(
        self, action_dict: dict[str, str]
    ) -> tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        if set(action_dict) != set(self._to_act):
            raise ValueError(f"PassTheWord: it is the turn of {self._to_act}; got {tuple(action_dict)}.")
        points = {agent: score(text, self._words[agent]) for agent, text in action_dict.items()}
        for agent, share in points.items():
            self._points[agent] += share
        rewards = {agent: share / self.num_rounds for agent, share in points.items()}
        self._num_done += len(action_dict)
        is_over = self._num_done == len(AGENTS) * self.num_rounds
        if is_over:
            observations = dict.fromkeys(self._to_act, "The end.")
        elif self.is_simultaneous:
            observations = {agent: self._ask(agent) for agent in AGENTS}
        else:
            (speaker,) = self._to_act
            (listener,) = self._to_act = tuple(agent for agent in AGENTS if agent != speaker)
            observations = {listener: f"{speaker} got {points[speaker]:.1f}. {self._ask(listener)}"}
        flags = {**dict.fromkeys(AGENTS, is_over), "__all__": is_over}
        no_flags = {**dict.fromkeys(AGENTS, False), "__all__": False}
        return observations, rewards, flags, no_flags, {agent: self._info(agent) for agent in observations}

    def _ask(self, agent: str, word: str | None = None) -> str:
        self._words[agent] = word or WORDS[int(self.np_random.integers(len(WORDS)))]
        return f"Say: {self._words[agent]}"

    def _info(self, agent: str) -> dict[str, Any]:
        return {"is_success": self._points[agent] == self.num_rounds, "category": "pass_the_word"}


class TakeAway(TextMultiAgentEnv):
    """From a pile of stones two players take one or two in turns; whoever takes the last one wins.

    Reward: 1 for the winner and -1 for the other in the last step. Who says anything but "1" or "2", or takes more than
    there is, loses. Info: `legal_actions` of who is to act, `role` ("first" or "second"), `is_success`.

    Args:
        swap_seats: player_1 begins where the seed is odd.
        is_lenient: every text is a move, for models that write anything: by its length.
    """

    def __init__(self, *, swap_seats: bool = False, is_lenient: bool = False) -> None:
        super().__init__(("player_0", "player_1"))
        self.swap_seats, self.is_lenient = swap_seats, is_lenient
        self._pile, self._order, self._num_moves = 0, self.possible_agents, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        super().reset(seed=seed)
        item_id = (options or {}).get("item_id")
        self._pile = int(self.np_random.integers(3, 8)) if item_id is None else int(item_id)
        self._order = self.possible_agents[:: -1 if self.swap_seats and (seed or 0) % 2 else 1]
        self._num_moves = 0
        return self._observe()

    def step(
        self, action_dict: dict[str, str]
    ) -> tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        [(mover, text)] = action_dict.items()
        other = self._order[1 - self._order.index(mover)]
        if self.is_lenient:
            text = str(max(1, min(len(text) % 3, self._pile)))
        is_legal = text in self._legal()
        self._num_moves += 1
        if is_legal:
            self._pile -= int(text)
        if is_legal and self._pile:
            observations, infos = self._observe()
            return observations, {}, {"__all__": False}, {"__all__": False}, infos
        winner = mover if is_legal else other
        rewards = {agent: 1.0 if agent == winner else -1.0 for agent in self._order}
        infos = {agent: {**self._info(agent), "is_success": agent == winner} for agent in self._order}
        infos[mover]["is_invalid_action"] = not is_legal
        return {}, rewards, {"__all__": True}, {"__all__": False}, infos

    def expert_action(self, agent_id: str) -> str:
        """Leave a multiple of three, if one can."""
        return str(self._pile % 3 or 1)

    def _legal(self) -> list[str]:
        return [str(count) for count in (1, 2) if count <= self._pile]

    def _observe(self) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        mover = self._order[self._num_moves % 2]
        return {mover: f"{self._pile} left."}, {mover: {**self._info(mover), "legal_actions": self._legal()}}

    def _info(self, agent: str) -> dict[str, Any]:
        return {"role": ("first", "second")[self._order.index(agent)], "category": "take_away"}
