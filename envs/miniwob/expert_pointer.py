"""Experts for the tasks that need a place or a drag: what is on the page, with its boxes -> the next action."""

from __future__ import annotations

import math
import re

from rllm_gym.envs.miniwob.view import View, pointer_expert, submit
from rllm_gym.envs.web.tree import Node

Place = tuple[float, float]
EDGE = 16  # pixels from the edge of a drawing
MARGIN = 8  # pixels that a drop may be off
OFFSET = 2  # of a drawing in its page
KINDS = {"rectangles": "rect", "circles": "circle", "triangles": "polygon"}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
ROWS, COLUMNS = {"top": 0, "center": 1, "middle": 1, "bottom": 2}, {"left": 0, "center": 1, "middle": 1, "right": 2}


def box(node: Node) -> tuple[int, int, int, int]:
    """Return an element's left, top, width and height."""
    x, y, width, height = map(int, str(node.states["box"]).split(","))
    return x, y, width, height


def middle(node: Node) -> Place:
    x, y, width, height = box(node)
    return x + width / 2, y + height / 2


def is_inside(node: Node, container: Node) -> bool:
    (x, y, width, height), (left, top, whole_width, whole_height) = box(node), box(container)
    return left <= x and x + width <= left + whole_width and top <= y and y + height <= top + whole_height


def draw_at(place: Place) -> str:
    """Click where a drawing puts a point at this place: its scripts take the page's pixels for the drawing's."""
    return f"mouse_click [{round(place[0] - OFFSET)}] [{round(place[1] - OFFSET)}]"


def drag_to(start: Place, end: Place) -> str:
    return f"mouse_drag [{round(start[0])}] [{round(start[1])}] [{round(end[0])}] [{round(end[1])}]"


def shapes(view: View, *words: str) -> list[Node]:
    """Return the shapes of a drawing whose hint has all of these words."""
    return [node for node in view.all("graphics-symbol") if set(words) <= set(node.hint.split())]


# Drawings.


@pointer_expert("circle-center")
def circle_center(view: View) -> str:
    return submit(view) if shapes(view, "blue") else draw_at(middle(shapes(view, "black-circle")[0]))


@pointer_expert("find-midpoint")
def find_midpoint(view: View) -> str:
    if shapes(view, "blue"):
        return submit(view)
    (x1, y1), (x2, y2) = map(middle, shapes(view, "black-circle"))
    return draw_at(((x1 + x2) / 2, (y1 + y2) / 2))


@pointer_expert("bisect-angle")
def bisect_angle(view: View) -> str:
    [corner] = shapes(view, "init-blue")
    ends = shapes(view, "init-black")
    if len(shapes(view, "circle")) > 1 + len(ends):
        return submit(view)
    x, y = middle(corner)
    angles = [math.atan2(end[1] - y, end[0] - x) for end in map(middle, ends)]
    dx, dy = sum(map(math.cos, angles)), sum(map(math.sin, angles))
    length = math.hypot(dx, dy) / 70
    return draw_at((x + dx / length, y + dy / length))


@pointer_expert("right-angle")
def right_angle(view: View) -> str:
    [corner], [end] = shapes(view, "init-blue"), shapes(view, "init-black")
    if len(shapes(view, "circle")) > 2:
        return submit(view)
    (x, y), (x2, y2) = middle(corner), middle(end)
    left, top, width, height = box(view.all("generic", hint="svg")[0])
    length = math.dist((x, y), (x2, y2)) / 40
    for sign in (1, -1):
        place = (x - sign * (y2 - y) / length, y + sign * (x2 - x) / length)
        if left < place[0] < left + width and top < place[1] < top + height:
            return draw_at(place)
    return ""


@pointer_expert("draw-line")
def draw_line(view: View) -> str:
    if shapes(view, "path"):
        return submit(view)
    x, y = middle(shapes(view, "circle")[0])
    dx, dy = (40, 0) if "horizontal" in view.objective else (0, 20)
    return drag_to((x - dx, y - dy), (x + dx, y + dy))


# Dragging.


@pointer_expert("drag-circle", "drag-single-shape")
def drag_one(view: View) -> str:
    """Drag a shape to the edge, where it cannot have been."""
    direction = re.search(r"left|right|up|down", view.objective)
    [shape] = shapes(view)
    (x, y), (left, top, width, height) = middle(shape), box(view.all("SvgRoot")[0])
    dx, dy = DIRECTIONS[direction[0]] if direction else (0, 0)
    end = ({-1: left + EDGE, 0: x, 1: left + width - EDGE}[dx], {-1: top + EDGE, 0: y, 1: top + height - EDGE}[dy])
    return submit(view) if math.dist((x * dx, y * dy), (end[0] * dx, end[1] * dy)) < MARGIN else drag_to((x, y), end)


@pointer_expert("drag-box")
def drag_box(view: View) -> str:
    [small], [large] = view.all("generic", hint="draggableSmall"), view.all("generic", hint="draggableLarge")
    return submit(view) if is_inside(small, large) else drag_to(middle(small), middle(large))


@pointer_expert("drag-shapes", "drag-shapes-2")
def drag_shapes(view: View) -> str:
    boxes = sorted(shapes(view, "shape-container"), key=box)
    wanted = re.search(r"all (\w+)", view.objective)
    assert wanted is not None
    for shape in shapes(view):
        if shape in boxes:
            continue
        is_wanted = KINDS.get(wanted[1], wanted[1]) in shape.hint.split()
        target = boxes[0] if is_wanted == ("left" in view.objective.partition(",")[0] or len(boxes) == 1) else boxes[-1]
        if (is_wanted or len(boxes) > 1) and not is_inside(shape, target):
            return drag_to(middle(shape), middle(target))
    return submit(view)


def _handles(view: View) -> list[tuple[Node, str]]:
    """Return the elements that can be sorted, in order, with their texts."""
    nodes = list(view.nodes)
    return [(node, nodes[i + 1].name) for i, node in enumerate(nodes) if "ui-sortable-handle" in node.hint]


def _move(view: View, source: int, target: int) -> str:
    """Drag an item to another's place, and a little further, so that they change places."""
    handles = [node for node, _ in _handles(view)]
    (x1, y1), (x2, y2) = middle(handles[source]), middle(handles[target])
    beyond = 4 / max(math.dist((x1, y1), (x2, y2)), 1)
    return drag_to((x1, y1), (x2 + (x2 - x1) * beyond, y2 + (y2 - y1) * beyond))


@pointer_expert("drag-items")
def drag_items(view: View) -> str:
    names = [name for _, name in _handles(view)]
    source = names.index(view.objective.split()[1])
    if found := re.search(r"(\d+)\w\w position", view.objective):
        return _move(view, source, int(found[1]) - 1)
    if found := re.search(r"(up|down) by one", view.objective):
        return _move(view, source, source + (1 if found[1] == "down" else -1))
    return _move(view, source, 0 if "top" in view.objective else len(names) - 1)


@pointer_expert("drag-items-grid")
def drag_items_grid(view: View) -> str:
    names = [name for _, name in _handles(view)]
    source = names.index(view.objective.split()[1])
    words = re.findall(r"[a-z]+", view.objective.partition(" to the ")[2])
    if found := re.search(r"(left|right|up|down) by one", view.objective):
        dx, dy = DIRECTIONS[found[1]]
        return _move(view, source, source + dx + 3 * dy)
    row = next((ROWS[word] for word in words if word in ROWS), 1)
    column = next((COLUMNS[word] for word in reversed(words) if word in COLUMNS), 1)
    return _move(view, source, 3 * row + column)


@pointer_expert("drag-sort-numbers")
def drag_sort_numbers(view: View) -> str:
    numbers = [int(name) for _, name in _handles(view)]
    ordered = sorted(numbers, reverse="decreasing" in view.objective)
    for place, (number, wanted) in enumerate(zip(numbers, ordered, strict=True)):
        if number != wanted:
            return _move(view, numbers.index(wanted, place), place)
    return submit(view)
