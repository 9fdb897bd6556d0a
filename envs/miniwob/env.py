"""MiniWoBEnv: the environment of MiniWoB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from rllm_gym.envs.items import TextOptions
from rllm_gym.envs.miniwob.expert import GIVE_UP, advise
from rllm_gym.envs.miniwob.tasks import EVAL_TASKS, TASKS, html_folder
from rllm_gym.envs.web.actions import FUNCTIONS, POINTER_ACTIONS, POINTER_FUNCTIONS
from rllm_gym.envs.web.env import SYSTEM_PROMPT, Verdict, WebEnv
from rllm_gym.errors import ConfigError, EnvError, nearest

if TYPE_CHECKING:
    from rllm_gym.envs.web.page import WebPage

SITE = "http://miniwob.test"
VIEWPORT = (500, 320)  # MiniWoB's own, arXiv:1802.08802
TIMEOUT_S = 60.0  # nothing here is slow but a busy machine
MAX_TIME_MS = 10**9  # the turn limit is a wrapper
BEGIN = """([seed, maxTime]) => {
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #sync-task-cover { display: none !important; }';
  document.head.append(style);
  core.EPISODE_MAX_TIME = maxTime;
  Math.seedrandom(seed);
  core.startEpisodeReal();
  const utterance = core.getUtterance();
  document.getElementById('query').setAttribute('aria-hidden', 'true');
  window.__taskSeed = seed;
  return typeof utterance === 'string' ? utterance : utterance.utterance;
}"""
# Null on any other page, which may be that of an easier task.
REWARD_SCRIPT = "(seed) => window.__taskSeed === seed ? [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL] : null"


class MiniWoBEnv(WebEnv):
    """Carry out a small task on a web page.

    Task:
        125 tasks of MiniWoB and MiniWoB++, each a page of 160 x 210 pixels with an instruction: click buttons, links
        and tabs, fill in forms, pick dates, handle mail, read tables, draw and drag. An item is a task; what it asks
        for (names, numbers, places) is drawn by the page from a number that comes from the reset's seed.

    Observation:
        Text: "OBJECTIVE: " and the page's instruction; its accessibility tree, one element a line, as in
        `[3] button 'OK'`, with `pointer` also where it is, `box: x,y,width,height`, and shapes; URL and tabs;
        "ERROR: ..." where the last action went wrong. See `WebEnv`.

    Action:
        Text: `Thought: ...` and `Action: ...`; without "Action:" the whole text is the action. WebArena's actions,
        which the system prompt lists: `click [3]`, `type [4] [some text] [0]`, `press [Enter]`; `stop []` gives up.
        With `pointer` also `drag [3] [4]`, `mouse_click [80] [120]` and `mouse_drag [80] [120] [20] [120]`, in pixels
        of the viewport; without it some twenty tasks, about drawing and dragging, cannot be solved.

    Reward:
        0.0 until the task ends; then what the page gives, from 0.0 to 1.0. Its rewards below 0 (most often -1 for a
        wrong answer) count as 0, and it is not made less by the time that was taken. Most tasks give 0 or 1; some give
        parts, as `find-greatest` does.

    Episode end:
        Terminated when the page says that the task is over, or by `stop`; never truncated from inside, since the page's
        own limit of seconds is off. Later actions change nothing.

    Info keys:
        `item_id` ("miniwob_click-button"), `category` (the task, like "click-button"), `is_success` (the page's reward
        is 1), `is_invalid_action` (see `WebEnv`).

    Data:
        The pages of the package miniwob 1.1.0 (MIT; Shi et al. 2017; Liu et al. 2018, arXiv:1802.08802), in the shared
        browser, without a network. Splits: `eval` is 25 tasks, whole families of them; `train` the other 100.

    Differs from MiniWoB: the page's clock stands still but for one second at each action, so that episodes repeat and
    animations take no time; the display of rewards and time is hidden; the instruction stands in the objective only.

    Version history:
        v0: first version.

    Args:
        pointer: whether elements have places, and the mouse may act at them.
        max_observation_tokens: see `WebEnv`.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv` and `WebEnv`; or, at the first reset, the package miniwob is missing.
        EnvError: see `WebEnv`.
    """

    name = "miniwob"
    safe_options = ("pointer", "max_observation_tokens")
    num_items = len(TASKS)

    def __init__(
        self,
        *,
        pointer: bool = False,
        max_observation_tokens: int = 2048,
        **items: Unpack[TextOptions],
    ) -> None:
        if not isinstance(pointer, bool):
            raise ConfigError(f"MiniWoBEnv: pointer must be true or false; got {pointer!r}. Correct it.")
        self.has_pointer = pointer
        if pointer:
            self.default_system_prompt = f"{SYSTEM_PROMPT}\n{POINTER_ACTIONS}"
            self.functions = (*FUNCTIONS, *POINTER_FUNCTIONS)
        super().__init__(max_observation_tokens=max_observation_tokens, **items)

    _seed = 0
    _instruction = ""

    def split_indices(self, split: str) -> Sequence[int]:
        return [i for i, task in enumerate(TASKS) if split == "all" or (task in EVAL_TASKS) == (split == "eval")]

    @property
    def category(self) -> str:
        return TASKS[self.index]

    @property
    def instruction(self) -> str:
        return self._instruction

    def _item_id(self, index: int) -> str:
        return f"{self.name}_{TASKS[index]}"

    def _parse_item_id(self, item_id: Any) -> int:
        name = str(item_id).removeprefix(f"{self.name}_")
        if name in TASKS:
            return TASKS.index(name)
        if name.isascii() and name.isdigit() and int(name) < self.num_items:
            return int(name)
        raise ConfigError(
            f'{self._who}: an item id is a task like "{self.name}_click-button", or its number from 0 to '
            f"{self.num_items - 1}; got {item_id!r}. Did you mean {self.name}_{nearest(name, TASKS)}?"
        )

    def reset_item(self, index: int) -> str:
        self._seed = int(self.np_random.integers(2**31))
        return super().reset_item(index)

    def _open(self, index: int) -> WebPage:
        from rllm_gym.envs.web.page import PageError, WebPage

        page = WebPage(
            [SITE],
            folder=html_folder(),
            viewport=VIEWPORT,
            holds_clock=True,
            timeout_s=TIMEOUT_S,
            shows_places=self.has_pointer,
        )
        page.goto(f"{SITE}/miniwob/{TASKS[index]}.html")
        try:
            self._instruction = page.evaluate(BEGIN, [self._seed, MAX_TIME_MS])
        except PageError as e:
            raise EnvError(f"{self._who}: {TASKS[index]} does not start: {e}") from e
        return page

    def _evaluate(self, answer: str | None) -> Verdict:
        from rllm_gym.envs.web.page import PageError

        try:
            state = self.page.evaluate(REWARD_SCRIPT, self._seed)
        except PageError:
            state = None  # a page that does not answer
        if state is None:  # the agent has left the task's page
            return Verdict(is_over=answer is not None)
        is_done, reward = state
        # Some pages add up thirds.
        reward = round(min(max(float(reward), 0.0), 1.0), 6) if is_done else 0.0
        return Verdict(reward, is_done or answer is not None, reward == 1.0)

    def expert_action(self) -> str:
        if self._is_over:
            return f"Thought: The task is over.\nAction: {GIVE_UP}"
        return advise(TASKS[self.index], self.instruction, self.nodes, has_pointer=self.has_pointer)
