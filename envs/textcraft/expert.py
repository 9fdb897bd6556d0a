"""A planner for TextCraft: from any inventory, the commands that end with the goal crafted."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from rllm_gym.envs.textcraft.recipes import Recipe, RecipeBook, craft_text, display, load_book


def plan(goal: str, inventory: Mapping[str, int]) -> list[str]:
    """Return the actions ("get 2 oak logs", "craft ...") that craft `goal` once more from this inventory.

    Depth first: an ingredient is set aside from the stock, or gathered, before the next one is looked at, so that no
    two ingredients count on the same items. What is gathered is gathered at once ("get 6", not three times "get 2").
    """
    planner = _Planner(load_book(), inventory)
    planner.craft(goal, 1)
    return planner.actions


class _Planner:
    def __init__(self, book: RecipeBook, inventory: Mapping[str, int]) -> None:
        self.book = book
        self.stock = dict(inventory)
        self.actions: list[str] = []

    def craft(self, item: str, count: int) -> int:
        """Craft at least `count` of an item by the recipe that is cheapest now, and return how many that makes."""
        recipe = min(self.book.by_item[item], key=lambda recipe: _recipe_cost(recipe, count, self.stock))
        times = math.ceil(count / recipe.count)
        names = []
        for part in recipe.ingredients:
            names.append(self.choose(part.name, times * part.count))
            self.take(names[-1], times * part.count)
        self.actions += [craft_text(recipe, names)] * times
        return times * recipe.count

    def choose(self, name: str, count: int) -> str:
        """Return the item to use for an ingredient: one that is in stock, or else the cheapest."""
        members = self.book.members.get(name, (name,))
        return min(members, key=lambda item: _cost_now(item, count, self.stock))

    def take(self, item: str, count: int) -> None:
        """Set `count` of an item aside, after gathering what is missing."""
        held = self.stock.pop(item, 0)
        if held < count and item in self.book.by_item:
            held += self.craft(item, count - held)
        elif held < count:
            self.actions.append(f"get {count - held} {display(item)}")
            held = count
        self.stock[item] = self.stock.get(item, 0) + held - count


def _cost_now(name: str, count: int, stock: Mapping[str, int]) -> int:
    """Return 0 where `count` of an item, or of one member of a tag, is in stock, and else `_cost`."""
    members = load_book().members.get(name, (name,))
    return 0 if any(stock.get(item, 0) >= count for item in members) else _cost(name, count)


def _recipe_cost(recipe: Recipe, count: int, stock: Mapping[str, int]) -> int:
    """Return how many actions it takes to make `count` by a recipe."""
    times = math.ceil(count / recipe.count)
    return times + sum(_cost_now(part.name, times * part.count, stock) for part in recipe.ingredients)


@functools.cache
def _cost(name: str, count: int) -> int:
    """Return how many actions it takes to gather `count` of an item or of a tag's cheapest member from nothing."""
    book = load_book()
    if name in book.members:
        return min(_cost(item, count) for item in book.members[name])
    if name in book.by_item:
        return min(_recipe_cost(recipe, count, {}) for recipe in book.by_item[name])
    return 1
