"""BabyAI in AgentGym's protocol, with the level that minigrid 2.3 builds otherwise.

Source: Xi et al. 2024 (AgentGym), arXiv:2406.04151; github.com/WooooDyy/AgentGym at 3ef9235 (MIT),
agentenv/envs/babyai.py and agentenv-babyai.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rllm_gym.envs.agentgym import OK, TWO_ACTIONS, AgentGymProtocol, cleaned_action
from rllm_gym.envs.babyai.env import BabyAIEnv
from rllm_gym.envs.babyai.levels import LEVELS, make_level
from rllm_gym.envs.babyai.view import View, describe, look
from rllm_gym.envs.base import StepResult

INSTRUCTION = """\
You are an exploration master that wants to finish every goal you are given. Every round I will give you an \
observation, and you have to respond an action and your thought based on the observation to finish the given \
task. You are placed in a room and you need to accomplish the given goal with actions.

You can use the following actions:\x20

- turn right\x20

- turn left\x20

- move forward\x20

- go to <obj> <id>\x20

- pick up <obj> <id>\x20

- go through <door> <id>: <door> must be an open door.\x20

- toggle and go through <door> <id>: <door> can be a closed door or a locked door. If you want to open a locked \
door, you need to carry a key that is of the same color as the locked door.\x20

- toggle: there is a closed or locked door right in front of you and you can toggle it.
Your response should use the following format:
Thought:
<Your Thought>

Action:
<Your Action>"""


class AgentGymBabyAI(AgentGymProtocol, BabyAIEnv):
    """`BabyAIEnv` with AgentGym's instruction, and without what is mended there.

    Reward: the sum of minigrid's reward after the last action that moved, over all steps. A task ends where it is
    completed with more than 0.5; completed with less, or failed for good, it is called completed and goes on. Nothing
    truncates it, and no action opens a box.
    """

    preamble = ((INSTRUCTION, OK),)
    _toggles_boxes = False

    def _make_level(self, index: int) -> Any:
        return make_level(index % len(LEVELS), seed=index // len(LEVELS), as_in_minigrid_2=True)

    def reset_item(self, index: int) -> str:
        self._last = self._score = 0.0
        return super().reset_item(index)

    def _look(self, view: View | None = None) -> None:
        level = self._level
        # What the agent of level 23 holds from the start is still seen where it lay, in the first view alone.
        held = level.carrying if view is None and getattr(level, "start_carrying", False) else None
        if held is not None:
            level.grid.set(*held.init_pos, held)
        super()._look(view)
        if held is not None:
            level.grid.set(*held.init_pos, None)

    def act(self, action: str) -> StepResult:
        command = cleaned_action(action)
        if command is None:
            return StepResult(TWO_ACTIONS, 0.0, is_over=False, is_invalid=True)
        reply, _, is_over, is_invalid, is_truncated = super().act(command)
        self._score += self._last
        return StepResult(reply, self._score, is_over, is_invalid, is_truncated)

    def _carry_out(self, moves: Sequence[int]) -> tuple[str, float]:
        seen = self._view
        for move in moves:
            _, reward, is_done, _, _ = self._level.step(move)
            before, seen = seen, look(self._level)
            if seen.names == before.names:
                break
        self._look(seen)
        self._last = float(reward)
        self.is_success = self._is_over = is_done and reward > 0.5
        return describe(seen) + ("\n The task is completed." if is_done else ""), self._last
