"""Reads AgentGym-RL's lists of test tasks: by number where its numbers are this package's, else by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.environments import EnvironmentSpec, ask_text_env
from rllm_gym.strangers_files import read_text

# Environments whose items have AgentGym's numbers, and how many of them AgentGym has; the docstring of each says so.
NUM_ITEMS = {"babyai": None, "sciworld": 4639, "searchqa": None, "webarena": 812}
# AgentGym's order of TextCraft's goals is by depth, then as os.listdir() has their files (crafting_tree.py).
BY_NAME = ("textcraft",)
# Where a keyword decides it: without it the environment plays tasks of its own under these numbers.
NEEDED = {
    "searchqa": ("data", "the questions in Search-R1's format"),
    "webarena": ("task_set", "webarena, whose 812 tasks the list is of"),
}


class PublishedList(NamedTuple):
    """A list's item ids (None where there is no list), and the categories of those that files beside it name."""

    item_ids: list[str] | None
    categories: dict[str, str]


def read_published(path: Path, spec: EnvironmentSpec) -> PublishedList:
    """Return a list, or those of a folder: <environment>_test.json, and for each category a list of that name.

    Source: AgentGym-RL, verl/agent_trainer/main_generation.py, whose `data.path` such a folder is.

    Raises:
        ConfigError: see `read_test_list`; a folder without a test list, or with two.
    """
    if not path.is_dir():
        return PublishedList(read_test_list(path, spec), {})
    files = sorted(path.glob("*.json"))
    tests = [file for file in files if file.stem.endswith("_test")]
    if len(tests) != 1:
        raise ConfigError(
            f"panel: --from: a folder must hold one list that ends in _test.json; got {len(tests)} in {str(path)!r}. "
            "Name a file of it."
        )
    item_ids = read_test_list(tests[0], spec)
    categories: dict[str, str] = {}
    for file in files:
        if file != tests[0]:
            categories.update(dict.fromkeys(read_test_list(file, spec), file.stem))
    return PublishedList(item_ids, {item_id: categories[item_id] for item_id in item_ids if item_id in categories})


def read_test_list(path: Path, spec: EnvironmentSpec) -> list[str]:
    """Return the item ids of an AgentGym-RL list, JSON or JSON Lines of objects like {"item_id": "babyai_17"}.

    SearchQA's items may go by their data set, as published ("nq_51713"). TextCraft's goals are found by name:
    {"goal": "beacon"}, {"item_id": "minecraft:beacon"}, or a conversation, whose first observation names the goal.

    Raises:
        ConfigError: the file is no such list, or an item of it is not this environment's, or a number of TextCraft's.
    """
    text_env = ask_text_env(spec.with_split("all"), lambda env: env.unwrapped)
    name, known = getattr(text_env, "name", ""), set(getattr(text_env, "item_ids", None) or ())
    named_item = getattr(text_env, "named_item", lambda row: None)
    names = (*BY_NAME, *NUM_ITEMS)
    if name not in names:
        raise ConfigError(
            f"panel: --from: AgentGym-RL's items are those of {', '.join(names)}; {spec.name} has others "
            "under its numbers. Choose its tasks with --split."
        )
    option, meaning = NEEDED.get(name, (None, ""))
    if option is not None and spec.env_config.get(option) in (None, "embedded"):
        raise ConfigError(
            f"panel: --from: {spec.name} has AgentGym-RL's items only with {option} ({meaning}); got none. "
            f"Set --env-config '{{\"{option}\": ...}}'."
        )
    rows = [(row, f"{path}:{number}") for number, row in enumerate(_rows(path), start=1)]
    if not rows:
        raise ConfigError(f"panel: --from: must hold tasks; got none in {str(path)!r}.")
    if name in BY_NAME:
        return [_item_named(row, name, where, known, named_item) for row, where in rows]
    found = [_parse_item(row, name, where, named_item) for row, where in rows]
    most = NUM_ITEMS[name]
    for item_id in found:
        number = int(item_id.rpartition("_")[2])
        if item_id not in known or (most is not None and number >= most):
            raise ConfigError(f"panel: --from: {spec.name} has no item {item_id!r} of AgentGym's; see its page.")
    return found


def _rows(path: Path) -> list[Any]:
    try:
        text = read_text(path).strip()
        rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n") if line]
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"panel: --from: must be JSON or JSON Lines; got {str(path)!r} ({error}).") from error
    return rows


def _item_named(
    row: Any, name: str, where: str, known: Collection[str], named_item: Callable[[Any], int | None]
) -> str:
    index = named_item(row)
    item_id = row.get("item_id") if isinstance(row, Mapping) else row
    if index is None and str(item_id).removeprefix(f"{name}_").isdigit():
        raise ConfigError(
            f"panel: --from: AgentGym numbers the goals of {name} as a file system happens to list their files, so a "
            f"number alone names none; got {item_id!r} in entry {where}. Give their names, like "
            '{"item_id": "minecraft:beacon"}, or conversations that say "Goal: craft beacon.".'
        )
    if index is None or f"{name}_{index}" not in known:
        raise ConfigError(
            f"panel: --from: items must name goals of {name}; got {item_id!r} in entry {where}. Correct or remove it; "
            "which goals there are also depends there on that order of files."
        )
    return f"{name}_{index}"


def _parse_item(row: Any, name: str, where: str, named_item: Callable[[Any], int | None]) -> str:
    if (index := named_item(row)) is not None:
        return f"{name}_{index}"
    item_id = row.get("item_id") if isinstance(row, Mapping) else row
    prefix, _, number = str(item_id).rpartition("_")
    if prefix != name or not (number.isascii() and number.isdigit()):
        raise ConfigError(
            f"panel: --from: items must be like {name}_17; got {item_id!r} in entry {where}. Name the environment that "
            "the list is of."
        )
    return f"{name}_{int(number)}"
