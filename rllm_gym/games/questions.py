"""Games whose optimal play is known: what a policy is asked at every information set, and the chances of its moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.poker.env import KuhnPokerEnv, LeducPokerEnv, PokerEnv
from rllm_gym.envs.token_level import TokenOptions
from rllm_gym.envs.token_multi_agent import TokenMultiAgentEnv
from rllm_gym.games.nash import InformationState, information_states
from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import NUM_REPEATED_TOKENS, Message

# Of each game the environment's name, and its class.
ENVIRONMENTS: dict[str, tuple[str, type[PokerEnv]]] = {
    "kuhn_poker": ("KuhnPoker-v0", KuhnPokerEnv),
    "leduc_poker": ("LeducPoker-v0", LeducPokerEnv),
}


class MoveChances(NamedTuple):
    """A policy's choice at one information set.

    Args:
        moves: float64 [number of the game's moves], the probability that a turn says each.
        illegal: that it says nothing of them.
    """

    moves: npt.NDArray[np.float64]
    illegal: float


class Question(NamedTuple):
    """A player's context when it must act, as tokens and as messages, and the texts that end its turn."""

    prompt_ids: list[int]
    messages: list[Message]
    stop: tuple[str, ...] = ()


# (questions, completions of each) -> the texts of each question's completions.
Complete = Callable[[Sequence[Question], int], list[list[str]]]


def game_of(env: Any) -> str | None:
    """Return the game that an environment's id means, if its optimal play is known; else None."""
    name = env.rpartition(":")[2].removeprefix("rllm_gym/") if isinstance(env, str) else ""
    return next((game for game, (known, _) in ENVIRONMENTS.items() if name == known), None)


def make_questions(
    game: str, env_config: Mapping[str, Any], chat: ChatTokenizer, **options: Unpack[TokenOptions]
) -> list[Question]:
    """Return the question to a policy at every information set, in the order of `information_states`.

    What it has written before is the move alone, or with `thoughts` the expert's words for it.

    Args:
        options: of the token level, as the policy plays with them.
    """
    name = ENVIRONMENTS[game][0]
    env = make_token_env(EnvironmentSpec(name, f"rllm_gym/{name}", env_config), chat, **options)
    return [_question(env, state) for state in information_states(game)]


def _question(env: TokenMultiAgentEnv, state: InformationState) -> Question:
    player = f"player_{state.seat}"
    observations, infos = env.reset(seed=0, options={"item_id": state.deal})
    ids: list[int] = []
    for action in state.actions:
        [actor] = observations
        turn = env.encode_action(env.unwrapped.turn_of(action))
        if actor == player:
            ids += [*observations[actor], *turn]
        observations, _, _, _, infos = env.step({actor: turn})
        if infos.get(player, {}).get(NUM_REPEATED_TOKENS) and player in observations:
            ids = []  # the observation is a whole prompt
    return Question([*map(int, ids), *map(int, observations[player])], infos[player]["messages"], env.stop)
