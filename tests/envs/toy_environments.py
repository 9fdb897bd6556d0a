"""Single-agent toy environments: one to learn, one that fails, one that is slow, one that kills."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import Any

from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.errors import EnvError

WORDS = ("cat", "dog", "sun", "map", "ink", "fox", "bed", "owl")


def score(text: str, word: str) -> float:
    """Return 1 for a text that begins with the word.

    By position: a whole share for the right letter, half a share for any other lower-case letter, so that a model that
    writes at random has something to climb from its first step.
    """
    points = [1.0 if a == b else 0.5 if "a" <= a <= "z" else 0.0 for a, b in zip(text, word, strict=False)]
    return sum(points) / len(word)


class SayTheWord(TextEnv):
    """Say the word that the prompt names, on each of `num_turns` turns.

    Reward: `score / num_turns` at each turn, so a perfect episode has 1.0. Terminated after the last turn; `is_success`
    if every turn was perfect. White space alone is an invalid action. Items are the words; those of odd number are the
    eval split.
    """

    name = "say_the_word"
    num_items = len(WORDS)
    default_system_prompt = "Say the word."

    def __init__(self, *, num_turns: int = 1, **kwargs: Any) -> None:
        self.num_turns = num_turns
        self._word = ""
        self._turn = 0
        self._points = 0.0
        super().__init__(**kwargs)

    def split_indices(self, split: str) -> list[int]:
        return [i for i in range(self.num_items) if split == "all" or (i % 2 == 1) == (split == "eval")]

    @property
    def category(self) -> str:
        return f"turns_{self.num_turns}"

    def reset_item(self, index: int) -> str:
        self._turn, self._points = 0, 0.0
        return self._ask(WORDS[index])

    def _ask(self, word: str) -> str:
        self._word = word
        return f"Say: {word}"

    def act(self, action: str) -> StepResult:
        points = score(action, self._word)
        self._turn += 1
        self._points += points
        is_over = self._turn == self.num_turns
        self.is_success = is_over and self._points == self.num_turns
        reply = "The end." if is_over else self._ask(WORDS[int(self.np_random.integers(self.num_items))])
        return StepResult(reply, points / self.num_turns, is_over, is_invalid=not action.strip())

    def expert_action(self) -> str:
        return self._word


class FlakyEnv(SayTheWord):
    """SayTheWord that raises EnvError: in the first resets and in chosen steps.

    Args:
        fail_resets: how many resets fail, counted over all instances with the same `counter`.
        fail_steps: which steps (0 is the first one after a counter's birth) fail, counted likewise.
        counter: shared between instances where a fresh environment after a failure must remember the failures before.
    """

    def __init__(
        self,
        *,
        fail_resets: int = 0,
        fail_steps: tuple[int, ...] = (),
        counter: Counter[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.fail_resets = fail_resets
        self.fail_steps = fail_steps
        self.counter = Counter[str]() if counter is None else counter
        super().__init__(**kwargs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.counter["resets"] += 1
        if self.counter["resets"] <= self.fail_resets:
            raise EnvError(f"FlakyEnv: reset {self.counter['resets'] - 1} was told to fail.")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.counter["steps"] += 1
        if self.counter["steps"] - 1 in self.fail_steps:
            raise EnvError(f"FlakyEnv: step {self.counter['steps'] - 1} was told to fail.")
        return super().step(action)


class SlowEnv(SayTheWord):
    """SayTheWord whose steps sleep for `step_s` seconds, or for `step_s[turn]` where a list is given."""

    def __init__(self, *, step_s: float | list[float] = 0.01, **kwargs: Any) -> None:
        self.step_s = step_s
        super().__init__(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s[self._turn] if isinstance(self.step_s, list) else self.step_s)
        return super().step(action)


class DeadlyEnv(SayTheWord):
    """SayTheWord that kills its process when `item`, a word's number, is stepped."""

    def __init__(self, *, item: int, **kwargs: Any) -> None:
        self.item = item
        super().__init__(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.index == self.item:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
