"""The experts: which tasks have one, and what it would write next."""

from __future__ import annotations

import contextlib

from rllm_gym.envs.miniwob import expert_clicks, expert_forms, expert_pointer  # noqa: F401  (they fill the tables)
from rllm_gym.envs.miniwob.view import EXPERTS, POINTER_EXPERTS, View
from rllm_gym.envs.web.actions import Action, parse
from rllm_gym.envs.web.tree import Node

GIVE_UP = "stop []"


def advise(task: str, objective: str, nodes: tuple[Node, ...], *, has_pointer: bool = False) -> str:
    """Return the next text of the task's expert; it gives up where there is none, or it knows nothing to do.

    Args:
        has_pointer: whether it sees where elements are, and the mouse may act at places.
    """
    action = ""
    experts = {**EXPERTS, **POINTER_EXPERTS} if has_pointer else EXPERTS
    if task in experts:
        # Where someone else has acted, the page may be none that the expert knows.
        with contextlib.suppress(AttributeError, LookupError, StopIteration, TypeError, ValueError):
            action = experts[task](View(objective, nodes))
    action = action or GIVE_UP
    return f"Thought: {_thought(action, nodes)}\nAction: {action}"


def _thought(text: str, nodes: tuple[Node, ...]) -> str:
    """Return the reason for an action in words, which is no more than what it is."""
    action = parse(text, has_pointer=True)
    if not isinstance(action, Action) or action.verb == "stop":
        return "I do not know what to do here."
    if action.verb in ("mouse_click", "mouse_drag"):
        place, *end = zip(action.places[::2], action.places[1::2], strict=True)
        return f"I need to drag from {place} to {end[0]}." if end else f"I need to click at {place}."
    node = next((node for node in nodes if node.id == action.number), None)
    if node is None:
        return f"I need to press {action.text}."
    target = f"the {node.role} {node.name or node.hint}"
    return {
        "click": f"I need to click on {target}.",
        "hover": f"I need to point at {target}.",
        "type": f"I need to enter {action.text!r} into {target}.",
    }.get(action.verb, f"I need to {action.verb}.")
