"""Ways through the part of a level that the agent has seen."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.envs.babyai.actions import DROP, FORWARD, LEFT, PICK_UP, RIGHT, TOGGLE
from rllm_gym.envs.babyai.view import name_of

# Costs in moves of getting through a cell. That of an obstacle is roughly what it takes to put it elsewhere.
OBJECT_COST = 12
LOCK_COST = 30
KEEP_SHUT_COST = 60
INFINITE = float("inf")
_ACTS = {PICK_UP: "pickup", DROP: "drop", TOGGLE: "toggle"}


@dataclass(frozen=True)
class Route:
    """The cheapest way from a state to one of several.

    Args:
        map: the map that it is on.
        costs: the cost of getting to an end, by state.
        cost: that of the start.
        cells: the cells to enter, in order, without one that is to be taken for empty.
        end: the state that it leads to.
    """

    map: Map
    costs: Sequence[float]
    cost: float
    cells: tuple[int, ...]
    end: int

    def cost_from(self, state: int) -> float:
        return self.costs[state]


class Map:
    """The agent's knowledge of the grid. A state is four times a cell plus a direction (east, south, west, north).

    Args:
        level: minigrid's environment.
        has_seen: by cell, whether the agent has seen it.
        keep_shut: doors not to be opened on the way to other things.
    """

    def __init__(self, level: Any, has_seen: Sequence[int], *, keep_shut: Sequence[Any]) -> None:
        self.grid: list[Any] = level.grid.grid
        self.width: int = level.grid.width
        self.steps = (1, self.width, -1, -self.width)
        self.has_seen = has_seen
        self.carrying = level.carrying
        x, y = map(int, level.agent_pos)
        self.agent = y * self.width + x
        self.start = self.agent * 4 + int(level.agent_dir)
        self.keep_shut = keep_shut
        self.entry_costs = [self._entry_cost(cell) for cell in range(len(self.grid))]

    def _entry_cost(self, cell: int) -> float:
        thing = self.grid[cell]
        if not self.has_seen[cell]:
            return INFINITE
        if thing is None:
            return 1
        if thing.type == "wall":
            return INFINITE
        if thing.type != "door":
            return 1 + OBJECT_COST
        if thing.is_open:
            return 1
        cost = 2 + (KEEP_SHUT_COST if any(thing is door for door in self.keep_shut) else 0)
        key = f"{thing.color} key"
        if not thing.is_locked or name_of(self.carrying) == key:
            return cost
        return cost + LOCK_COST if self.find_named(key) else INFINITE

    # Cells.

    def ahead(self, state: int) -> int:
        return state // 4 + self.steps[state % 4]

    def facing(self, route: Route) -> Any:
        """Return the cell in front of the agent at the end of a route."""
        return self.grid[self.ahead(route.end)]

    def find(self, things: Iterable[Any]) -> list[int]:
        """Return the cells of things that have been seen and are not carried."""
        # "The grey object" of some levels means walls, too.
        wanted = {id(thing) for thing in things if thing.type != "wall"}
        return [cell for cell, thing in enumerate(self.grid) if id(thing) in wanted and self.has_seen[cell]]

    def find_named(self, name: str) -> list[Any]:
        """Return the things of a name that have been seen."""
        return [thing for cell, thing in enumerate(self.grid) if self.has_seen[cell] and name_of(thing) == name]

    def is_free(self, cell: int) -> bool:
        return self.grid[cell] is None and bool(self.has_seen[cell])

    def holds_object(self, cell: int) -> bool:
        thing = self.grid[cell]
        return bool(self.has_seen[cell]) and thing is not None and thing.type not in ("wall", "door")

    def is_obstacle(self, cell: int) -> bool:
        """Say whether something must be moved or unlocked with a key yet to be fetched before this can be entered."""
        thing = self.grid[cell]
        if thing is None or thing.type != "door":
            return thing is not None
        return thing.is_locked and name_of(self.carrying) != f"{thing.color} key"

    def places_to_drop(self, keep_free: set[int], route: set[int]) -> Iterator[list[int]]:
        """Yield cells to put something down in, the best first.

        Those that block nothing do not depend on where the agent is, as its route does: it keeps to its choice.
        """
        free = [cell for cell in range(len(self.grid)) if self.is_free(cell)]
        off = [cell for cell in free if cell not in keep_free]
        yield [cell for cell in off if self._blocks_nothing(cell)]
        yield [cell for cell in off if cell not in route]
        yield free

    def _blocks_nothing(self, cell: int) -> bool:
        """Say whether the free cells around a cell stay connected without it, and what else is there within reach."""
        east, south, west, north = self.steps
        # Clockwise from the north; each touches the next.
        ring = [north, north + east, east, south + east, south, south + west, west, north + west]
        is_open = [self.is_free(cell + step) for step in ring]
        for i in (0, 2, 4, 6):
            thing = self.grid[cell + ring[i]]
            if thing is not None and thing.type == "door":
                return False
            if thing is not None and thing.type != "wall" and not (is_open[i - 1] or is_open[i + 1]):
                return False
        return sum(is_open[i] != is_open[i - 1] for i in range(8)) <= 2

    # Routes.

    def route_to_face(
        self,
        cells: Iterable[int],
        *,
        start: int | None = None,
        passing: int | None = None,
        around_obstacles: bool = False,
    ) -> Route | None:
        """Return the way to the nearest state that faces one of some cells.

        Args:
            cells: the cells to face.
            start: the state to start from, instead of the agent's.
            passing: a cell that is to be taken for an empty one.
            around_obstacles: takes a way only if nothing must be removed from it.
        """
        ends = [(cell - step) * 4 + direction for cell in cells for direction, step in enumerate(self.steps)]
        return self._route(ends, start=start, passing=passing, around_obstacles=around_obstacles)

    def route_to_enter(self, cells: Iterable[int]) -> Route | None:
        """Return the way to the nearest of some cells."""
        return self._route([cell * 4 + direction for cell in cells for direction in range(4)])

    def route_to_unseen(self) -> Route | None:
        """Return the way to the nearest state that faces a cell which has not been seen."""
        known = [cell for cell, cost in enumerate(self.entry_costs) if cost < INFINITE]
        states = [cell * 4 + direction for cell in known for direction in range(4)]
        return self._route([state for state in states if not self.has_seen[self.ahead(state)]])

    def _route(
        self,
        ends: Iterable[int],
        *,
        start: int | None = None,
        passing: int | None = None,
        around_obstacles: bool = False,
    ) -> Route | None:
        start = self.start if start is None else start
        entry_costs = list(self.entry_costs)
        if around_obstacles:
            entry_costs = [INFINITE if self.is_obstacle(cell) else cost for cell, cost in enumerate(entry_costs)]
        entry_costs[self.agent] = 1
        if passing is not None:
            entry_costs[passing] = 1
        costs = self._costs(ends, entry_costs)
        if costs[start] == INFINITE:
            return None
        state, cells = start, []
        while costs[state] > 0:
            after, _ = min(self._successors(state, entry_costs), key=lambda pair: costs[pair[0]] + pair[1])
            if after // 4 not in (state // 4, passing):
                cells.append(after // 4)
            state = after
        return Route(self, costs, costs[start], tuple(cells), state)

    def _successors(self, state: int, entry_costs: Sequence[float]) -> list[tuple[int, float]]:
        cell, direction = divmod(state, 4)
        ahead = cell + self.steps[direction]
        turns: list[tuple[int, float]] = [(cell * 4 + (direction + turn) % 4, 1) for turn in (-1, 1)]
        return [(ahead * 4 + direction, entry_costs[ahead]), *turns]

    def _costs(self, ends: Iterable[int], entry_costs: Sequence[float]) -> list[float]:
        """Return the cost of getting to the nearest end from every state: Dijkstra's algorithm, backwards."""
        costs = [INFINITE] * (len(self.grid) * 4)
        heap: list[tuple[float, int]] = []
        for end in ends:
            if entry_costs[end // 4] < INFINITE:
                costs[end] = 0
                heap.append((0, end))
        heapq.heapify(heap)
        while heap:
            cost, state = heapq.heappop(heap)
            if cost > costs[state]:
                continue
            cell, direction = divmod(state, 4)
            behind = cell - self.steps[direction]
            before = [(cell * 4 + (direction + 1) % 4, cost + 1), (cell * 4 + (direction - 1) % 4, cost + 1)]
            if entry_costs[behind] < INFINITE:
                before.append((behind * 4 + direction, cost + entry_costs[cell]))
            for state_before, cost_before in before:
                if cost_before < costs[state_before]:
                    costs[state_before] = cost_before
                    heapq.heappush(heap, (cost_before, state_before))
        return costs


@dataclass(frozen=True)
class Outcome:
    """The outcome of moves.

    Args:
        state: where they end.
        cost: as on a route: that of the cells that are entered, and 1 for every other move.
        act: "pickup", "drop" or "toggle" where the last move is one, and None else.
        target: the thing that it is done to.
    """

    state: int
    cost: float
    act: str | None = None
    target: Any = None


def simulate(map: Map, moves: Sequence[int]) -> Outcome:
    """Return the state after moves, without making them."""
    state, cost = map.start, 0.0
    opened = None
    for i, move in enumerate(moves):
        ahead = map.ahead(state)
        thing = map.grid[ahead]
        if move in (LEFT, RIGHT):
            state = state // 4 * 4 + (state + (1 if move == RIGHT else -1)) % 4
            cost += 1
        elif move == FORWARD:
            if not map.has_seen[ahead]:
                return Outcome(state, INFINITE)  # nobody knows
            if thing is not None and ahead != opened and not (thing.type == "door" and thing.is_open):
                return Outcome(state, cost + 1)
            state = ahead * 4 + state % 4
            cost += map.entry_costs[ahead]
        elif move == TOGGLE and i + 1 < len(moves):
            opened = ahead
        else:
            return Outcome(state, cost + 1, _ACTS[move], thing)
    return Outcome(state, cost)
