"""An expert's view: the instruction and the elements of the page; ways to find one; the table of experts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rllm_gym.envs.web.tree import Node

TEXT_FIELDS = ("textbox", "searchbox", "spinbutton")


@dataclass(frozen=True)
class View:
    """An instruction and the elements of the last observation."""

    objective: str
    nodes: tuple[Node, ...]

    @property
    def quoted(self) -> list[str]:
        """The texts in quotation marks in the instruction."""
        return re.findall(r'"(.*?)"', self.objective)

    def all(self, *roles: str, name: str | None = None, hint: str | None = None) -> list[Node]:
        """Return the elements of some roles (none: of any), with this name and this word in their hint."""
        return list(self._matches(roles, name, hint))

    def first(self, *roles: str, name: str | None = None, hint: str | None = None) -> Node | None:
        return next(self._matches(roles, name, hint), None)

    @property
    def fields(self) -> list[Node]:
        """The fields that take text."""
        return [node for node in self.all(*TEXT_FIELDS) if not node.states.get("readonly")]

    @property
    def texts(self) -> list[str]:
        return [node.name for node in self.all("StaticText")]

    def after(self, node: Node | None) -> View:
        """Return the words that follow an element."""
        return View(self.objective, self.nodes[self.nodes.index(node) + 1 :]) if node else self

    def _matches(self, roles: tuple[str, ...], name: str | None, hint: str | None) -> Iterator[Node]:
        for node in self.nodes:
            words = node.hint.split()
            if roles and node.role not in roles:
                continue
            if name in (None, node.name) and (hint is None or hint in words):
                yield node


def click(node: Node | None) -> str:
    return f"click [{node.id}]" if node else ""


def fill(node: Node | None, text: str) -> str:
    """Type a text into a field, without Enter, unless it is there; "" is returned then."""
    return f"type [{node.id}] [{text}] [0]" if node and node.value != text else ""


Expert = Callable[[View], str]  # returns an action, or "" where it knows none
EXPERTS: dict[str, Expert] = {}
POINTER_EXPERTS: dict[str, Expert] = {}  # for tasks that nothing else can solve than the mouse at a place


def expert(*tasks: str, table: dict[str, Expert] = EXPERTS) -> Callable[[Expert], Expert]:
    def register(function: Expert) -> Expert:
        table.update(dict.fromkeys(tasks, function))
        return function

    return register


def pointer_expert(*tasks: str) -> Callable[[Expert], Expert]:
    return expert(*tasks, table=POINTER_EXPERTS)


def submit(view: View) -> str:
    """Press Submit, as the last step of most forms."""
    return click(view.first("button", name="Submit"))
