"""Expert episodes of the easiest web tasks. They are played once and drawn from often, since a browser is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rllm_gym.envs.base import TextEnv
from rllm_gym.envs.miniwob.env import MiniWoBEnv
from rllm_gym.envs.web.env import WebEnv
from rllm_gym.envs.webarena.embedded import load_tasks
from rllm_gym.envs.webarena.env import WebArenaEnv
from tools.tiny_model.episodes import ExpertEpisode, Plan, play

# MiniWoB: short pages, one to three turns.
MINIWOB_TASKS = (
    "click-test", "click-test-2", "click-test-transfer", "click-button", "click-button-sequence", "click-color",
    "click-tab", "click-option", "click-checkboxes-transfer", "click-collapsible-nodelay", "focus-text", "focus-text-2",
    "enter-text", "enter-text-dynamic", "choose-list",
)  # fmt: skip

# WebArena: templates of the embedded sites that an expert solves in two or three turns, although pages are cut.
WEBARENA_TEMPLATES = (
    "What does the {{product}} cost?",
    "How many products are there in the category {{category}}? Answer with the number only.",
    "Show me {{list}}.",
    "How many orders has {{customer}} placed, without canceled ones? Answer with the number only.",
    "What is the email address of the customer with the phone number {{phone}}?",
    "Show me all orders with the status {{status}}.",
    "How many products are {{state}}? Answer with the number only.",
)

MINIWOB_OBSERVATION_TOKENS = 256  # of the tiny tokenizer
WEBARENA_OBSERVATION_TOKENS = 384  # with fewer the expert must scroll, and does not find some products at all
CHARS_PER_TOKEN = 2.5  # of it, about: it is not there yet when the episodes are played
MAX_CHARS = 3600  # longer episodes are left out, of SciWorld, too
NUM_MINIWOB_ROUNDS = 40
NUM_WEBARENA_ROUNDS = 5
CLICKED_ROLES = ("button", "link", "radio", "checkbox", "tab", "textbox", "heading", "StaticText")


def miniwob_config() -> dict[str, Any]:
    """Return the environment's arguments, here and in the tuned examples of the tiny model."""
    return _config([f"miniwob_{task}" for task in MINIWOB_TASKS], MINIWOB_OBSERVATION_TOKENS)


def webarena_config() -> dict[str, Any]:
    """Return the environment's arguments, here and in the tuned examples of the tiny model."""
    tasks = [task["task_id"] for task in load_tasks() if task["intent_template"] in WEBARENA_TEMPLATES]
    return {"task_set": "embedded", **_config([f"webarena_{number}" for number in tasks], WEBARENA_OBSERVATION_TOKENS)}


def miniwob_episodes(rng: np.random.Generator) -> list[ExpertEpisode]:
    """Play each task with several seeds. A mistake that was planted may be an episode's end."""
    env = MiniWoBEnv(split="train", **miniwob_config())
    return _play_all(env, env.item_ids * NUM_MINIWOB_ROUNDS, rng, Plan(mistake_rate=0.25))


def webarena_episodes(rng: np.random.Generator) -> list[ExpertEpisode]:
    """Play each task with mistakes in several places, and keep the episodes that are short and solved."""
    env = WebArenaEnv(split="train", **webarena_config())
    plan = Plan(mistake_rate=0.15, max_turns=6)
    return _play_all(env, env.item_ids * NUM_WEBARENA_ROUNDS, rng, plan, only_solved=True)


def web_mistakes(env: TextEnv, task: str, reply: str) -> list[str]:
    """Click on another element, or look further down."""
    assert isinstance(env, WebEnv)
    clicks = [
        f"Thought: I try the {node.role} {node.name}.\nAction: click [{node.id}]"
        for node in env.nodes
        if node.role in CLICKED_ROLES and node.name and f"[{node.id}] " in reply
    ]
    return [*clicks, "Thought: I look further down.\nAction: scroll [down]"]


def _config(item_ids: Sequence[str], max_observation_tokens: int) -> dict[str, Any]:
    # Without an instruction, which would be most of an episode.
    return {"item_ids": list(item_ids), "max_observation_tokens": max_observation_tokens, "system_prompt": ""}


def _play_all(
    env: WebEnv, item_ids: Sequence[str], rng: np.random.Generator, plan: Plan, *, only_solved: bool = False
) -> list[ExpertEpisode]:
    env.count_tokens = lambda text: int(len(text) / CHARS_PER_TOKEN)
    episodes = []
    try:
        for item_id in item_ids:
            episode = play(env, item_id, rng, web_mistakes, plan)
            if episode.num_chars <= MAX_CHARS and (env.is_success or not only_solved):
                episodes.append(episode)
    finally:
        env.close()
    return episodes
