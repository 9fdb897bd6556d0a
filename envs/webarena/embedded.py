"""The embedded WebArena: tasks in WebArena's format over four sites that this package serves, with scripted experts.

What the environment needs:

- `load_tasks()`: the configs, in order; a config's `split` is "train" or "eval", and the two share no template.
- `Sites`: one environment's copy of the four sites (`reset`, `server`, `storage_state`, `check`, `close`); the browser
  takes `server` as its proxy, so that addresses are `SITE_URLS` in every episode.
- `Expert`: says what to do next, from the observations and actions so far.
"""

from __future__ import annotations

import functools
from typing import Any

from rllm_gym.envs.webarena.sites.server import SITE_URLS, Sites

__all__ = ["SITE_URLS", "Expert", "Sites", "expert_steps", "load_tasks"]


@functools.cache
def load_tasks() -> list[dict[str, Any]]:
    """Return the configs of the embedded tasks, in WebArena's format, `task_id` counting from 0.

    Addresses begin with `__SHOPPING__`, `__REDDIT__`, `__GITLAB__` or `__SHOPPING_ADMIN__`. Beyond WebArena's fields
    there is `split`: "train" or "eval". `storage_state` names the sites to log in to ("./.auth/shopping_state.json",
    as WebArena does; two sites are joined by a dot), or is None.
    """
    return []


def expert_steps(task: dict[str, Any]) -> tuple[Any, ...]:
    """Return the expert's script for a task of `load_tasks()`."""
    return ()


class Expert:
    """Follows a task's script on what the agent sees; the environment keeps one per episode.

        expert = Expert(task)
        expert.observe(observation)              # at reset
        expert.action()                          # "Thought: ...\\nAction: click [12]"; changes nothing, never raises
        expert.observe(observation, action)      # after each step, with the action that was taken

    Observations are `WebEnv`'s: lines like "[12] link 'Cart'", then "URL: ...". Plain data: it pickles with the
    environment.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task

    def observe(self, observation: str, action: str | None = None) -> None:
        pass

    def action(self) -> str:
        return "Thought: I know no way.\nAction: stop []"
