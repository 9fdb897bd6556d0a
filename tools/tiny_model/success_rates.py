"""Measures success on the environments' simpler tasks: `python -m tools.tiny_model.success_rates [MODEL]`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rllm_gym.envs.babyai.env import BabyAIEnv
from rllm_gym.envs.babyai.levels import LEVELS
from rllm_gym.envs.base import TextEnv
from rllm_gym.envs.miniwob.env import MiniWoBEnv
from rllm_gym.envs.sciworld.env import SciWorldEnv
from rllm_gym.envs.sciworld.tasks import load_items
from rllm_gym.envs.searchqa.env import SearchQAEnv
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.webarena.env import WebArenaEnv
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.rollout.engines import engine_maker
from rllm_gym.types import SamplingParams, TaskGroup
from tools.tiny_model.sources import BABYAI_LEVELS, EASY_TURNS, SCIWORLD_TASKS, num_expert_turns
from tools.tiny_model.web_tasks import miniwob_config, webarena_config

if TYPE_CHECKING:
    from rllm_gym.types import Engine

MAX_NEW_TOKENS = 64
MAX_MODEL_LEN = 3072
MAX_NUM_ENVS = 32


@dataclass(frozen=True)
class TaskSet:
    """Tasks that are reported together.

    Args:
        environment: the environment, played without a system prompt.
        split: "train" or "eval".
        is_member: chooses among the items of the split; it gets an environment of that split and an item id.
        horizon: turns an episode may take.
        group_size: episodes of each task.
        max_tasks: play evenly spread ones only.
        config: makes further arguments of the environment.
        num_envs: environments that run at once.
    """

    env: type[TextEnv]
    split: str
    is_member: Callable[[TextEnv, str], bool]
    horizon: int = 6
    group_size: int = 1
    max_tasks: int = 1000
    config: Callable[[], dict[str, Any]] = dict
    num_envs: int = MAX_NUM_ENVS

    def make_env(self, split: str) -> TextEnv:
        return self.env(split=split, **{"system_prompt": "", **self.config()})

    def item_ids(self) -> list[str]:
        env = self.make_env(self.split)
        try:
            items = [item_id for item_id in env.item_ids if self.is_member(env, item_id)]
        finally:
            env.close()
        return items[:: -(-len(items) // self.max_tasks)]


def _is_depth(depth: int, max_turns: int = 1000) -> Callable[[TextEnv, str], bool]:
    def is_member(env: TextEnv, item_id: str) -> bool:
        env.reset(options={"item_id": item_id})
        return env.category == f"depth_{depth}" and num_expert_turns(env, item_id) <= max_turns

    return is_member


def _is_category(category: str) -> Callable[[TextEnv, str], bool]:
    def is_member(env: TextEnv, item_id: str) -> bool:
        env.reset(options={"item_id": item_id})
        return env.category == category

    return is_member


def _is_trained_level(env: TextEnv, item_id: str) -> bool:
    return int(item_id.rpartition("_")[2]) % len(LEVELS) in BABYAI_LEVELS


def _is_trained_task(env: TextEnv, item_id: str) -> bool:
    return load_items()[int(item_id.rpartition("_")[2])][0].name in SCIWORLD_TASKS


def _is_any(env: TextEnv, item_id: str) -> bool:
    return True


TASK_SETS = {
    "TextCraft depth 1, train": TaskSet(TextCraftEnv, "train", _is_depth(1), group_size=2),
    "TextCraft depth 1, eval": TaskSet(TextCraftEnv, "eval", _is_depth(1), group_size=6),
    "TextCraft easy depth 2, train": TaskSet(TextCraftEnv, "train", _is_depth(2, EASY_TURNS), group_size=2),
    "TextCraft easy depth 2, eval": TaskSet(TextCraftEnv, "eval", _is_depth(2, EASY_TURNS), group_size=6),
    "TextCraft depth 2, eval": TaskSet(TextCraftEnv, "eval", _is_depth(2), horizon=12, group_size=4),
    "BabyAI 12 simple levels, eval": TaskSet(BabyAIEnv, "eval", _is_trained_level, group_size=4),
    "SearchQA one hop, eval": TaskSet(SearchQAEnv, "eval", _is_category("one_hop"), group_size=1, max_tasks=100),
    "SearchQA two hops, eval": TaskSet(SearchQAEnv, "eval", _is_category("two_hop"), group_size=1, max_tasks=100),
    "SciWorld 4 short tasks, eval": TaskSet(SciWorldEnv, "eval", _is_trained_task, horizon=12, max_tasks=40),
    "MiniWoB 15 easy tasks, train": TaskSet(
        MiniWoBEnv, "train", _is_any, group_size=4, config=miniwob_config, num_envs=8
    ),
    "WebArena easy templates, train": TaskSet(WebArenaEnv, "train", _is_any, config=webarena_config, num_envs=8),
}


@dataclass(frozen=True)
class Score:
    """A model's results on one set of tasks."""

    task_set: str
    num_tasks: int
    num_episodes: int
    horizon: int
    success_rate: float
    return_mean: float
    num_turns_mean: float
    sampled_tokens_mean: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.task_set}: success {self.success_rate:.3f}, return {self.return_mean:.3f} over {self.num_episodes} "
            f"episodes of {self.num_tasks} tasks, {self.num_turns_mean:.2f} of {self.horizon} turns and "
            f"{self.sampled_tokens_mean:.1f} sampled tokens an episode, {self.seconds:.1f} s"
        )


def make_engine(model: str | Path, name: str = "vllm") -> Engine:
    """Return an engine that holds what an evaluation needs."""
    options = {"kv_cache_memory_bytes": 1 << 29} if name == "vllm" else {}
    return engine_maker(name)(
        str(model), dtype="float32", max_model_len=MAX_MODEL_LEN, max_num_seqs=MAX_NUM_ENVS, options=options
    )


def evaluate(
    engine: Engine,
    model: str | Path,
    task_set: str,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    max_tasks: int | None = None,
    horizon: int | None = None,
) -> Score:
    """Play each task of a set, all with fixed seeds, without a system prompt.

    Args:
        model: the folder of the tokenizer.
        temperature: 0 is greedy.
        max_tasks: play evenly spread ones only.
        horizon: replaces the set's own.

    Raises:
        RuntimeError: an episode failed.
    """
    from rllm_gym.envs.wrappers import TokenEnv
    from rllm_gym.rollout.loop import RolloutLoop

    tasks = TASK_SETS[task_set]
    items = tasks.item_ids()
    if max_tasks is not None:
        items = items[:: -(-len(items) // max_tasks)]
    turns = horizon or tasks.horizon
    start_s = time.monotonic()
    loop = RolloutLoop(
        lambda index: TokenEnv(tasks.make_env("all"), tokenizer=str(model)),
        {"policy": engine},
        module_of=lambda agent_id, episode: "policy",
        num_envs=tasks.num_envs,
        params=SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=temperature),
        max_model_len=MAX_MODEL_LEN,
    )
    try:
        loop.submit(
            [TaskGroup((seed, 0, index), item, tasks.group_size) for index, item in enumerate(items)],
            max_episode_steps=turns,
        )
        groups = list(loop.finished_groups())
    finally:
        loop.close()
    if failed := [episode for group in groups for episode in group.failed]:
        raise RuntimeError(f"evaluate: no episode may fail; got {len(failed)} failures, first: {failed[0].error}")
    episodes = [episode for group in groups for episode in group.episodes]
    num = len(episodes)
    streams = [stream for episode in episodes for stream in episode.streams.values()]
    return Score(
        task_set=task_set,
        num_tasks=len(items),
        num_episodes=num,
        horizon=turns,
        success_rate=sum(episode.info["is_success"] for episode in episodes) / num,
        return_mean=sum(stream.total_reward for stream in streams) / num,
        num_turns_mean=sum(episode.num_env_steps for episode in episodes) / num,
        sampled_tokens_mean=sum(stream.num_sampled_tokens for stream in streams) / num,
        seconds=time.monotonic() - start_s,
    )


def pooled_success(scores: Sequence[Score]) -> float:
    """Return the success rate on TextCraft's depth 1 and easy depth 2 together, each task counting 1."""
    pool = [score for score in scores if score.task_set.startswith(("TextCraft depth 1", "TextCraft easy depth 2"))]
    return sum(score.success_rate * score.num_tasks for score in pool) / sum(score.num_tasks for score in pool)


def evaluate_all(
    model: str | Path, *, engine: str = "vllm", temperature: float = 1.0, seed: int = 0, env: str = ""
) -> list[Score]:
    """Evaluate on every set of `TASK_SETS` whose name begins with `environment`, saying each result as it comes."""
    sampler = make_engine(model, engine)
    try:
        scores = []
        for task_set in TASK_SETS:
            if task_set.startswith(env):
                scores.append(evaluate(sampler, model, task_set, temperature=temperature, seed=seed))
                print(scores[-1], flush=True)
        if "TextCraft".startswith(env) or env.startswith("TextCraft"):
            print(f"TextCraft depth 1 and easy depth 2 together: {pooled_success(scores):.3f}", flush=True)
        return scores
    finally:
        sampler.close()


def main(
    model: Annotated[Path, typer.Argument(help="Model folder.")] = TINY_MODEL_DIR,
    engine: Annotated[str, typer.Option(help="vllm or transformers.")] = "vllm",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of environments and samples.")] = 0,
    env: Annotated[str, typer.Option(help="Only the task sets that begin with this.")] = "",
) -> None:
    """Measure how often a model solves tasks."""
    evaluate_all(model, engine=engine, temperature=temperature, seed=seed, env=env)


if __name__ == "__main__":
    typer.run(main)
