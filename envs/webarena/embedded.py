"""The embedded WebArena: tasks in WebArena's format over five sites that this package serves, with scripted experts.

What the environment needs:

- `load_tasks()`: the configs, in order; a config's `split` is "train" or "eval", and the two share no template.
- `Sites`: one environment's copy of the sites (`reset`, `server`, `storage_state`, `check`, `close`); the browser
  takes `server` as its proxy, so that addresses are `SITE_URLS` in every episode.
- `Expert`: says what to do next, from the observations and actions so far.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from rllm_gym.envs.webarena.embedded_tasks import (
    gitlab,
    map,
    reddit,
    reddit_widgets,
    shopping,
    shopping_admin,
    shopping_widgets,
)
from rllm_gym.envs.webarena.script import Script, Step
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed import seeded_image
from rllm_gym.envs.webarena.sites.server import SITE_URLS, Sites

__all__ = ["SITE_URLS", "Expert", "Sites", "expert_steps", "load_tasks"]


@functools.cache
def _load() -> tuple[list[dict[str, Any]], list[tuple[Step, ...]]]:
    """Return configs and scripts, made from the data, so that the two cannot disagree."""
    database = Database(seeded_image())
    configs: list[dict[str, Any]] = []
    scripts = []
    # What came later is behind: the numbers of the others' tasks stay.
    sites = (shopping, reddit, gitlab, shopping_admin, map, shopping_widgets, reddit_widgets)
    for template_id, each in enumerate(each for site in sites for each in site.templates):
        for config, steps in each.configs(database):
            configs.append({**config, "task_id": len(configs), "intent_template_id": template_id})
            scripts.append(steps)
    database.close()
    return configs, scripts


def load_tasks() -> list[dict[str, Any]]:
    """Return the configs of the embedded tasks, in WebArena's format, `task_id` counting from 0.

    Addresses begin with `__SHOPPING__`, `__REDDIT__`, `__GITLAB__`, `__SHOPPING_ADMIN__` or `__MAP__`. Beyond the
    fields of WebArena there is `split`: "train" or "eval". `storage_state` names the site to log in to
    ("./.auth/shopping_state.json", as WebArena does), or is None.
    """
    return _load()[0]


def expert_steps(task: Mapping[str, Any]) -> tuple[Step, ...]:
    """Return the expert's script for a task of `load_tasks()`."""
    return _load()[1][task["task_id"]]


class Expert(Script):
    """Solves a task of `load_tasks()`.

        expert = Expert(task)
        expert.observe(observation)              # at reset
        expert.action()                          # "Thought: ...\nAction: click [12]"; changes nothing, never raises
        expert.observe(observation, action)      # after each step, with the action that was taken

    Observations are `WebEnv`'s: lines like "[12] link 'Cart'", then "URL: ...".
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        start = task["start_url"]
        for name, url in SITE_URLS.items():
            start = start.replace(f"__{name.upper()}__", url)
        super().__init__(expert_steps(task), start)
