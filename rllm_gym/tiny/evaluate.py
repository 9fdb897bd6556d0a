"""How often a model solves TextCraft, sampled: `python -m rllm_gym.tiny.evaluate [MODEL]`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.rollout.engines import engine_class
from rllm_gym.tiny.data import EASY_TURNS, expert_texts
from rllm_gym.types import SamplingParams, TaskGroup

if TYPE_CHECKING:
    from rllm_gym.types import Engine

HORIZON = 6
MAX_NEW_TOKENS = 48
MAX_MODEL_LEN = 1024
NUM_ENVS = 64

# Name of a task set: split, depth, whether easy ones only, episodes of each task.
TASK_SETS = {
    "depth 1, train": ("train", 1, False, 4),
    "depth 1, eval": ("eval", 1, False, 8),
    "easy depth 2, train": ("train", 2, True, 1),
    "easy depth 2, eval": ("eval", 2, True, 4),
    "depth 2, train": ("train", 2, False, 1),
    "depth 2, eval": ("eval", 2, False, 4),
}


@dataclass(frozen=True)
class Score:
    """How a model did on one set of tasks."""

    task_set: str
    num_tasks: int
    num_episodes: int
    success_rate: float
    num_turns_mean: float
    sampled_tokens_mean: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.task_set}: success {self.success_rate:.3f} over {self.num_episodes} episodes of {self.num_tasks} "
            f"tasks, {self.num_turns_mean:.2f} turns and {self.sampled_tokens_mean:.1f} sampled tokens an episode, "
            f"{self.seconds:.1f} s"
        )


def make_engine(model: str | Path, name: str = "vllm") -> Engine:
    """Return an engine that holds what an evaluation needs."""
    options = {"kv_cache_memory_bytes": 1 << 28} if name == "vllm" else {}
    return engine_class(name)(str(model), max_model_len=MAX_MODEL_LEN, max_num_seqs=NUM_ENVS, **options)  # type: ignore[call-arg]


def task_items(task_set: str) -> list[str]:
    """Return the items of a set of `TASK_SETS`."""
    split, depth, is_easy, _ = TASK_SETS[task_set]
    world = TextCraftEnv(split=split, depth=depth)
    return [i for i in world.item_ids if not is_easy or len(expert_texts(world, i, seed=0)) <= EASY_TURNS]


def evaluate(
    engine: Engine,
    model: str | Path,
    task_set: str,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    max_tasks: int | None = None,
    horizon: int = HORIZON,
) -> Score:
    """Play each task of a set, all with fixed seeds, without a system prompt.

    Args:
        model: the folder of the tokenizer.
        temperature: 0 is greedy.
        max_tasks: play evenly spread ones only.
    """
    from rllm_gym.envs.wrappers import TokenEnv
    from rllm_gym.rollout.loop import RolloutLoop

    items = task_items(task_set)
    if max_tasks is not None:
        items = items[:: -(-len(items) // max_tasks)]
    size = TASK_SETS[task_set][3]
    start_s = time.monotonic()
    loop = RolloutLoop(
        lambda index: TokenEnv(TextCraftEnv(split="all", system_prompt=""), tokenizer=str(model)),
        {"policy": engine},
        module_of=lambda agent_id, episode: "policy",
        num_envs=NUM_ENVS,
        params=SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=temperature),
        max_model_len=MAX_MODEL_LEN,
    )
    try:
        loop.submit(
            [TaskGroup((seed, 0, index), item, size) for index, item in enumerate(items)], max_episode_steps=horizon
        )
        groups = list(loop.finished_groups())
    finally:
        loop.close()
    if failed := [episode for group in groups for episode in group.failed]:
        raise RuntimeError(f"evaluate: no episode may fail; got {len(failed)} failures, first: {failed[0].error}")
    episodes = [episode for group in groups for episode in group.episodes]
    return Score(
        task_set=task_set,
        num_tasks=len(items),
        num_episodes=len(episodes),
        success_rate=sum(episode.info["is_success"] for episode in episodes) / len(episodes),
        num_turns_mean=sum(episode.num_env_steps for episode in episodes) / len(episodes),
        sampled_tokens_mean=sum(s.num_sampled_tokens for e in episodes for s in e.streams.values()) / len(episodes),
        seconds=time.monotonic() - start_s,
    )


def evaluate_all(
    model: str | Path, *, engine: str = "vllm", temperature: float = 1.0, horizon: int = HORIZON, seed: int = 0
) -> list[Score]:
    """Evaluate on every set of `TASK_SETS`, saying each result as it comes."""
    sampler = make_engine(model, engine)
    try:
        scores = []
        for task_set in TASK_SETS:
            scores.append(evaluate(sampler, model, task_set, temperature=temperature, horizon=horizon, seed=seed))
            print(scores[-1], flush=True)
        return scores
    finally:
        sampler.close()


def main(
    model: Annotated[Path, typer.Argument(help="Model folder.")] = TINY_MODEL_DIR,
    engine: Annotated[str, typer.Option(help="vllm or transformers.")] = "vllm",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    horizon: Annotated[int, typer.Option(help="Turns an episode may take.")] = HORIZON,
    seed: Annotated[int, typer.Option(help="Of worlds and samples.")] = 0,
) -> None:
    """Measure how often a model solves TextCraft."""
    evaluate_all(model, engine=engine, temperature=temperature, horizon=horizon, seed=seed)


if __name__ == "__main__":
    typer.run(main)
