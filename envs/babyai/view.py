"""The agent's view of a level, and its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SIZE = 7  # the view is a square of this side; the agent stands in the middle of its nearest row
_MIDDLE = SIZE // 2
_AGENT = SIZE * SIZE - 1 - _MIDDLE
_CELLS = [(SIZE - 1 - row, column - _MIDDLE) for row in range(SIZE) for column in range(SIZE)]  # (ahead, to the right)
_VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # east, south, west, north; y grows to the south
# By direction of the agent: the way from it to every cell of the view.
_OFFSETS = [
    [
        (ahead * fx + right * _VECTORS[(i + 1) % 4][0], ahead * fy + right * _VECTORS[(i + 1) % 4][1])
        for ahead, right in _CELLS
    ]
    for i, (fx, fy) in enumerate(_VECTORS)
]
_NEAREST_FIRST = sorted((i for i in range(len(_CELLS)) if i != _AGENT), key=lambda i: sum(map(abs, _CELLS[i])))
_STRAIGHT_AHEAD = [_AGENT - SIZE * steps for steps in range(1, SIZE)]


@dataclass(frozen=True)
class Thing:
    """Something other than a wall in the view, at `ahead` cells to the front and `right` cells to the right."""

    name: str
    ahead: int
    right: int

    @property
    def kind(self) -> str:
        return self.name.rpartition(" ")[2]


@dataclass(frozen=True)
class View:
    """A view of the level.

    Args:
        names: what is in each of the 49 cells, the farthest row first and from left to right: None for what cannot be
            seen, "" for an empty cell, or a name like "wall", "red ball", "grey closed door". The agent's own cell has
            the name of what it carries. Two views are equal exactly if minigrid's images of them are.
        cells: the grid's index of each visible cell.
    """

    names: list[str | None]
    cells: list[int]

    @property
    def carrying(self) -> str:
        return self.names[_AGENT] or ""

    @property
    def front(self) -> str:
        """The name of what is in the cell in front of the agent."""
        return self.names[_AGENT - SIZE] or ""

    @property
    def things(self) -> list[Thing]:
        """The objects and doors, the nearest first."""
        return [Thing(name, *_CELLS[i]) for i in _NEAREST_FIRST if (name := self.names[i]) and name != "wall"]

    @property
    def walls(self) -> list[tuple[int, int]]:
        """The walls, as (ahead, right)."""
        return [cell for cell, name in zip(_CELLS, self.names, strict=True) if name == "wall"]

    @property
    def barrier(self) -> tuple[str, int] | None:
        """The nearest wall or box straight ahead, as (its kind, steps), if there is one in view."""
        for steps, i in enumerate(_STRAIGHT_AHEAD, 1):
            kind = (self.names[i] or "").rpartition(" ")[2]
            if kind in ("wall", "box"):
                return kind, steps
        return None


def name_of(thing: Any) -> str:
    """Return the name of a thing of minigrid's, or "" for None."""
    if thing is None:
        return ""
    if thing.type == "wall":
        return "wall"
    if thing.type == "door":
        state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
        return f"{thing.color} {state} door"
    return f"{thing.color} {thing.type}"


def look(level: Any) -> View:
    """Return the view of a level's agent."""
    grid, width, height = level.grid.grid, level.grid.width, level.grid.height
    x, y = map(int, level.agent_pos)
    cells = []
    things = []
    is_opaque = []
    for dx, dy in _OFFSETS[level.agent_dir]:
        if 0 <= x + dx < width and 0 <= y + dy < height:
            cell = (y + dy) * width + x + dx
            thing = grid[cell]
            cells.append(cell)
            things.append(thing)
            is_opaque.append(thing is not None and not thing.see_behind())
        else:
            cells.append(-1)
            things.append(None)
            is_opaque.append(True)
    visible = _visible(is_opaque)
    names = [name_of(thing) if seen else None for thing, seen in zip(things, visible, strict=True)]
    names[_AGENT] = name_of(level.carrying)
    return View(names, [cell for cell, seen in zip(cells, visible, strict=True) if seen and cell >= 0])


def _visible(is_opaque: list[bool]) -> list[bool]:
    """Return which cells light reaches from the agent's: minigrid's rule, row by row, sideways and one row up."""
    visible = [False] * len(is_opaque)
    visible[_AGENT] = True
    for row in range(SIZE - 1, -1, -1):
        start = row * SIZE
        for columns, step in ((range(SIZE - 1), 1), (range(SIZE - 1, 0, -1), -1)):
            for column in columns:
                i = start + column
                if visible[i] and not is_opaque[i]:
                    visible[i + step] = True
                    if row:
                        visible[i - SIZE] = visible[i - SIZE + step] = True
    return visible


def describe(view: View) -> str:
    """Return the text of a view, as AgentGym has it."""
    things = view.things
    text = "You cannot see any objects within sight."
    if things or "wall" in view.names:
        text = "In front of you in this room, you can see several objects: "
    counts: dict[str, int] = {}
    for thing in things:
        counts[thing.name] = counts.get(thing.name, 0) + 1
        place = f"right in front of you {thing.ahead} steps away"
        if thing.right:
            side = "right" if thing.right > 0 else "left"
            place = f"{thing.ahead} steps in front of you and {abs(thing.right)} steps to your {side}"
        text += f"There is a {thing.name} {counts[thing.name]} {place}.  "
    text += "The room has walls around you. "
    if barrier := view.barrier:
        text += f"You are facing a {barrier[0]} {barrier[1]} steps away. "
    return text + (f"You are carrying a {view.carrying}." if view.carrying else "You are not carrying anything.")
