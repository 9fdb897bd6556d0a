"""Where the tiny model's training episodes come from: the environments, and how much of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rllm_gym.envs.babyai.env import BabyAIEnv
from rllm_gym.envs.babyai.levels import LEVELS
from rllm_gym.envs.base import TextEnv
from rllm_gym.envs.miniwob.env import MiniWoBEnv
from rllm_gym.envs.sciworld.env import SciWorldEnv
from rllm_gym.envs.sciworld.tasks import load_items
from rllm_gym.envs.searchqa.env import SearchQAEnv
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.webarena.env import WebArenaEnv
from tools.tiny_model.episodes import ExpertEpisode, Mistakes, Plan, play
from tools.tiny_model.mistakes import babyai_mistakes, sciworld_mistakes, searchqa_mistakes, textcraft_mistakes
from tools.tiny_model.renaming import rename_items, rename_proper_names
from tools.tiny_model.web_tasks import MAX_CHARS, miniwob_episodes, webarena_episodes

ENVIRONMENTS: dict[str, type[TextEnv]] = {
    "textcraft": TextCraftEnv, "babyai": BabyAIEnv, "searchqa": SearchQAEnv, "sciworld": SciWorldEnv,
    "miniwob": MiniWoBEnv, "webarena": WebArenaEnv,
}  # fmt: skip

# How many of the episodes are of each environment.
ENV_SHARES = {
    "textcraft": 0.72, "babyai": 0.07, "searchqa": 0.08, "sciworld": 0.04, "miniwob": 0.05, "webarena": 0.04,
}  # fmt: skip
WEB_ENVIRONMENTS = ("miniwob", "webarena")

# TextCraft: how many of its episodes are of each part.
TEXTCRAFT_SHARES = {"depth_1": 0.4, "easy_depth_2": 0.45, "other": 0.15}
EASY_TURNS = 4  # a task of depth 2 is "easy" if the expert solves it in this many turns

# BabyAI: the levels whose goal is in sight or near.
BABYAI_LEVELS = tuple(
    LEVELS.index(f"BabyAI-{name}-v0" if name != "GoToObjS6" else "BabyAI-GoToObjS6-v1")
    for name in (
        "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObjS6", "GoToLocalS8N7", "GoToRedBlueBall",
        "GoToDoor", "OpenRedDoor", "OpenDoorLoc", "PickupLoc", "PickupDistDebug", "ActionObjDoor",
    )
)  # fmt: skip

# SciWorld: the tasks with the shortest gold paths, and how many episodes are played; the simulator is slow.
SCIWORLD_TASKS = ("lifespan-longest-lived", "lifespan-shortest-lived", "find-non-living-thing", "find-living-thing")
NUM_SCIWORLD_EPISODES = 48


@dataclass
class Sources:
    """Draws episodes of all environments from their `train` splits.

    Args:
        shares: how many of the episodes are of each environment.

    Attributes:
        textcraft_parts: the training items of each part of `TEXTCRAFT_SHARES`.
    """

    shares: dict[str, float] = field(default_factory=lambda: dict(ENV_SHARES))

    def __post_init__(self) -> None:
        self._envs: dict[str, TextEnv] = {}
        self.textcraft_parts = textcraft_parts()
        self._pools: dict[str, list[ExpertEpisode]] = {}

    def draw(self, rng: np.random.Generator, plan: Plan, renamed_rate: float, web_rate: float = 0.0) -> ExpertEpisode:
        """Return an episode; it depends on nothing but the arguments.

        Args:
            renamed_rate: how many of TextCraft's and SearchQA's episodes are under other names.
            web_rate: how many of the episodes are drawn from the web's environments alone.
        """
        shares = self.shares
        if web_rate and rng.random() < web_rate:
            shares = {name: share for name, share in shares.items() if name in WEB_ENVIRONMENTS} or shares
        weights = np.array(list(shares.values()))
        while True:
            name = str(rng.choice(list(shares), p=weights / weights.sum()))
            episode = self.draw_from(name, rng, plan, renamed_rate)
            if episode.num_chars <= plan.max_chars or name in self._pools:
                return episode

    def draw_from(self, name: str, rng: np.random.Generator, plan: Plan, renamed_rate: float = 0.0) -> ExpertEpisode:
        """Return an episode of one environment, however long."""
        draws = {"textcraft": self._draw_textcraft, "babyai": self._draw_babyai, "searchqa": self._draw_searchqa}
        return draws[name](rng, plan, renamed_rate) if name in draws else self._draw_from_pool(name, rng)

    def texts(self, rng: np.random.Generator, num: int) -> Iterator[str]:
        """Yield what the tokenizer learns its words from: `num` episodes of each environment, under true names."""
        for name in self.shares:
            for _ in range(num):
                episode = self.draw_from(name, rng, Plan(0.1))
                yield from (f"{message['role']}\n{message['content']}" for message in episode.messages)
        yield from (ENVIRONMENTS[name].default_system_prompt for name in self.shares)

    def close(self) -> None:
        for env in self._envs.values():
            env.close()

    def _env(self, cls: type[TextEnv]) -> TextEnv:
        if cls.name not in self._envs:
            self._envs[cls.name] = cls(split="train")
        return self._envs[cls.name]

    def _draw_textcraft(self, rng: np.random.Generator, plan: Plan, renamed_rate: float) -> ExpertEpisode:
        part = str(rng.choice(list(TEXTCRAFT_SHARES), p=list(TEXTCRAFT_SHARES.values())))
        items = self.textcraft_parts[part]
        episode = self._play(TextCraftEnv, items[rng.integers(len(items))], rng, textcraft_mistakes, plan.of_part(part))
        if rng.random() < renamed_rate:
            episode = replace(episode, messages=rename_items(episode.messages, rng))
        return episode

    def _draw_babyai(self, rng: np.random.Generator, plan: Plan, renamed_rate: float) -> ExpertEpisode:
        env = self._env(BabyAIEnv)
        level = BABYAI_LEVELS[rng.integers(len(BABYAI_LEVELS))]
        num_seeds = len(env.item_ids) // len(LEVELS)
        item_id = f"babyai_{level + len(LEVELS) * rng.integers(num_seeds)}"
        return self._play(BabyAIEnv, item_id, rng, babyai_mistakes, plan)

    def _draw_searchqa(self, rng: np.random.Generator, plan: Plan, renamed_rate: float) -> ExpertEpisode:
        items = self._env(SearchQAEnv).item_ids
        episode = self._play(SearchQAEnv, items[rng.integers(len(items))], rng, searchqa_mistakes, plan)
        if rng.random() < renamed_rate:
            episode = replace(episode, messages=rename_proper_names(episode.messages, rng))
        return episode

    def _draw_from_pool(self, name: str, rng: np.random.Generator) -> ExpertEpisode:
        """Return one of the episodes that all draws choose from: these environments are slow, and are played once.

        They are played with a generator of their own, whatever the plan.
        """
        if name not in self._pools:
            play_all = {"sciworld": sciworld_episodes, "miniwob": miniwob_episodes, "webarena": webarena_episodes}
            played = play_all[name](np.random.default_rng(0))
            self._pools[name] = [episode for episode in played if episode.num_chars <= MAX_CHARS]
        return self._pools[name][rng.integers(len(self._pools[name]))]

    def _play(
        self, cls: type[TextEnv], item_id: str, rng: np.random.Generator, mistakes: Mistakes, plan: Plan
    ) -> ExpertEpisode:
        return play(self._env(cls), item_id, rng, mistakes, plan)


def sciworld_episodes(rng: np.random.Generator) -> list[ExpertEpisode]:
    """Play the shortest tasks by turns."""
    items, plan = load_items(), Plan(0.1, 0.0, 0.2, max_turns=16)
    env = SciWorldEnv(split="train")
    try:
        parts = [
            [i for i in env.item_ids if items[int(i.rpartition("_")[2])][0].name == task] for task in SCIWORLD_TASKS
        ]
        chosen = [parts[number % len(parts)] for number in range(NUM_SCIWORLD_EPISODES)]
        return [play(env, part[rng.integers(len(part))], rng, sciworld_mistakes, plan) for part in chosen]
    finally:
        env.close()


def num_expert_turns(env: TextEnv, item_id: str, seed: int = 0) -> int:
    """Return how many turns the expert takes."""
    env.reset(seed=seed, options={"item_id": item_id})
    num_turns = 0
    while not env.is_success:
        env.step(env.expert_action())
        num_turns += 1
    return num_turns


def textcraft_parts() -> dict[str, list[str]]:
    """Return the training items of each part of `TEXTCRAFT_SHARES`."""
    env = TextCraftEnv(split="train")
    parts: dict[str, list[str]] = {part: [] for part in TEXTCRAFT_SHARES}
    for item_id in env.item_ids:
        num_turns = num_expert_turns(env, item_id)
        category = env.category
        is_easy = category == "depth_2" and num_turns <= EASY_TURNS
        parts[category if category in parts else "easy_depth_2" if is_easy else "other"].append(item_id)
    return parts
