"""An environment that costs nothing, in a module that a process of its own imports in no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rllm_gym.envs.base import StepResult, TextEnv


class Maze(TextEnv):
    """Replies of various lengths earn various rewards; an empty one is invalid; "open" ends the episode with success.

    Items of even number are the train split. `fail_items` fail at every reset; `reward` scales what is earned; `step_s`
    is how long a step takes; after `fall_after` steps the episode ends anyhow. `threads` have made the steps of all
    mazes.
    """

    threads: ClassVar[set[int]] = set()
    name = "maze"
    num_items = 12
    default_system_prompt = "Find the way."

    def __init__(
        self,
        *,
        fail_items: Sequence[int] = (),
        reward: float = 1.0,
        step_s: float = 0.0,
        fall_after: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.fail_items, self.reward, self.step_s, self.fall_after = fail_items, reward, step_s, fall_after
        super().__init__(**kwargs)

    def split_indices(self, split: str) -> list[int]:
        return [i for i in range(self.num_items) if split == "all" or (i % 2 == 1) == (split == "eval")]

    @property
    def category(self) -> str:
        return "maze"

    def reset_item(self, index: int) -> str:
        if index in self.fail_items:
            raise RuntimeError(f"item {index} is broken")
        self._steps = 0
        return f"Room {index}."

    def act(self, action: str) -> StepResult:
        self._steps += 1
        self.threads.add(threading.get_ident())
        time.sleep(self.step_s)
        self.is_success = action.startswith("open")
        reply = "The end." if self.is_success else f"You are at {self._steps}."
        is_over = self.is_success or self._steps == self.fall_after
        return StepResult(reply, self.reward * len(action) / 20, is_over, is_invalid=not action.strip())

    def expert_action(self) -> str:
        return "open the door"


def make_maze(config: Mapping[str, Any]) -> Maze:
    return Maze(**config)
