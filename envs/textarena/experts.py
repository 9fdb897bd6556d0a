"""Solvers: the next move in a game of TextArena's, from the state of its own object (`Game.world`)."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias, TypeVar

Cell: TypeAlias = tuple[int, int]
State = TypeVar("State", bound=Hashable)
STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def _first_move(
    start: State, moves: Callable[[State], Iterator[tuple[str, State]]], is_goal: Callable[[State], bool]
) -> str | None:
    """Return the first move of a shortest way to a goal, or None where there is no way."""
    first: dict[State, str | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if is_goal(state):
            return first[state]
        for move, after in moves(state):
            if after not in first:
                first[after] = first[state] or move
                queue.append(after)
    return None


def frozen_lake(world: Any) -> str:
    grid, goal = world.state.game_state["grid"], world.state.game_state["goal_pos"]

    def moves(at: Cell) -> Iterator[tuple[str, Cell]]:
        for name, (down, right) in STEPS.items():
            row, column = at[0] + down, at[1] + right
            if 0 <= row < world.size and 0 <= column < world.size and grid[row][column] != "H":
                yield name, (row, column)

    return _first_move(world.state.game_state["player_pos"], moves, lambda at: at == goal) or "up"


def guess_the_number(world: Any) -> str:
    """Halve what is left."""
    low, high = world.min_number, world.max_number
    for guess, hint in world.state.game_state["guess_history"]:
        low, high = (max(low, guess + 1), high) if hint == "higher" else (low, min(high, guess - 1))
    return str((low + high) // 2)


def lights_out(world: Any) -> str:
    """Press what turns all lights off with the fewest presses.

    The presses of the first row determine all others: a light that a row leaves on can only be turned off from below.
    """
    size, lights = world.size, world.state.game_state["grid"]
    solutions = []
    for first_row in itertools.product((False, True), repeat=size):
        grid, presses, row_presses = [list(row) for row in lights], [], list(first_row)
        for row in range(size):
            for column in (column for column in range(size) if row_presses[column]):
                presses.append((row, column))
                for down, right in ((0, 0), *STEPS.values()):
                    if 0 <= row + down < size and 0 <= column + right < size:
                        grid[row + down][column + right] ^= True
            row_presses = list(grid[row])
        if not any(grid[-1]):
            solutions.append(presses)
    row, column = min(solutions, key=len)[0]
    return f"{row} {column}"


def mastermind(world: Any) -> str:
    """Guess the first code that all answers allow."""
    state = world.state.game_state
    length, answers = state["code_length"], state["history"]

    def is_possible(code: tuple[int, ...]) -> bool:
        left = length - len(code)
        for answer in answers:
            black = sum(mine == theirs for mine, theirs in zip(code, answer["guess"], strict=False))
            both = (Counter(code) & Counter(answer["guess"])).total()
            if not (black <= answer["black"] <= black + left):
                return False
            if not (both <= answer["black"] + answer["white"] <= both + left):
                return False
        return True

    def codes(code: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(code) == length:
            yield code
            return
        for digit in range(1, state["num_numbers"] + 1):
            longer = (*code, digit)
            if (state["duplicate_numbers"] or digit not in code) and is_possible(longer):
                yield from codes(longer)

    return " ".join(map(str, next(codes(()))))


def minesweeper(world: Any) -> str:
    """Reveal a cell without a mine, if possible beside one that is revealed. It sees the mines."""
    cells = list(itertools.product(range(world.rows), range(world.cols)))
    safe = [(r, c) for r, c in cells if not world.revealed[r][c] and world.grid[r][c] != -1]

    def is_hidden(cell: Cell) -> bool:
        near = itertools.product(range(cell[0] - 1, cell[0] + 2), range(cell[1] - 1, cell[1] + 2))
        return not any(world.revealed[r][c] for r, c in near if 0 <= r < world.rows and 0 <= c < world.cols)

    row, column = min(safe, key=is_hidden)
    return f"{row} {column}"


def sokoban(world: Any) -> str:
    def cells(*kinds: int) -> frozenset[Cell]:
        rows, columns = world.room_state.shape
        grid = world.room_fixed if kinds == (2,) else world.room_state
        return frozenset((r, c) for r in range(rows) for c in range(columns) if grid[r][c] in kinds)

    player = (int(world.player_position[0]), int(world.player_position[1]))
    return _sokoban(cells(0), cells(2), player, cells(3, 4)) or "up"


@functools.lru_cache(maxsize=1024)
def _sokoban(walls: frozenset[Cell], goals: frozenset[Cell], player: Cell, boxes: frozenset[Cell]) -> str | None:
    def moves(state: tuple[Cell, frozenset[Cell]]) -> Iterator[tuple[str, tuple[Cell, frozenset[Cell]]]]:
        (row, column), boxes = state
        for name, (down, right) in STEPS.items():
            to, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
            if to in walls or (to in boxes and (beyond in walls or beyond in boxes)):
                continue
            yield name, (to, boxes - {to} | {beyond} if to in boxes else boxes)

    return _first_move((player, boxes), moves, lambda state: state[1] == goals)


def sudoku(world: Any) -> str:
    """Fill the first empty cell. It knows the solution, which is the only one."""
    board = world.state.game_state["board"]
    row, column = next((r, c) for r, c in itertools.product(range(9), range(9)) if board[r][c] == 0)
    return f"{row + 1} {column + 1} {world.full_grid[row][column]}"


def tower_of_hanoi(world: Any) -> str:
    towers = world.state.game_state["towers"]
    start = tuple(next(name for name in "ABC" if disk in towers[name]) for disk in range(1, world.num_disks + 1))

    def moves(places: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:  # of the disks, the smallest first
        for source, target in itertools.permutations("ABC", 2):
            disk = places.index(source) if source in places else len(places)
            if disk < len(places) and target not in places[:disk]:
                yield f"{source} {target}", (*places[:disk], target, *places[disk + 1 :])

    return _first_move(start, moves, lambda places: set(places) == {"C"}) or "A C"


EXPERTS: dict[str, Callable[[Any], str]] = {
    "FrozenLake": frozen_lake,
    "GuessTheNumber": guess_the_number,
    "LightsOut": lights_out,
    "Mastermind": mastermind,
    "Minesweeper": minesweeper,
    "Sokoban": sokoban,
    "Sudoku": sudoku,
    "TowerOfHanoi": tower_of_hanoi,
}
