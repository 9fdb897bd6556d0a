"""A page's accessibility tree: from Chromium's list of nodes to numbered lines of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

IGNORED_ROLES = ("InlineTextBox", "LineBreak", "none")
# Nothing but what they hold: left out, their children move up.
STRUCTURE_ROLES = ("generic", "MenuListPopup", "Section", "Pre", "DescriptionListTerm", "LabelText")
SHOWN_STATES = ("focused", "checked", "selected", "expanded", "pressed", "disabled", "required", "readonly")
# False says something here: there is something to check or to expand.
SHOWN_WHEN_FALSE = ("checked", "expanded", "pressed")
FIELD_ROLES = ("textbox", "searchbox", "combobox", "spinbutton", "slider", "Date", "DateTime", "InputTime", "ColorWell")
MAX_NAME_CHARS = 1000  # of one line; a paragraph is cut visibly
MAX_INDENT = 20
CHARS_PER_TOKEN = 5  # of an English word


@dataclass(frozen=True)
class Node:
    """One line of the tree.

    Args:
        id: the number that actions name it by; the same as long as its document is shown.
        role: the accessibility role, in Chromium's spelling ("button", "StaticText", "RootWebArea").
        name: the accessible name.
        depth: 0 for the root of the page.
        value: what a field holds.
        states: such as {"focused": True, "checked": False}.
        backend_id: Chromium's number of the DOM node.
    """

    id: int
    role: str
    name: str
    depth: int = 0
    value: str = ""
    states: dict[str, Any] = field(default_factory=dict)
    backend_id: int = 0

    @property
    def line(self) -> str:
        """`[12] button 'OK' focused: True`, without indentation."""
        states = "".join(f" {key}: {state}" for key, state in self.states.items())
        value = f" value: {_cut(self.value)!r}" if self.value else ""
        return f"[{self.id}] {self.role} {_cut(self.name)!r}{value}{states}"


def read_tree(raw: Sequence[dict[str, Any]], number: Callable[[int], int]) -> list[Node]:
    """Return the nodes of a page, in reading order.

    Left out is what says nothing of its own: layout, text that only repeats its parent's name, unnamed pictures.

    Args:
        raw: the nodes of the answer to Accessibility.getFullAXTree.
        number: Chromium's number of a DOM node -> the number that the agent sees; called in reading order.
    """
    by_id = {node["nodeId"]: node for node in raw}
    nodes: list[Node] = []

    # A stack, since pages nest deeper than Python's calls may: (node, depth, texts that an ancestor's name says).
    stack = [(node, 0, "") for node in reversed(raw) if node.get("parentId") not in by_id]
    while stack:
        node, depth, said = stack.pop()
        role, name = _text(node.get("role")), " ".join(_text(node.get("name")).split())
        if role in IGNORED_ROLES and not node["ignored"]:
            continue
        value = _value(node, role)
        states = _states(node)
        if not node["ignored"] and _is_worth_a_line(role, name, value, states, said):
            backend_id = node.get("backendDOMNodeId", 0)
            nodes.append(Node(number(backend_id), role, name, depth, value, states, backend_id))
            depth += 1
            said = f"{name} {value}" if role != "RootWebArea" else ""
        children = [by_id[child] for child in node.get("childIds", ()) if child in by_id]
        if role in FIELD_ROLES and role != "combobox":
            children = []  # the text in it, which `value` says
        stack += [(child, depth, said) for child in reversed(children)]
    return nodes


def render(
    nodes: Sequence[Node], *, max_tokens: int, count_tokens: Callable[[str], int], num_above: int = 0
) -> tuple[str, int]:
    """Return the first lines of a tree that fit into a budget, and how many of its nodes they show.

    A line in brackets that names no element says how many lines are left out.

    Args:
        nodes: what is to be shown.
        num_above: how many nodes were left out of it because they are scrolled out of view.
    """
    lines = ["\t" * min(node.depth, MAX_INDENT) + node.line for node in nodes]
    above = [_more(num_above, "above", "up")] if num_above else []
    budget = max_tokens - sum(map(count_tokens, above))
    note = count_tokens(_more(len(lines), "below", "down"))
    num_shown = num_shown_with_note = 0
    for line in lines:
        budget -= count_tokens(f"{line}\n")
        if budget < 0:
            num_shown = num_shown_with_note
            break
        num_shown += 1
        if budget >= note:
            num_shown_with_note = num_shown
    below = [_more(len(lines) - num_shown, "below", "down")] if num_shown < len(lines) else []
    return "\n".join([*above, *lines[:num_shown], *below]), num_shown


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a language model's byte-level BPE makes of a text, rather too many."""
    return sum(
        -(-len(piece) // CHARS_PER_TOKEN)
        if piece.isascii() and (piece.isalpha() or piece.isspace())
        else 1
        if piece.isascii()
        else 2
        for piece in re.findall(r"[A-Za-z]+|[ ]+|.", text, re.DOTALL)
    )


def _more(num_lines: int, where: str, direction: str) -> str:
    return f"[... {num_lines} more lines {where}; scroll [{direction}] shows them]"


def _text(field_value: dict[str, Any] | None) -> str:
    return str((field_value or {}).get("value", ""))


def _value(node: dict[str, Any], role: str) -> str:
    return _text(node.get("value")) if role in FIELD_ROLES else ""


def _states(node: dict[str, Any]) -> dict[str, Any]:
    raw = {item["name"]: item["value"].get("value") for item in node.get("properties", ())}
    states = {}
    for key in SHOWN_STATES:
        value = {"true": True, "false": False}.get(str(raw.get(key)), raw.get(key))
        if value or (value is False and key in SHOWN_WHEN_FALSE):
            states[key] = value
    return states


def _is_worth_a_line(role: str, name: str, value: str, states: dict[str, Any], said: str) -> bool:
    if role == "StaticText":
        return bool(name) and name not in said
    if role in STRUCTURE_ROLES or role in ("img", "image", "paragraph", "listitem", "list", "figure"):
        return bool(name and name not in said) or bool(states)
    return True


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAME_CHARS else f"{text[:MAX_NAME_CHARS]}... ({len(text)} characters)"
