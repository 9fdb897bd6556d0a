"""WebArena's task configs, published and embedded: what they are, their splits, and the addresses of their sites."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rllm_gym.errors import ConfigError, MachineError, nearest

TASK_SETS = ("embedded", "webarena", "verified")
SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia")
LOGIN_SITES = ("gitlab", "reddit", "shopping", "shopping_admin")  # those that WebArena has accounts for

# The items of AgentGym-RL (AgentItemId/eval/webarena_test.json, AgentItemId/train/webarena_train.json), whose numbers
# are WebArena's task ids. Its 372 training tasks are those in `_TRAIN_RANGES` that are neither held out nor left out.
# fmt: off
EVAL_TASKS = frozenset((
    4, 6, 22, 23, 24, 27, 28, 29, 36, 60, 65, 67, 74, 95, 108, 110, 115, 122, 123, 128, 158, 165, 168, 203, 214, 215,
    222, 228, 238, 239, 247, 251, 255, 264, 278, 280, 300, 318, 328, 365, 378, 381, 386, 387, 526, 535, 537, 598, 680,
    763,
))
# fmt: on
_TRAIN_RANGES = ((0, 389), (424, 429), (430, 431), (676, 681), (737, 742), (757, 768), (784, 789))
_LEFT_OUT = (8, 57, 346)

_FILES = {"webarena": "test.raw.json", "verified": "webarena-verified.json"}
_PACKAGE = "webarena-verified"

Config = Mapping[str, Any]


def resolve_task_set(task_set: str | None) -> str:
    """Return the task set that is meant; None is "webarena" where the address of a site is set as `WA_*`."""
    if task_set is None:
        return "webarena" if any(os.environ.get(f"WA_{site.upper()}") for site in SITES) else "embedded"
    if task_set not in TASK_SETS:
        raise ConfigError(
            f"WebArenaEnv: task_set must be one of {', '.join(TASK_SETS)}; got {task_set!r}. "
            f"Did you mean {nearest(task_set, TASK_SETS)!r}?"
        )
    return task_set


@functools.cache
def load_configs(task_set: str) -> tuple[Config, ...]:
    """Return the configs of a task set in the order of their `task_id`, which counts from 0.

    "embedded" and "webarena" have WebArena's format, "verified" has WebArena-Verified's.

    Raises:
        ConfigError: the package with the published tasks is missing.
    """
    if task_set == "embedded":
        from rllm_gym.envs.webarena.embedded import load_tasks

        return tuple(load_tasks())
    spec = importlib.util.find_spec("webarena_verified")  # importing it would take a second
    if spec is None or not spec.submodule_search_locations:
        raise missing_package(_PACKAGE)
    path = Path(spec.submodule_search_locations[0]) / "assets" / "dataset" / _FILES[task_set]
    return tuple(json.loads(path.read_text(encoding="utf-8")))


def split_indices(task_set: str, split: str) -> list[int]:
    """Return the numbers of a split's tasks; of published ones, "train" and "eval" are AgentGym-RL's."""
    configs = load_configs(task_set)
    if split == "all":
        return list(range(len(configs)))
    if task_set == "embedded":
        return [index for index, config in enumerate(configs) if config["split"] == split]
    if split == "eval":
        return sorted(EVAL_TASKS)
    candidates = (index for start, end in _TRAIN_RANGES for index in range(start, end))
    return [index for index in candidates if index not in EVAL_TASKS and index not in _LEFT_OUT]


def category(config: Config) -> str:
    """Return the sites of a task as a label, like "shopping" or "gitlab_reddit"."""
    return "_".join(sorted(config["sites"]))


def login_sites(config: Config) -> tuple[str, ...]:
    """Return the sites that a task begins logged in to."""
    if "storage_state" not in config:  # WebArena-Verified: wherever there is an account
        return tuple(site for site in LOGIN_SITES if site in config["sites"])
    name = config["storage_state"] or ""  # "./.auth/gitlab.reddit_state.json"
    return tuple(name.rpartition("/")[2].removesuffix("_state.json").split(".")) if name else ()


def start_urls(config: Config) -> list[str]:
    """Return the addresses that a task's tabs begin at."""
    return list(config["start_urls"]) if "start_urls" in config else config["start_url"].split(" |AND| ")


def needs_judge(config: Config) -> bool:
    """Say whether a language model must compare the answer."""
    rules = config["eval"]
    return isinstance(rules, Mapping) and "fuzzy_match" in (rules["reference_answers"] or {})


def site_urls() -> dict[str, str]:
    """Return the addresses of the sites that are set as `WA_SHOPPING`, ... or else as `SHOPPING`, ...

    Raises:
        ConfigError: one of them is no http(s) address.
    """
    urls = {}
    for site in (*SITES, "homepage"):
        for variable in (f"WA_{site.upper()}", site.upper()):
            url = os.environ.get(variable)
            if not url:
                continue
            if not url.startswith(("http://", "https://")):
                raise ConfigError(
                    f"WebArenaEnv: {variable} must be the address of a site, like http://127.0.0.1:7770; got {url!r}. "
                    "Correct it."
                )
            urls[site] = url.rstrip("/")
            break
    return urls


def render(value: Any, urls: Mapping[str, str]) -> Any:
    """Return a config, or a part of one, with addresses in place of `__SHOPPING__` and the like."""
    if isinstance(value, str):
        for site, url in urls.items():
            value = value.replace(f"__{site.upper()}__", url)
        return value
    if isinstance(value, Mapping):
        return {key: render(part, urls) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [render(part, urls) for part in value]
    return value


def missing_package(package: str) -> ConfigError:
    """Return the error for a package that the published tasks need."""
    command = 'pip install "rllm-gym[webarena]"'
    if package == _PACKAGE:
        command += f" && pip install --no-deps {_PACKAGE}==1.2.3"  # it pins an older pydantic
    return MachineError(f"WebArena-v0 needs the {package} package for the published tasks: {command}.")


def need(module: str) -> ModuleType:
    """Import a module that only the published tasks need.

    Raises:
        ConfigError: its package is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise missing_package(module.partition(".")[0].replace("_", "-")) from e
