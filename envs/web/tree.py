"""A page's accessibility tree: from Chromium's list of nodes to numbered lines of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.envs.web.layout import Layout

IGNORED_ROLES = ("InlineTextBox", "LineBreak", "ListMarker", "none")
# Nothing but what they hold: without a name they are left out, and their children move up.
STRUCTURE_ROLES = (
    "generic", "MenuListPopup", "Section", "Pre", "DescriptionListTerm", "LabelText", "img", "image", "paragraph",
    "list", "listitem", "figure",
)  # fmt: skip
CLICKABLE_ROLES = (
    "link", "button", "textbox", "searchbox", "combobox", "spinbutton", "slider", "checkbox", "radio", "switch", "tab",
    "option", "menuitem", "treeitem", "DisclosureTriangle",
)  # fmt: skip
HINTED_ROLES = ("generic", "link", "button", "graphics-symbol")
MAX_GROUP_LINES = 8
SHOWN_STATES = (
    "focused", "checked", "selected", "expanded", "pressed", "disabled", "required", "readonly", "multiline",
)  # fmt: skip
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
        hint: words of its attributes, where it has no name.
        backend_id: Chromium's number of the DOM node, or of its parent's where it has none.
    """

    id: int
    role: str
    name: str
    depth: int = 0
    value: str = ""
    states: dict[str, Any] = field(default_factory=dict)
    hint: str = ""
    backend_id: int = 0

    @property
    def line(self) -> str:
        """`[12] button 'OK' focused: True`, without indentation."""
        states = "".join(f" {key}: {state}" for key, state in self.states.items())
        value = f" value: {_cut(self.value)!r}" if self.value else ""
        hint = f" hint: {self.hint!r}" if self.hint else ""
        return f"[{self.id}] {self.role} {_cut(self.name)!r}{value}{states}{hint}"


def read_tree(
    raw: Sequence[dict[str, Any]], number: Callable[[int | str], int], layout: Layout | None = None
) -> list[Node]:
    """Return the nodes of a page, in reading order.

    Left out is what says nothing of its own: layout, text that only repeats its parent's name, unnamed pictures. What
    takes clicks without saying so (an icon, a line of a list) is shown, with "clickable: True".

    Args:
        raw: the nodes of the answer to Accessibility.getFullAXTree.
        number: Chromium's number of a DOM node -> the number that the agent sees; called in reading order. Text that
            style sheets make has no DOM node, and is called by a string.
        layout: what else is known of the elements.
    """
    layout = layout or Layout()
    by_id = {node["nodeId"]: node for node in raw}
    told = {node.get("backendDOMNodeId", 0) for node in raw}
    for drawing in [node for node in raw if node.get("backendDOMNodeId", 0) in layout.shapes]:
        untold = [_shape(id, drawing) for id in layout.shapes[drawing["backendDOMNodeId"]] if id not in told]
        drawing["childIds"] = [*drawing.get("childIds", ()), *(shape["nodeId"] for shape in untold)]
        by_id.update({shape["nodeId"]: shape for shape in untold})
    lines: list[_Line] = []
    # A stack, since pages nest deeper than Python's calls may: (node, line of the parent, what that says).
    stack: list[tuple[dict[str, Any], int, str]] = [
        (node, -1, "") for node in reversed(raw) if node.get("parentId") not in by_id
    ]
    while stack:
        node, parent, said = stack.pop()
        role, name = _text(node.get("role")), " ".join(_text(node.get("name")).split())
        if role in IGNORED_ROLES and not node["ignored"]:
            continue
        line = _Line(node, parent, role, name, _text(node.get("value")) if role in FIELD_ROLES else "", _states(node))
        is_shown = not node["ignored"] and _is_worth_a_line(line, said)
        if is_shown or (line.backend_id in layout.clickable and not _is_hidden(node)):
            if not is_shown:
                line.role, line.name, line.is_group = "generic", "", True
            lines.append(line)
            parent = len(lines) - 1
        if is_shown:
            said = f"{name} {line.value}" if role != "RootWebArea" else ""
        if role not in FIELD_ROLES or role == "combobox":  # else the text in it, which its value says
            stack += [(by_id[id], parent, said) for id in reversed(node.get("childIds", ())) if id in by_id]
    if not layout.places:
        _merge_groups(lines)
    nodes: list[Node] = []
    for line in lines:
        line.depth = lines[line.parent].depth + (not lines[line.parent].is_dropped) if line.parent >= 0 else 0
        if not line.is_dropped:
            hint = ""
            if not line.name and line.role in HINTED_ROLES:
                hint = layout.hints.get(line.backend_id, "")
            key = line.backend_id or str(line.raw["nodeId"])
            target = line.backend_id or (lines[line.parent].backend_id if line.parent >= 0 else 0)
            if line.depth and line.backend_id in layout.places:
                if line.backend_id in layout.clickable and line.role not in CLICKABLE_ROLES:
                    line.states["clickable"] = True
                line.states["box"] = ",".join(map(str, layout.places[line.backend_id]))
            nodes.append(Node(number(key), line.role, line.name, line.depth, line.value, line.states, hint, target))
    return nodes


@dataclass
class _Line:
    """A line that the tree may get. A group is an element that is there only because it takes clicks."""

    raw: dict[str, Any]
    parent: int  # its index among the lines, or -1
    role: str
    name: str
    value: str
    states: dict[str, Any]
    is_group: bool = False
    is_dropped: bool = False
    depth: int = 0

    @property
    def backend_id(self) -> int:
        return int(self.raw.get("backendDOMNodeId", 0))


def _merge_groups(lines: list[_Line]) -> None:
    """Let the only line in a group take its clicks; drop groups of so many lines that they say nothing."""
    inside: list[list[int]] = [[] for _ in lines]  # the lines in each, as far as needed
    for index in reversed(range(len(lines))):
        line = lines[index]
        if line.is_group:
            line.is_dropped = len(inside[index]) == 1 or len(inside[index]) > MAX_GROUP_LINES
            if len(inside[index]) == 1:
                only = lines[inside[index][0]]
                if only.role not in CLICKABLE_ROLES:
                    only.states["clickable"] = True
            elif not line.is_dropped:
                line.states["clickable"] = True
        if line.parent >= 0 and len(inside[line.parent]) <= MAX_GROUP_LINES:
            inside[line.parent] += inside[index] if line.is_dropped else [index, *inside[index]]


def _shape(backend_id: int, drawing: dict[str, Any]) -> dict[str, Any]:
    """Return a shape of a drawing, which Chromium tells as one picture, as a node that it might have told of."""
    return {
        "nodeId": f"shape {backend_id}",
        "parentId": drawing["nodeId"],
        "backendDOMNodeId": backend_id,
        "role": {"value": "graphics-symbol"},
        "ignored": False,
    }


def _is_hidden(node: dict[str, Any]) -> bool:
    return any(reason["name"].startswith("ariaHidden") for reason in node.get("ignoredReasons", ()))


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


def _states(node: dict[str, Any]) -> dict[str, Any]:
    raw = {item["name"]: item["value"].get("value") for item in node.get("properties", ())}
    states = {}
    for key in SHOWN_STATES:
        value = {"true": True, "false": False}.get(str(raw.get(key)), raw.get(key))
        if value or (value is False and key in SHOWN_WHEN_FALSE):
            states[key] = value
    return states


def _is_worth_a_line(line: _Line, said: str) -> bool:
    if line.role == "StaticText":
        return bool(line.name) and line.name not in said
    if line.role in STRUCTURE_ROLES:
        return bool(line.name and line.name not in said) or bool(line.states)
    return True


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAME_CHARS else f"{text[:MAX_NAME_CHARS]}... ({len(text)} characters)"
