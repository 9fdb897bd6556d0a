"""Records episodes of MiniWoB as BrowserGym plays and scores them, into tests/golden/browsergym_miniwob.json.

    pip install --no-deps --target DIR browsergym-core==0.14.3 browsergym-miniwob==0.14.3
    PYTHONPATH=DIR python -m tools.record_browsergym_miniwob

BrowserGym (github.com/ServiceNow/BrowserGym, Apache-2.0) says what begins a task, what its goal is, and what
its reward and end are: `browsergym.miniwob.all`. Its pages are miniwob-plusplus' (github.com/Farama-Foundation)
at 7fd85d7, file by file those of the package miniwob 1.1.0. The browser, and that a page's clock stands still, are this
package's; so is the policy, the expert, of which two in three episodes have clicks on anything in between.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from rllm_gym.envs.miniwob.env import SITE, TIMEOUT_S, VIEWPORT, MiniWoBEnv
from rllm_gym.envs.miniwob.expert import EXPERTS
from rllm_gym.envs.miniwob.tasks import TASKS, html_folder
from rllm_gym.envs.miniwob.view import POINTER_EXPERTS
from rllm_gym.envs.web.env import Verdict
from rllm_gym.envs.web.page import WebPage

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "browsergym_miniwob.json"
MAX_TURNS = 12


class SyncPage:
    """The part of Playwright's page that BrowserGym's tasks use, over this package's."""

    def __init__(self, page: WebPage) -> None:
        self._page = page

    @property
    def url(self) -> str:
        return self._page.url

    def goto(self, url: str) -> None:
        self._page.goto(url)

    def evaluate(self, expression: str) -> Any:
        return self._page.evaluate(expression)

    def wait_for_function(self, expression: str) -> None:
        assert self._page.evaluate(expression)


class BrowserGymMiniWoB(MiniWoBEnv):
    """`MiniWoBEnv` with BrowserGym's beginning and its reward."""

    def _open(self, index: int) -> WebPage:
        from browsergym.miniwob import all as tasks
        from browsergym.miniwob.base import AbstractMiniwobTask

        known = {task.subdomain: task for task in vars(tasks).values() if getattr(task, "subdomain", None)}
        page = WebPage(
            [SITE],
            folder=html_folder(),
            viewport=VIEWPORT,
            holds_clock=True,
            timeout_s=TIMEOUT_S,
            shows_places=self.has_pointer,
        )
        self.task: AbstractMiniwobTask = known[TASKS[index]](seed=self._seed, base_url=f"{SITE}/miniwob/")
        self.page_seed = self.task.random.randint(0, 1000000)  # what its setup draws, too
        self.task.random.seed(self._seed)
        self.task_page: Any = SyncPage(page)
        self._instruction = self.task.setup(self.task_page)[0]
        return page

    def _evaluate(self, answer: str | None) -> Verdict:
        reward, is_done, _, info = self.task.validate(self.task_page, [])
        self.score = [info["RAW_REWARD_GLOBAL"], reward, is_done] if "DONE_GLOBAL" in info else None
        return Verdict(reward, is_done or answer is not None, reward == 1.0)


def play(env: BrowserGymMiniWoB, task: str, seed: int, errs: bool) -> dict[str, Any]:
    env.reset(seed=seed, options={"item_id": f"miniwob_{task}"})
    rng = random.Random(f"{task} {seed}")
    steps: list[Any] = []
    for _ in range(MAX_TURNS):
        action = env.expert_action().rpartition("Action: ")[2]
        if errs and rng.random() < 0.4:
            action = f"click [{rng.choice(env.nodes).id}]"
        _, _, terminated, _, _ = env.step(f"Action: {action}")
        if env.score is None:  # it has left the page, which ends BrowserGym's episode
            break
        steps.append([action, *env.score])
        if terminated:
            break
    return {
        "task": task,
        "seed": int(env.page_seed),
        "pointer": env.has_pointer,
        "goal": env.instruction,
        "steps": steps,
    }


def main() -> None:
    episodes = []
    for experts, has_pointer in ((EXPERTS, False), (POINTER_EXPERTS, True)):
        env = BrowserGymMiniWoB(pointer=has_pointer, split="all")
        for task in sorted(experts):
            episodes += [play(env, task, seed, errs) for seed, errs in ((1, False), (2, True), (3, True))]
        env.close()
    rows = ",\n".join(json.dumps(episode) for episode in episodes)
    GOLDEN.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    print(f"{len(episodes)} episodes, {sum(len(episode['steps']) for episode in episodes)} steps in {GOLDEN}")


if __name__ == "__main__":
    main()
