"""The tasks of TextCraftDuo: what two crafters hold and know, and a solver that shows that they need each other."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rllm_gym.envs.textcraft.expert import plan
from rllm_gym.envs.textcraft.recipes import Recipe, RecipeBook, identify, load_book
from rllm_gym.errors import EnvError

MAX_CRAFTS = 6  # of the shortest way that the planner knows: goals with longer ones are left out
MAX_STATES = 20_000  # that the solver looks at
NUM_OTHERS = 2  # recipes that a crafter knows beside those that are needed, and items that it holds
ATTEMPTS = 50

_GET = re.compile(r"get (\d+) (.+)")
_COUNTED = re.compile(r"(\d+) (.+)")

Inventory = Mapping[str, int]


class Step(NamedTuple):
    """A recipe, and the items that it takes, one for each ingredient."""

    recipe: Recipe
    names: tuple[str, ...]

    @property
    def needs(self) -> Counter[str]:
        needs: Counter[str] = Counter()
        for part, name in zip(self.recipe.ingredients, self.names, strict=True):
            needs[name] += part.count
        return needs


class Task(NamedTuple):
    """The start of two crafters: by seat, the items that each holds and the recipes that it knows.

    Args:
        num_crafts: commands of a shortest way.
    """

    goal: str
    inventories: tuple[dict[str, int], dict[str, int]]
    recipes: tuple[tuple[Recipe, ...], tuple[Recipe, ...]]
    num_crafts: int = 0

    @property
    def all_recipes(self) -> tuple[Recipe, ...]:
        return tuple(dict.fromkeys([*self.recipes[0], *self.recipes[1]]))


def steps_from(inventory: Inventory, recipes: Collection[Recipe], book: RecipeBook) -> Iterator[Step]:
    """Yield everything that can be crafted now."""
    for recipe in recipes:
        fitting = [
            [item for item, count in inventory.items() if count >= part.count and book.fits(part, item)]
            for part in recipe.ingredients
        ]
        for names in itertools.product(*fitting):
            step = Step(recipe, names)
            if all(inventory.get(item, 0) >= count for item, count in step.needs.items()):
                yield step


def after(inventory: Inventory, step: Step) -> dict[str, int]:
    """Return the items that are held after a step."""
    left = Counter(inventory)
    left.subtract(step.needs)
    left[step.recipe.output] += step.recipe.count
    return {item: left[item] for item in sorted(left) if left[item]}


def solve(goal: str, inventory: Inventory, recipes: Collection[Recipe]) -> list[Step] | None:
    """Return a shortest way to a goal from these items alone; None where there is none.

    Raises:
        EnvError: more than `MAX_STATES` inventories can be reached.
    """
    book = load_book()
    start = {item: inventory[item] for item in sorted(inventory) if inventory[item]}
    ways: dict[tuple[tuple[str, int], ...], list[Step]] = {tuple(start.items()): []}
    queue = deque([start])
    while queue:
        held = queue.popleft()
        way = ways[tuple(held.items())]
        if held.get(goal):
            return way
        for step in steps_from(held, recipes, book):
            reached = after(held, step)
            key = tuple(reached.items())
            if key not in ways:
                ways[key] = [*way, step]
                queue.append(reached)
        if len(ways) > MAX_STATES:
            raise EnvError(f"TextCraftDuo: {goal} has more than {MAX_STATES} states; this is no task for it.")
    return None


@functools.cache
def goals() -> tuple[int, ...]:
    """Return which of TextCraft's goals are played: those with a short way, by TextCraft's number."""
    book = load_book()
    return tuple(
        number
        for number, goal in enumerate(book.goals)
        if sum(action.startswith("craft") for action in plan(goal, {})) <= MAX_CRAFTS
    )


@functools.cache
def make_task(index: int) -> Task:
    """Return the task of a goal: of many ways to deal items and recipes, the first that needs both crafters.

    Args:
        index: TextCraft's number of the goal; everything random comes from it.

    Raises:
        EnvError: there is none.
    """
    book = load_book()
    goal = book.goals[index]
    rng = np.random.default_rng([index, 20_260])
    items, recipes = _needed(goal, book)
    for _ in range(ATTEMPTS):
        task = _dealt(goal, items, recipes, book, rng)
        try:
            alone = [solve(goal, task.inventories[seat], task.recipes[seat]) for seat in (0, 1)]
            together = solve(goal, joined(*task.inventories), task.all_recipes)
        except EnvError:
            continue
        if together and alone == [None, None]:
            return task._replace(num_crafts=len(together))
    raise EnvError(f"TextCraftDuo: no way was found to deal {goal} so that two crafters need each other.")


def _needed(goal: str, book: RecipeBook) -> tuple[dict[str, int], list[Recipe]]:
    """Return the items that the planner takes for a goal, and the recipes that it uses."""
    items: Counter[str] = Counter()
    recipes: dict[Recipe, None] = {}
    for action in plan(goal, {}):
        if match := _GET.fullmatch(action):
            items[identify(match[2])] += int(match[1])
            continue
        output, given = action.removeprefix("craft ").split(" using ")
        counted = [_COUNTED.fullmatch(part) for part in given.split(", ")]
        pairs = [(identify(match[2]), int(match[1])) for match in counted if match]
        output_match = _COUNTED.fullmatch(output)
        recipe = output_match and book.match(identify(output_match[2]), pairs)
        assert recipe is not None  # the planner's commands are valid
        recipes[recipe] = None
    return dict(items), list(recipes)


def _dealt(goal: str, items: Inventory, recipes: list[Recipe], book: RecipeBook, rng: np.random.Generator) -> Task:
    """Deal what is needed, and some that is not, to two seats."""
    inventories: tuple[dict[str, int], dict[str, int]] = ({}, {})
    known: tuple[list[Recipe], list[Recipe]] = ([], [])
    for item, count in items.items():
        inventories[int(rng.integers(2))][item] = count
    for recipe in recipes:
        known[int(rng.integers(2))].append(recipe)
    related = [recipe for name in items for recipe in book.uses.get(name, ()) if recipe not in recipes]
    base = sorted(book.gettable)
    for seat in (0, 1):
        if related:
            picks = rng.permutation(len(related))[:NUM_OTHERS]
            known[seat].extend(related[k] for k in picks if related[k].output != goal)
        for k in rng.permutation(len(base))[:NUM_OTHERS]:
            if base[k] not in items:
                inventories[seat][base[k]] = int(rng.integers(1, 4))
    shuffled = [tuple(recipes[k] for k in rng.permutation(len(recipes))) for recipes in known]
    return Task(goal, inventories, (shuffled[0], shuffled[1]))


def joined(*inventories: Inventory) -> dict[str, int]:
    """Return the items that crafters hold together."""
    total: Counter[str] = Counter()
    for inventory in inventories:
        total.update(inventory)
    return dict(total)


def next_step(task: Task, inventories: tuple[Inventory, Inventory]) -> Step | None:
    """Return the next recipe of a shortest way that two crafters have together; None where there is none."""
    way = solve(task.goal, joined(*inventories), task.all_recipes)
    return way[0] if way else None
