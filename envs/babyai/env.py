"""BabyAIEnv: the environment of BabyAI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.agents.functions import REACT, Function
from rllm_gym.envs.babyai.actions import CHECK, Offers, offers
from rllm_gym.envs.babyai.expert import advise
from rllm_gym.envs.babyai.levels import GROUPS, KEY_IN_BOX, LEVELS, make_level
from rllm_gym.envs.babyai.view import View, describe, look
from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.items import TextOptions, restrict

NUM_ITEMS = 16_000  # 400 seeds of each level; AgentGym-RL's lists go up to item 12,875
NUM_DRAWN_ITEMS = 10_000  # of `train` and `eval`; the others are there by their ids
NUM_EVAL_ITEMS = 90  # as many as in AgentGym-RL, arXiv:2509.08755

INTRODUCTION = """\
You move through rooms with doors and objects and carry out the goal that you are given. You see only what is in front
of you."""
SYSTEM_PROMPT = f"""\
{INTRODUCTION} Each turn, write one thought and one action, one of those that are available:
Thought: what to do next and why
Action: one of the actions below
- turn left, turn right, move forward
- go to <thing> <number>: walk up to an object or a door and face it. Example: go to red ball 1
- pickup <object> <number>: walk up to an object and pick it up. You can carry one object.
- drop: put what you carry into the cell in front of you
- toggle: open the door in front of you. A locked door needs a key of its color in your hand.
- go through <open door> <number>, toggle and go through <closed or locked door> <number>
- check available actions"""
FUNCTIONS = (
    Function("turn_left", "turn left", "turn left"),
    Function("turn_right", "turn right", "turn right"),
    Function("move_forward", "move forward", "go one cell"),
    Function("toggle_and_go_through", "toggle and go through {door}", "go through a closed or locked door"),
    Function("go_through", "go through {door}", "go through an open door"),
    Function("go_to", "go to {thing}", "walk up to an object or a door, like red ball 1, and face it"),
    Function("pickup", "pickup {thing}", "walk up to an object, like red ball 1, and pick it up; you can carry one"),
    Function("drop", "drop", "put what you carry into the cell in front of you"),
    Function("toggle", "toggle", "open the door in front of you; a locked one needs a key of its color in your hand"),
    Function("check_available_actions", "check available actions", "see what can be done"),
)


class BabyAIEnv(TextEnv):
    """Carry out an instruction in a grid environment.

    Task:
        40 levels of BabyAI: one room or up to nine, with doors that may be locked, keys, balls and boxes; instructions
        to go to, pick up, open, or put next to each other, and sequences of these. Item i is level i % 40 + 1 with
        minigrid's seed i // 40: the same task whatever the seed of `reset`.

    Observation:
        Text. First "Your goal: <instruction>"; then, and after every action that moves the agent, what it sees of the
        7 x 7 cells in front of it, nearest first, with distances, the wall or box straight ahead, and what it carries.
        Or a reply to an action that does not move it:

        - "The action is not recognized. Please check valid actions.", or why it is not available.
        - "No change in state." for an action that is already done, and for an empty one.
        - "You can take the following actions: ..." for any text with "check" in it.

        " The task is completed." or " The task has failed." on a line of its own ends an episode. The last line is
        always `Available actions: ["turn left", ...]`.

    Action:
        Text: `Thought: ...` and `Action: ...`, on one line or several; without "Action:" the whole text is the action.
        One of the available actions, in any case: `turn left`, `turn right`, `move forward`, `go to red ball 1`,
        `pickup red ball 1`, `drop`, `toggle`, `go through red open door 1`, `toggle and go through red closed door 1`,
        `check available actions`. An action is up to some tens of moves of minigrid's, and stops at the first that
        changes nothing in view. Only its last move can complete or fail the task: opening a door by going through it
        does not count as "open the door", and afterwards it cannot be closed.

    Reward:
        1 - 0.9 * moves / max_moves for completing the task, 0.0 for everything else. `max_moves` is minigrid's: 64
        times the rooms and the parts of the instruction for rooms of 8 x 8.

    Episode end:
        Terminated when the task is completed, or fails (some levels fail at the first wrong door or object). Truncated
        after `max_moves` moves. Later actions change nothing.

    Info keys:
        `item_id` ("babyai_17"), `category` (the group of the level: "goto", "open", "pickup", "putnext", "unlock",
        "action_obj_door", "find" or "synth"), `is_success` (the task is completed), `is_invalid_action` (not
        one of the available actions, or empty), `level` (minigrid's id), `mission` (minigrid's instruction, in which
        "then" and "after you" tell the order).

    Data:
        Generated by minigrid (Apache-2.0), after BabyAI (Chevalier-Boisvert et al. 2019, arXiv:1810.08272). 16,000
        items, 400 seeds of each level; there is no end to seeds. `train` and `eval` are the first 10,000 of them:
        `eval` the last 90, every level with seeds 248 and 249, levels 31 to 40 also with 247; `train` the rest. The
        others are in `all`, and in AgentGym-RL's lists.

    Differs from AgentGym: a completed task ends the episode whatever its reward (there only above 0.5), and so does a
    failed one; minigrid's bound on moves truncates (there rewards fall below 0 after it); in level 26, where the key is
    in a box, `toggle` opens the box in front of the agent.

    Version history:
        v0: first version.

    Args:
        levels: restricts draws to this level, a number from 1 to 40, or to one of these.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.
        render_mode: "ansi", see `TextEnv`; "rgb_array" draws the whole grid, with what the agent sees lighter.

    Raises:
        ConfigError: see `TextEnv`; an unknown level; or, at the first reset, minigrid is not
            installed.
    """

    name = "babyai"
    safe_options = ("levels",)
    num_items = NUM_ITEMS
    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form, functions = INTRODUCTION, REACT, FUNCTIONS
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012  (Gymnasium's form)

    def __init__(
        self,
        *,
        levels: int | Sequence[int] | None = None,
        **items: Unpack[TextOptions],
    ) -> None:
        known = range(1, len(LEVELS) + 1)
        self._levels = restrict(f"BabyAIEnv: levels must be numbers from 1 to {len(LEVELS)}", levels, known)
        self._level: Any = None
        self._view = View([], [])
        self._offers = Offers()
        self._has_seen = bytearray()  # by cell of the grid: what the expert may know
        self._is_over = False
        self._is_truncated = False
        super().__init__(**items)

    def split_indices(self, split: str) -> Sequence[int]:
        first = NUM_DRAWN_ITEMS - NUM_EVAL_ITEMS
        items = {"all": range(NUM_ITEMS), "train": range(first), "eval": range(first, NUM_DRAWN_ITEMS)}[split]
        return [i for i in items if i % len(LEVELS) + 1 in self._levels]

    @property
    def category(self) -> str:
        return GROUPS[self.index % len(LEVELS)]

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "level": LEVELS[self.index % len(LEVELS)], "mission": self._level.mission}

    def _make_level(self, index: int) -> Any:
        return make_level(index % len(LEVELS), seed=index // len(LEVELS))

    def reset_item(self, index: int) -> str:
        self._level = self._make_level(index)
        self._has_seen = bytearray(self._level.width * self._level.height)
        self._is_over = self._is_truncated = False
        self._look()
        # AgentGym's wording, which hides the order of "do this, then that" and "do this after you do that".
        goal = self._level.mission.replace("then", "and").replace("after you", "and")
        return self._with_actions(f"Your goal: {goal}\n{describe(self._view)}")

    def act(self, action: str) -> StepResult:
        text = parse_action(action).lower()
        reward, is_invalid = 0.0, False
        if "check" in text:
            reply = "You can take the following actions: " + ", ".join(self._offers.moves)
        elif text not in self._offers.moves:
            is_invalid = True
            unknown = "The action is not recognized. Please check valid actions."
            reply = self._offers.refusals.get(text, unknown) if text else "No change in state."
        elif not self._offers.moves[text] or self._is_over or self._is_truncated:
            reply = "No change in state."
        else:
            reply, reward = self._carry_out(self._offers.moves[text])
        return StepResult(self._with_actions(reply), reward, self._is_over, is_invalid, self._is_truncated)

    def expert_action(self) -> str:
        if self._is_over or self._is_truncated:
            return f"Thought: The task is over.\nAction: {CHECK}"
        thought, action = advise(self._level, self._has_seen, self._offers.moves, toggles_boxes=self._toggles_boxes)
        return f"Thought: {thought}\nAction: {action}"

    def _picture(self) -> npt.NDArray[np.uint8]:
        return self._level.get_frame()

    @property
    def _toggles_boxes(self) -> bool:
        return self.index % len(LEVELS) == KEY_IN_BOX

    def _carry_out(self, moves: Sequence[int]) -> tuple[str, float]:
        """Carry out moves until one changes nothing in view, and return the observation and the reward."""
        seen = self._view
        for move in moves:
            _, reward, is_over, is_truncated, _ = self._level.step(move)
            before, seen = seen, look(self._level)
            if is_truncated or seen.names == before.names:
                break
        self._look(seen)
        self._is_over = is_over
        self._is_truncated = is_truncated and not is_over
        self.is_success = is_over and reward > 0
        end = ""
        if is_over:
            end = f"\n The task {'is completed' if self.is_success else 'has failed'}."
        return describe(seen) + end, float(reward)

    def _look(self, view: View | None = None) -> None:
        self._view = view or look(self._level)
        for cell in self._view.cells:
            self._has_seen[cell] = 1
        self._offers = offers(self._view, self._level.agent_dir, toggles_boxes=self._toggles_boxes)

    def _with_actions(self, reply: str) -> str:
        actions = ", ".join(f'"{action}"' for action in self._offers.moves)
        return f"{reply}\nAvailable actions: [{actions}]"
