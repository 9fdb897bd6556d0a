"""The actions that a view offers, each with the moves that carry it out, and why others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rllm_gym.envs.babyai.view import Thing, View

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)  # minigrid's moves
CHECK = "check available actions"

# The paths' map: the agent at (0, 0) looks ahead; one row behind it and one column beyond the view's right side may be
# on it, and a rim of blocked cells is around. A state is a cell and a direction (ahead, right, back, left).
_WIDTH = 10
_STEPS = (_WIDTH, 1, -_WIDTH, -1)


def _cell(ahead: int, right: int) -> int:
    return (ahead + 2) * _WIDTH + right + 4


def _empty_map(direction: int) -> bytes:
    """Return the map of an empty view. What is on it depends on the direction, since AgentGym's ranges do."""
    nearest, rightmost = (-1 if direction in (0, 1) else 0), (4 if direction in (1, 2) else 3)
    is_blocked = bytearray(b"\1") * (_WIDTH * _WIDTH)
    for ahead in range(nearest, 7):
        for right in range(-3, rightmost + 1):
            is_blocked[_cell(ahead, right)] = 0
    return bytes(is_blocked)


_EMPTY_MAPS = [_empty_map(direction) for direction in range(4)]


@dataclass
class Offers:
    """The available actions, in order.

    Args:
        moves: action text to its moves.
        refusals: action text to the reply, for some that are not available.
    """

    moves: dict[str, Sequence[int]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)


def offers(view: View, direction: int, *, toggles_boxes: bool) -> Offers:
    """Return the actions that the agent can take.

    Names, numbers, order and refusals are AgentGym's. A number counts the things of one name that can be reached, from
    near to far; that of a door to go through counts all doors of that name.

    Args:
        view: what the agent sees.
        direction: where it looks: 0 to 3 for east, south, west, north.
        toggles_boxes: also offers "toggle" in front of a box.
    """
    things = view.things
    to_face, to_enter = _paths(view, things, direction)
    offered = Offers({"turn left": [LEFT], "turn right": [RIGHT]})
    barrier = view.barrier
    if barrier is None or barrier[1] > 1:
        offered.moves["move forward"] = [FORWARD]
    else:
        offered.refusals["move forward"] = "There is a barrier in front of you, you can't move forward."
    objects = [(thing, path) for thing, path in zip(things, to_face, strict=True) if thing.kind != "door"]
    if not view.carrying:
        _offer_each(offered, "pickup", [(thing, None if path is None else [*path, PICK_UP]) for thing, path in objects])
        offered.refusals["drop"] = "You cannot drop the object, as you are not carrying anything."
    elif not view.front or view.front.endswith("door"):
        offered.moves["drop"] = [DROP]
    else:
        offered.refusals["drop"] = "You cannot drop the object, as there is already an object in front of you."
    _offer_doors(offered, things, to_face, to_enter, view.carrying)
    if toggles_boxes and any(thing.kind == "box" and path == [] for thing, path in objects):
        offered.moves["toggle"] = [TOGGLE]
    _offer_each(offered, "go to", list(zip(things, to_face, strict=True)))
    offered.moves[CHECK] = []
    return offered


def _offer_each(offered: Offers, verb: str, paths: Sequence[tuple[Thing, list[int] | None]]) -> None:
    """Offer to do something with each thing that a path leads to."""
    counts: dict[str, int] = {}
    for thing, path in paths:
        what = f"{thing.name} {counts.get(thing.name, 0) + 1}"
        if path is None:
            offered.refusals[f"{verb} {what}"] = f"You cannot {verb} {what}, as there is no path leading to it."
        else:
            offered.moves[f"{verb} {what}"] = path
            counts[thing.name] = counts.get(thing.name, 0) + 1


def _offer_doors(
    offered: Offers,
    things: Sequence[Thing],
    to_face: Sequence[list[int] | None],
    to_enter: Sequence[list[int] | None],
    carrying: str,
) -> None:
    """Offer to go through doors."""
    counts: dict[str, int] = {}
    for thing, facing, entering in zip(things, to_face, to_enter, strict=True):
        if thing.kind != "door":
            continue
        counts[thing.name] = counts.get(thing.name, 0) + 1
        door = f"{thing.name} {counts[thing.name]}"
        color, state, _ = thing.name.split(" ")
        through, toggle = f"go through {door}", f"toggle and go through {door}"
        if state == "open":
            if entering is None:
                offered.refusals[through] = f"You cannot {through}, as there is no path leading to it."
            else:
                offered.moves[through] = entering
            continue
        if state == "closed":
            offered.refusals[through] = f"You cannot {through}, as it is closed. You should toggle it first."
        elif not carrying.endswith("key"):
            offered.refusals[toggle] = f"You cannot {toggle}, as you are not carrying a key."
            continue
        elif carrying != f"{color} key":
            why = "the color of the key you are carrying does not match the color of door"
            offered.refusals[toggle] = f"You cannot {toggle}, as {why}."
            continue
        if facing is None:
            # All the counts stand where the number should: AgentGym's text.
            what = f"toggle and go through {thing.name} {counts}"
            offered.refusals[toggle] = f"You cannot {what}, as there is no path leading to it."
        else:
            offered.moves[toggle] = [*facing, TOGGLE, FORWARD]
        if facing == []:
            offered.moves["toggle"] = [TOGGLE]


def _paths(
    view: View, things: Sequence[Thing], direction: int
) -> tuple[list[list[int] | None], list[list[int] | None]]:
    """Return the moves after which the agent faces each thing, and those after which it stands on it (open doors).

    None where no path leads to it. A breadth-first search, in which what cannot be seen is free, and so is every door.
    It is AgentGym's, whose paths are not always the shortest: the way to a state is the one found last before the state
    is looked at, and a state can be looked at several times. Rewards depend on their lengths.
    """
    is_blocked = bytearray(_EMPTY_MAPS[direction])
    for ahead, right in view.walls:
        is_blocked[_cell(ahead, right)] = 1
    cells = [_cell(thing.ahead, thing.right) for thing in things]
    for thing, cell in zip(things, cells, strict=True):
        if thing.kind != "door":
            is_blocked[cell] = 1
    facing: dict[int, list[int] | None] = dict.fromkeys(cells)
    entering: dict[int, list[int] | None] = {
        cell: None for thing, cell in zip(things, cells, strict=True) if thing.name.endswith("open door")
    }
    num_missing = len(facing) + len(entering)
    start = _cell(0, 0) * 4
    is_done = bytearray(_WIDTH * _WIDTH * 4)
    came_from: dict[int, tuple[int, int]] = {}
    queue = [start]
    for state in queue:  # grows
        if not num_missing:
            break
        is_done[state] = 1
        cell, heading = divmod(state, 4)
        next_cell = cell + _STEPS[heading]
        for wanted, where in ((facing, next_cell), (entering, cell)):
            if where in wanted and wanted[where] is None:
                wanted[where] = _moves(came_from, start, state)
                num_missing -= 1
        if not is_blocked[next_cell] and not is_done[next_cell * 4 + heading]:
            queue.append(next_cell * 4 + heading)
            came_from[next_cell * 4 + heading] = (state, FORWARD)
        for move, turned in ((LEFT, cell * 4 + (heading - 1) % 4), (RIGHT, cell * 4 + (heading + 1) % 4)):
            if not is_done[turned]:
                queue.append(turned)
                came_from[turned] = (state, move)
    return [facing[cell] for cell in cells], [entering.get(cell) for cell in cells]


def _moves(came_from: dict[int, tuple[int, int]], start: int, state: int) -> list[int]:
    moves = []
    while state != start:
        state, move = came_from[state]
        moves.append(move)
    return moves[::-1]
