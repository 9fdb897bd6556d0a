"""MiniWoBEnv: the world of MiniWoB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllm_gym.envs.miniwob.expert import GIVE_UP, advise
from rllm_gym.envs.miniwob.tasks import EVAL_TASKS, TASKS, html_folder
from rllm_gym.envs.web.env import Verdict, WebEnv
from rllm_gym.errors import ConfigError, WorldError, nearest

if TYPE_CHECKING:
    from rllm_gym.envs.web.page import WebPage

SITE = "http://miniwob.test"
VIEWPORT = (500, 320)  # MiniWoB's own, arXiv:1802.08802
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
  return typeof utterance === 'string' ? utterance : utterance.utterance;
}"""


class MiniWoBEnv(WebEnv):
    name = "miniwob"
    num_items = len(TASKS)

    def _split_indices(self, split: str) -> Sequence[int]:
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

    def _reset_item(self, index: int) -> str:
        self._seed = int(self.np_random.integers(2**31))
        return super()._reset_item(index)

    def _open(self, index: int) -> WebPage:
        from rllm_gym.envs.web.page import PageError, WebPage

        page = WebPage([SITE], folder=html_folder(), viewport=VIEWPORT, holds_clock=True)
        page.goto(f"{SITE}/miniwob/{TASKS[index]}.html")
        try:
            self._instruction = page.evaluate(BEGIN, [self._seed, MAX_TIME_MS])
        except PageError as e:
            raise WorldError(f"{self._who}: {TASKS[index]} does not start: {e}") from e
        return page

    def _judge(self, answer: str | None) -> Verdict:
        is_done, reward = self.page.evaluate("[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]")
        return Verdict(
            max(float(reward), 0.0) if is_done else 0.0, is_done or answer is not None, is_done and reward >= 1
        )

    def expert_action(self) -> str:
        if self._is_over:
            return f"Thought: The task is over.\nAction: {GIVE_UP}"
        return advise(TASKS[self.index], self.instruction, self.nodes)
