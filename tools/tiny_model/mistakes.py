"""The mistakes that are planted in each environment: plausible, legal, and of no use.

Each function takes the environment, its first observation and its latest one, and returns wrong turns; the same one may
be in the list more than once. From wherever they lead, the expert goes on.
"""

from __future__ import annotations

import functools
import re

from rllm_gym.envs.base import TextEnv
from rllm_gym.envs.textcraft.recipes import display, identify, load_book

LOOK = "Thought: I should look.\nAction: inventory"
_LISTED_INGREDIENT = re.compile(r"(?:using|,) ([0-9]+) ([^,\n]+)")
_OFFERED = re.compile(r'"((?:go to|turn|check)[^"]*)"')
_QUOTED_TITLE = re.compile(r'Title: "([^"]+)"')


def textcraft_mistakes(env: TextEnv, task: str, reply: str) -> list[str]:
    """Look at the inventory, craft the goal before all is there, or take a basic item that only other recipes need."""
    book = load_book()
    goal = book.goals[env.index]
    useful = _useful_items(goal)
    needless = sorted(
        f"{count} {name}"
        for count, name in set(_LISTED_INGREDIENT.findall(task))
        if identify(name) in book.gettable and identify(name) not in useful
    )
    # Where the goal can be crafted the expert does it, and a wrong turn must not be what it does.
    is_ready = f" {display(goal)} using " in env.expert_action()
    too_early = [] if is_ready else [recipe.text for recipe in book.recipes_of(goal)]
    kinds = [
        [LOOK],
        [f"Thought: I can {recipe.split(' using ')[0]}.\nAction: {recipe}" for recipe in too_early],
        [f"Thought: I need {what}.\nAction: get {what}" for what in needless],
    ]
    return _evenly(kinds)


def babyai_mistakes(env: TextEnv, task: str, reply: str) -> list[str]:
    """Turn, check the actions, or go to something else; the expert finds its way from anywhere."""
    offered = sorted(set(_OFFERED.findall(reply)))
    return [f"Thought: I {action}.\nAction: {action}" for action in offered]


def sciworld_mistakes(env: TextEnv, task: str, reply: str) -> list[str]:
    """Look around, or at what is carried."""
    return [f"Thought: My next step is to {action}.\nAction: {action}" for action in ("look around", "inventory")]


def searchqa_mistakes(env: TextEnv, task: str, reply: str) -> list[str]:
    """Search for the title of a passage, or answer with one."""
    titles = _QUOTED_TITLE.findall(reply)
    return [f"<think>I need to look this up.</think>\n<search>{title}</search>" for title in titles] + [
        f"<think>I know the answer.</think>\n<answer>{title}</answer>" for title in titles
    ]


def _evenly(kinds: list[list[str]]) -> list[str]:
    """Return the texts of all kinds, each kind as often as the others (nearly)."""
    kinds = [kind for kind in kinds if kind]
    most = max(map(len, kinds), default=0)
    return [kind[number % len(kind)] for kind in kinds for number in range(most)]


@functools.cache
def _useful_items(goal: str) -> frozenset[str]:
    """Return all that some way to craft the goal makes use of."""
    names = [goal]
    for name in names:  # grows
        for recipe in load_book().recipes_of(name):
            names += [part.name for part in recipe.ingredients if part.name not in names]
    return frozenset(names)
