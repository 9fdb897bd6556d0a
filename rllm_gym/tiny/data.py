"""Training data of the tiny model: expert episodes of TextCraft, played through the token environment.

Only the `train` split is ever played, so that the `eval` split is held out from the tokenizer and the weights alike.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.textcraft.recipes import identify, load_book
from rllm_gym.types import TokenIds

if TYPE_CHECKING:
    from rllm_gym.envs.wrappers import TokenEnv

# Which tasks the data comes from, and how much of it.
MIX = {"depth_1": 0.6, "easy_depth_2": 0.3, "other": 0.1}
EASY_TURNS = 6  # a task of depth 2 is "easy" if the expert solves it in this many turns

PROMPT_WEIGHT = 0.2  # the task's text counts a little: reading it well is most of the work
MAX_TOKENS = 512  # an episode ends with the turn that reaches this

LOOK = "Thought: I should look.\nAction: inventory"
_LISTED_INGREDIENT = re.compile(r"(?:using|,) ([0-9]+) ([^,\n]+)")


@dataclass(frozen=True)
class TrainingEpisode:
    """What one episode teaches.

    Args:
        ids: the token stream, observation 0, action 0, observation 1, ..., up to the last action; int64 [T].
        weights: how much each token counts in the loss: `PROMPT_WEIGHT` for the task, 1 for actions, 0 for the world's
            replies; float32 [T].
        is_mistake: for each turn, whether it was planted.
        item_id: the task.
        seed: the world's seed.
    """

    ids: TokenIds
    weights: npt.NDArray[np.float32]
    is_mistake: tuple[bool, ...]
    item_id: str
    seed: int


def training_world() -> TextCraftEnv:
    """Return the world that is played: the `train` split, and no system prompt, since each token costs time."""
    return TextCraftEnv(split="train", system_prompt="")


def training_items() -> dict[str, list[str]]:
    """Return the items of each part of `MIX`."""
    world = training_world()
    parts: dict[str, list[str]] = {part: [] for part in MIX}
    for item_id in world.item_ids:
        num_turns = len(expert_texts(world, item_id, seed=0))
        category = world.category
        is_easy = category == "depth_2" and num_turns <= EASY_TURNS
        parts[category if category in MIX else "easy_depth_2" if is_easy else "other"].append(item_id)
    return parts


def draw_item(items: dict[str, list[str]], rng: np.random.Generator) -> str:
    """Return an item, of a part that is drawn by `MIX`."""
    part = items[str(rng.choice(list(MIX), p=list(MIX.values())))]
    return part[rng.integers(len(part))]


def expert_texts(world: TextCraftEnv, item_id: str, seed: int) -> list[str]:
    """Play an item as the expert does and return all that it writes."""
    world.reset(seed=seed, options={"item_id": item_id})
    texts = []
    while not world.is_success:
        texts.append(world.expert_action())
        world.step(texts[-1])
    return texts


def mistakes(world: TextCraftEnv, task: str, plan: list[str], turn: int) -> list[list[str]]:
    """Return the plausible wrong turns, by kind: legal, and of no use, so that the plan stays what it was.

    They are: to look at the inventory, to craft the goal before all is there, and to take a basic item that only the
    other recipes of the list ask for.

    Args:
        task: the first observation.
        plan: all that the expert writes in this episode.
        turn: how much of the plan is done.
    """
    book = load_book()
    useful = _useful_items(book.goals[world.index])
    others = sorted(
        f"{count} {name}"
        for count, name in set(_LISTED_INGREDIENT.findall(task))
        if identify(name) in book.gettable and identify(name) not in useful
    )
    too_early = [plan[-1]] if turn < len(plan) - 1 else []
    take = [f"Thought: I need {what}.\nAction: get {what}" for what in others]
    return [kind for kind in ([LOOK], too_early, take) if kind]


def play(env: TokenEnv, item_id: str, rng: np.random.Generator, mistake_rate: float = 0.0) -> TrainingEpisode:
    """Play one episode as the expert, with a mistake planted before each of its turns with a chance.

    Args:
        env: a `training_world` at the token level.
        rng: draws the world's seed, and with it the distracting recipes, and the mistakes.
        mistake_rate: the fraction of all turns that are mistakes, in the mean; below 1.
    """
    world = env.unwrapped
    assert isinstance(world, TextCraftEnv)
    seed = int(rng.integers(1 << 31))
    plan = expert_texts(world, item_id, seed)
    observation, info = env.reset(seed=seed, options={"item_id": item_id})
    task = info["messages"][-1]["content"]
    ids, weights, is_mistake = [observation], [np.full(len(observation), PROMPT_WEIGHT, np.float32)], []
    turn = 0
    while True:
        is_mistake.append(bool(rng.random() < mistake_rate))
        if is_mistake[-1]:
            kinds = mistakes(world, task, plan, turn)
            kind = kinds[rng.integers(len(kinds))]
            text = kind[rng.integers(len(kind))]
        else:
            text, turn = plan[turn], turn + 1
        action = env.encode_action(text)
        observation, _, terminated, _, _ = env.step(action)
        ids.append(action)
        weights.append(np.ones(len(action), np.float32))
        if terminated or sum(map(len, ids)) >= MAX_TOKENS:
            return TrainingEpisode(np.concatenate(ids), np.concatenate(weights), tuple(is_mistake), item_id, seed)
        ids.append(observation)
        weights.append(np.zeros(len(observation), np.float32))


def tokenizer_texts(num_rounds: int = 2) -> Iterator[str]:
    """Yield what the tokenizer learns its words from: expert episodes of every training item, as messages."""
    world = training_world()
    for seed in range(num_rounds):
        for item_id in world.item_ids:
            task, _ = world.reset(seed=seed, options={"item_id": item_id})
            yield f"user\n{task}"
            while not world.is_success:
                text = world.expert_action()
                reply = world.step(text)[0]
                yield f"assistant\n{text}"
                yield f"user\n{reply}"
            yield f"assistant\n{LOOK}"
            yield f"user\n{world.step(LOOK)[0]}"


@functools.cache
def _useful_items(goal: str) -> frozenset[str]:
    """Return all that some way to craft the goal makes use of."""
    names = [goal]
    for name in names:  # grows
        for recipe in load_book().recipes_of(name):
            names += [part.name for part in recipe.ingredients if part.name not in names]
    return frozenset(names)
