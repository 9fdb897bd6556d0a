"""WebEnv: the base of environments that are pages in a browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import gymnasium
import numpy as np
import numpy.typing as npt

from rllm_gym.envs.agents.functions import REACT, Function
from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.envs.items import TextOptions
from rllm_gym.envs.web.actions import ACTIONS, FUNCTIONS, Action, BadAction, execute, parse
from rllm_gym.envs.web.tree import Node, estimate_tokens
from rllm_gym.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from rllm_gym.envs.web.page import WebPage

MIN_OBSERVATION_TOKENS = 256
MAX_OBSERVATION_CHARS = 60_000  # less than the longest text of an environment

INTRODUCTION = """\
You use a web browser to reach the objective that you are given. You see the page as a tree of elements, each with its
number in brackets, then its URL, the open tabs, and what went wrong in the last action."""
SYSTEM_PROMPT = f"""\
{INTRODUCTION} Each turn, write one thought
and one action:
Thought: what to do next and why
Action: one of the actions below; id is the number of an element
{ACTIONS}"""


class Verdict(NamedTuple):
    """The outcome of an action: the step's reward, whether the task is over, and whether it is solved."""

    reward: float = 0.0
    is_over: bool = False
    is_success: bool = False


class WebEnv(TextEnv):
    """An environment of tasks on web pages: WebArena's observations and actions in a shared browser.

    A subclass sets `name`, `num_items` and writes `split_indices`, `category`, `expert_action`, and:

    - `_open(index)`: begin item `index` and return the window to act in, with its first page loaded;
    - `instruction`: the task in words, after `_open`;
    - `_evaluate(answer)`: what the action that was just carried out has brought; `answer` is the text of a `stop`, and
      None after every other action.

    A copy of the environment, and a forked process, calls `_open` for itself and repeats the actions when it is
    stepped: what `_open` sets up beside the window must not be copied (`__getstate__`).

    Observation: "OBJECTIVE: " and the instruction, verbatim; the tree; URL, tabs, and "ERROR: ..." if there was one.

    An action is invalid (`info["is_invalid_action"]`) where it does not parse, or asks for an element, a tab, a key or
    an address that is not there or cannot be used.

    Args:
        max_observation_tokens: budget of one observation; the tree is cut, visibly. At the token level tokens are those
            of its tokenizer, at the text level an estimate.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.
        render_mode: "ansi", see `TextEnv`; "rgb_array" is a screenshot.

    Raises:
        ConfigError: see `TextEnv`; too small a budget; or, at the first reset, no browser.
        EnvError: from `reset` and `step`, when the browser dies; the next reset starts a new one.
    """

    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form = INTRODUCTION, REACT
    functions: Sequence[Function] = FUNCTIONS
    has_pointer = False  # whether the mouse acts at places, see `POINTER_FORMS`
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # noqa: RUF012  (Gymnasium's form)

    def __init__(
        self,
        *,
        max_observation_tokens: int = 2048,
        **items: Unpack[TextOptions],
    ) -> None:
        if not isinstance(max_observation_tokens, int) or max_observation_tokens < MIN_OBSERVATION_TOKENS:
            raise ConfigError(
                f"{self._who}: max_observation_tokens must be an integer of at least {MIN_OBSERVATION_TOKENS}; "
                f"got {max_observation_tokens!r}. Set it higher."
            )
        self.max_observation_tokens = max_observation_tokens
        self.count_tokens: Callable[[str], int] = estimate_tokens
        self._page: WebPage | None = None
        self._nodes: tuple[Node, ...] = ()
        self._first = ""  # observation
        self._history: list[tuple[str, str]] = []  # (action, observation)
        self._is_over = False
        super().__init__(**items)

    # What an environment writes.

    def _open(self, index: int) -> WebPage:
        raise NotImplementedError

    @property
    def instruction(self) -> str:
        """The task in words."""
        raise NotImplementedError

    def _evaluate(self, answer: str | None) -> Verdict:
        raise NotImplementedError

    # What it gets.

    @property
    def page(self) -> WebPage:
        """The window of the present episode."""
        if self._page is None or not self._page.is_mine:
            self._reopen()
        assert self._page is not None
        return self._page

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The elements of the last observation, cut or not."""
        return self._nodes

    def reset_item(self, index: int) -> str:
        self._history = []
        self._is_over = False
        old, self._page = self._page, None
        self._page = self._open(index)
        if old is not None:
            old.close()  # after the new one is open, since the browser ends with its last window
        self._first = self._observe()
        return self._first

    def act(self, action: str) -> StepResult:
        parsed = parse(action, has_pointer=self.has_pointer)
        page = self.page
        verdict = self._carry_out(page, parsed)
        is_invalid = isinstance(parsed, BadAction) or page.is_impossible
        if not self._is_over:
            self._is_over = verdict.is_over
            self.is_success = verdict.is_success
        observation = self._observe()
        self._history.append((action, observation))
        return StepResult(observation, verdict.reward, self._is_over, is_invalid)

    def _picture(self) -> npt.NDArray[np.uint8]:
        return self.page.screenshot()

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
        self._page = None
        self._index = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy opens its own window and repeats the actions, when it is stepped."""
        return {**self.__dict__, "_page": None}

    def _carry_out(self, page: WebPage, action: Action | BadAction) -> Verdict:
        if self._is_over:
            page.error = "The task is over."
            return Verdict()
        if isinstance(action, BadAction):
            page.error = action.reason
            return Verdict()
        if action.verb == "stop":
            page.error = ""
            return self._evaluate(action.text)
        execute(page, action)
        return self._evaluate(None)

    def _observe(self) -> str:
        head = f"OBJECTIVE: {self.instruction}\n"
        budget = self.max_observation_tokens - self._cost(head)
        text = self.page.observe(max_tokens=budget, count_tokens=self._cost)
        self._nodes = tuple(self.page.nodes)
        return head + text

    def _cost(self, text: str) -> int:
        """Return a text's tokens, or its share of the characters that an environment may say, if that is more."""
        return max(self.count_tokens(text), len(text) * self.max_observation_tokens // MAX_OBSERVATION_CHARS)

    def _reopen(self) -> None:
        """Open the present item again in a copy of the environment or a forked process."""
        if self._index is None:
            raise gymnasium.error.ResetNeeded(f"{self._who}: call reset() first.")
        history, self._history, self._is_over, is_success = self._history, [], False, self.is_success
        self._page = self._open(self._index)
        repeated = [self._observe()]
        for action, _ in history:
            repeated.append(self.act(action).reply)
        if repeated != [self._first, *(observation for _, observation in history)]:
            raise EnvError(f"{self._who}: a copied episode must repeat; it differed. Reset the environment.")
        self.is_success = is_success
