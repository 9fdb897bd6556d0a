"""Training data of the tiny model, as text: expert episodes of every environment, with planted mistakes.

Only the `train` splits are ever played, so that the `eval` splits are held out from tokenizer and weights alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rllm_gym.envs.base import TextEnv
from rllm_gym.types import Message

# From an environment, its first observation and its latest one: wrong turns that are legal and from which the expert
# finds on.
Mistakes = Callable[[TextEnv, str, str], list[str]]


@dataclass(frozen=True)
class ExpertEpisode:
    """One episode as a conversation.

    Args:
        messages: system prompt (if there is one), task, action, reply, ..., up to the last action.
        is_mistake: for each action, whether it was planted.
        item_id: the task.
        seed: the environment's seed.
    """

    messages: tuple[Message, ...]
    is_mistake: tuple[bool, ...]
    item_id: str
    seed: int

    @property
    def num_chars(self) -> int:
        return sum(len(message["content"]) for message in self.messages)

    @property
    def num_opening(self) -> int:
        """The number of messages before the first action."""
        return 1 + (self.messages[0]["role"] == "system")


@dataclass(frozen=True)
class Plan:
    """The way in which an episode is played.

    Args:
        mistake_rate: chance of a mistake before each of the expert's turns.
        repeat_rate: chance that a mistake is made once more, each time.
        system_prompt_rate: chance that the environment's instruction comes first.
        max_turns: turns after which the episode is cut.
        max_chars: longer episodes are not drawn: they cost time.
        mistakes_in: (mistake_rate, repeat_rate) of parts of TextCraft that have their own.
    """

    mistake_rate: float = 0.0
    repeat_rate: float = 0.0
    system_prompt_rate: float = 0.0
    max_turns: int = 12
    max_chars: int = 6000
    mistakes_in: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def of_part(self, part: str) -> Plan:
        """Return the plan of a part of TextCraft."""
        mistake_rate, repeat_rate = self.mistakes_in.get(part, (self.mistake_rate, self.repeat_rate))
        return replace(self, mistake_rate=mistake_rate, repeat_rate=repeat_rate)


def play(env: TextEnv, item_id: str, rng: np.random.Generator, mistakes: Mistakes, plan: Plan) -> ExpertEpisode:
    """Play one episode as the expert, with mistakes planted before its turns.

    Args:
        rng: draws the environment's seed, the system prompt and the mistakes.
    """
    seed = int(rng.integers(1 << 31))
    has_instruction = rng.random() < plan.system_prompt_rate
    task, _ = env.reset(seed=seed, options={"item_id": item_id})
    messages: list[Message] = [{"role": "system", "content": env.default_system_prompt}] if has_instruction else []
    messages.append({"role": "user", "content": task})
    is_mistake: list[bool] = []
    reply, mistake = task, ""
    while True:
        text = env.expert_action()
        if mistake == text or rng.random() >= plan.repeat_rate:
            mistake = ""
        if not mistake and rng.random() < plan.mistake_rate:
            kinds = [wrong for wrong in mistakes(env, task, reply) if wrong != text]
            mistake = kinds[rng.integers(len(kinds))] if kinds else ""
        is_mistake.append(bool(mistake))
        text = mistake or text
        reply, _, terminated, truncated, _ = env.step(text)
        messages.append({"role": "assistant", "content": text})
        if terminated or truncated or len(is_mistake) == plan.max_turns:
            return ExpertEpisode(tuple(messages), tuple(is_mistake), item_id, seed)
        messages.append({"role": "user", "content": reply})
