"""An expert for BabyAI: from any state, the next action towards completing the instruction.

Differs from minigrid's `BabyAIBot`, whose plan is a stack that only a whole episode from its start builds up, and which
fails or loops on some levels: here each call plans afresh from the state of the environment, as far as the agent has
seen it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.envs.babyai.actions import CHECK
from rllm_gym.envs.babyai.routes import Map, Route, simulate
from rllm_gym.envs.babyai.view import name_of

MAX_DETOUR = 2  # moves that an action may cost beyond the shortest way, for being one action instead of several
MAX_OBSTACLES = 20  # on the way to an obstacle on the way to ...: more than any level has


@dataclass(frozen=True)
class Errand:
    """Something to do next: get to one of the states of a route, and there do one thing.

    Args:
        verb: "pickup", "drop" or "toggle", or "face", "enter" or "look" where it is enough to get there.
        route: the way to the states.
        thought: why, in words.
    """

    verb: str
    route: Route
    thought: str


def advise(
    level: Any, has_seen: Sequence[int], moves: Mapping[str, Sequence[int]], *, toggles_boxes: bool
) -> tuple[str, str]:
    """Return a thought and one of the available actions; nothing is changed.

    Args:
        level: minigrid's environment.
        has_seen: by cell of the grid, whether the agent has seen it in this episode.
        moves: the available actions and their moves.
        toggles_boxes: a key may be in a box, which "toggle" opens.
    """
    errand = _Planner(level, has_seen, toggles_boxes=toggles_boxes).next_errand()
    if errand is None:
        return "I know no way to complete the task.", "turn left"
    return errand.thought, _choose(errand, moves)


class _Planner:
    def __init__(self, level: Any, has_seen: Sequence[int], *, toggles_boxes: bool) -> None:
        self.toggles_boxes = toggles_boxes
        self.carrying = level.carrying
        self.doors_ahead: list[Any] = []  # whose keys are being looked for
        self.todo = _leaves(level.instrs, only_active=True)
        # A door that is to be opened must be shut when its turn comes, and no action shuts doors.
        later = [instr for instr in _leaves(level.instrs, only_active=False) if _kind(instr) == "OpenInstr"]
        to_open = [door for instr in later for door in instr.desc.obj_set]
        self.map = Map(level, has_seen, keep_shut=to_open)
        # minigrid checks the second of two instructions on the very move that completes the first, so that a strict
        # one fails at once, unless that move is not an action's last.
        self.must_enter = any(instr.strict and not any(instr is now for now in self.todo) for instr in later)

    def next_errand(self) -> Errand | None:
        """Return the errand for the first part of the instruction that can be worked on, or else exploration.

        Not for the nearest part: what brings one part nearer may take another farther away, to and fro.
        """
        errands = (self.errand_for(instr) for instr in self.todo)
        return next((errand for errand in errands if errand), None) or self.explore()

    def errand_for(self, instr: Any) -> Errand | None:
        """Return the next action for one instruction, or None where too little has been seen."""
        kind = _kind(instr)
        if kind == "GoToInstr":
            return self.reach("face", self.seen(instr.desc.obj_poss), "I go to the {}.")
        if kind == "OpenInstr":
            return self.open([door for door in instr.desc.obj_set if not door.is_open])
        if kind == "PickupInstr":
            return self.fetch(instr.desc.obj_set, "I pick up the {}.")
        return self.put_next(instr)

    # Instructions.

    def open(self, doors: Sequence[Any]) -> Errand | None:
        cells = self.map.find(doors)
        route = self.map.route_to_face(cells)
        if route is None:
            return None
        door = self.map.facing(route)
        if door.is_locked and not self.has_key(door):
            return self.fetch_key(door, route)
        if self.must_enter:
            return self.follow("enter", self.map.route_to_enter(cells), f"I open the {name_of(door)}.")
        return self.reach("toggle", cells, "I open the {}.")

    def fetch(self, things: Iterable[Any], thought: str, onward: Iterable[int] = ()) -> Errand | None:
        """Pick up one of some things, with empty hands. `onward` are cells where it is to be carried to face."""
        cells = self.map.find(things)
        route = self.map.route_to_face(cells)
        if route is None:
            return None
        onward = list(onward)
        # The way back must be free before the hands are full.
        back = self.map.route_to_face(onward, start=route.end, passing=self.map.ahead(route.end)) if onward else None
        if self.carrying:
            return self.put_down(onward, [*route.cells, *(back.cells if back else ())])
        errand = self.reach("pickup", cells, thought)
        if errand and errand.route.end == route.end and back:
            return self.clear(back) or errand
        return errand

    def put_next(self, instr: Any) -> Errand | None:
        movable, fixed = instr.desc_move.obj_set, self.seen(instr.desc_fixed.obj_poss)
        beside = {cell + step for cell in fixed for step in self.map.steps}
        spots = [cell for cell in beside if self.map.is_free(cell)]
        if self.carrying and any(self.carrying is thing for thing in movable):
            if spots:
                return self.reach("drop", spots, f"I put the {name_of(self.carrying)} in its place.")
            return self.put_down(beside, ()) if fixed else None
        if fixed and not spots:
            in_the_way = [self.map.grid[cell] for cell in beside if self.map.holds_object(cell)]
            others = [thing for thing in in_the_way if not any(thing is one for one in movable)]
            return self.fetch(others, "I make room: the {} must go.") if others else None
        return self.fetch(movable, "I have to move the {}.", onward=spots) if fixed else None

    def explore(self) -> Errand | None:
        return self.follow("look", self.map.route_to_unseen(), "I look for what I have not seen yet.")

    # What stands in the way.

    def reach(self, verb: str, cells: Iterable[int], thought: str) -> Errand | None:
        """Face one of some cells, and there do something. "{}" in the thought becomes the name of what is there."""
        route = self.map.route_to_face(cells)
        if route is None:
            return None
        return self.follow(verb, route, thought.format(name_of(self.map.facing(route)) or "place"))

    def follow(self, verb: str, route: Route | None, thought: str) -> Errand | None:
        """Follow a route, or first remove what stands in its way."""
        if route is None:
            return None
        return self.clear(route) or Errand(verb, route, thought)

    def clear(self, route: Route) -> Errand | None:
        """Remove the first obstacle of a route: None if there is none."""
        for _ in range(MAX_OBSTACLES):
            cell = next((cell for cell in route.cells if self.map.is_obstacle(cell)), None)
            if cell is None:
                return None
            thing = self.map.grid[cell]
            if thing.type == "door":
                return self.fetch_key(thing, route)
            if self.carrying:
                return self.put_down((), route.cells)
            to_it = self.map.route_to_face([cell])
            if to_it is None:
                return None
            if not any(self.map.is_obstacle(on_it) for on_it in to_it.cells):
                return Errand("pickup", to_it, f"The {name_of(thing)} is in the way.")
            route = to_it
        return None

    def fetch_key(self, door: Any, route: Route) -> Errand | None:
        """Get the key of a locked door on a route."""
        if any(door is one for one in self.doors_ahead):
            return None  # its key is behind it
        self.doors_ahead.append(door)
        name = f"{door.color} key"
        keys = self.map.find_named(name)
        if keys:
            return self.fetch(keys, f"I need the {name} for the {name_of(door)}.", onward=self.map.find([door]))
        boxes = self.map.find(thing for thing in self.map.grid if thing is not None and thing.type == "box")
        if self.toggles_boxes and boxes:
            return self.reach("toggle", boxes, f"The {name} may be in the box.")
        return None

    def put_down(self, keep_free: Iterable[int], route: Iterable[int]) -> Errand | None:
        """Put down what is carried where it is not in the way, off some cells, and if need be off a route."""
        for places in self.map.places_to_drop(set(keep_free), set(route)):
            if way := self.map.route_to_face(places, around_obstacles=True):
                return Errand("drop", way, f"I put the {name_of(self.carrying)} down.")
        return None

    def seen(self, positions: Iterable[tuple[int, int]]) -> list[int]:
        cells = [int(y) * self.map.width + int(x) for x, y in positions]
        return [cell for cell in cells if self.map.has_seen[cell]]

    def has_key(self, door: Any) -> bool:
        return name_of(self.carrying) == f"{door.color} key"


def _choose(errand: Errand, moves: Mapping[str, Sequence[int]]) -> str:
    """Return the available action that comes nearest to an errand's end without a detour."""
    route = errand.route
    best = ("turn left", float("inf"), float("inf"))
    target = route.map.facing(route)
    for action, its_moves in moves.items():
        if action == CHECK:
            continue
        outcome = simulate(route.map, its_moves)
        left = route.cost_from(outcome.state)
        cost = outcome.cost + left
        if outcome.act is not None:
            is_wanted = outcome.act == errand.verb and left == 0
            if errand.verb == "pickup":
                is_wanted = is_wanted and outcome.target is target
            if not is_wanted:
                continue
            left, cost = -1.0, cost - 1
        if cost <= route.cost + MAX_DETOUR and (left, cost) < best[1:]:
            best = (action, left, cost)
    return best[0]


def _kind(instr: Any) -> str:
    return type(instr).__name__


def _leaves(instr: Any, *, only_active: bool) -> list[Any]:
    """Return the single instructions of an instruction that are to be done, or, of these, could be done now."""
    kind = _kind(instr)
    if kind not in ("BeforeInstr", "AfterInstr", "AndInstr"):
        return [instr]
    parts = [(instr.instr_a, instr.a_done), (instr.instr_b, instr.b_done)]
    if kind == "AfterInstr":
        parts.reverse()
    left = [part for part, done in parts if done != "success"]
    if only_active and kind != "AndInstr":
        left = left[:1]
    return [leaf for part in left for leaf in _leaves(part, only_active=only_active)]
