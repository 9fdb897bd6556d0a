"""Pairs of a better and a worse answer: from JSON, or the best and the worst episode of each task in trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rllm_gym.data.conversations import Dialogue, parse_dialogue, read_json_objects
from rllm_gym.data.reader import read_stored
from rllm_gym.data.records import EpisodeRecord
from rllm_gym.errors import TrajectoryError
from rllm_gym.ties import reaches


def read_dialogue_pairs(path: str | Path) -> Iterator[tuple[Dialogue, Dialogue]]:
    """Return a lazy iterator over the (chosen, rejected) conversations of a JSON array or of JSON Lines.

    Each is `{"chosen": messages, "rejected": messages}`, with messages as in `read_dialogues`; what both begin with may
    stand once under `prompt`, as messages or as the user's text.

    Raises:
        FileNotFoundError: there is no such file.
        TrajectoryError: while iterating: names the record and what is wrong with it.
    """
    for number, record in enumerate(read_json_objects(path)):
        who = f"{path}: record {number}"
        chosen, rejected = (_with_prompt(record, side, who) for side in ("chosen", "rejected"))
        if _opening(chosen) != _opening(rejected):
            raise TrajectoryError(f"{who}: chosen and rejected must answer the same first message. Leave the pair out.")
        yield chosen, rejected


@dataclass
class _Extremes:
    """The best and the worst record of a task, by their places in reading order."""

    best: int
    worst: int
    best_return: float
    worst_return: float
    size: float  # the largest of the rewards that a return sums up, see `rllm_gym.ties`

    def add(self, place: int, total_reward: float, size: float) -> None:
        self.size = max(self.size, size)
        if not reaches(self.best_return, total_reward, self.size):
            self.best, self.best_return = place, total_reward
        if not reaches(total_reward, self.worst_return, self.size):
            self.worst, self.worst_return = place, total_reward

    def is_pair(self, reward_gap: float, expert_threshold: float | None) -> bool:
        if reaches(self.worst_return, self.best_return, self.size):
            return False
        is_good = expert_threshold is None or reaches(self.best_return, expert_threshold, self.size)
        return is_good and bool(reaches(self.best_return - self.worst_return, reward_gap, 2 * self.size))


def best_and_worst(
    path: str | Path,
    *,
    within: Literal["task", "group"] = "task",
    reward_gap: float = 0.0,
    expert_threshold: float | None = None,
) -> list[tuple[int, int]]:
    """Return which records make pairs: the best and the worst of each task, by their places in reading order.

    Tasks whose episodes all have the same return make none; episodes that failed, in which nobody acted, or that were
    played to evaluate, do not count. Of ties the first is taken. Only places and returns are kept in memory.

    Args:
        path: see `read_episodes`.
        within: `task` compares all episodes that begin with the same observation; `group` only those that were sampled
            together, by the same policy.
        reward_gap: how much better the best one must be than the worst, at least.
        expert_threshold: the least return of a best one; None asks for none.
    """
    found: dict[tuple[Any, ...], _Extremes] = {}
    for place, (shard, record) in enumerate(read_stored(path)):
        if record.error is not None or record.is_evaluation or not record.turns:
            continue
        key: tuple[Any, ...] = task_key(record)
        if within == "group":
            key += (str(shard.parent), *record.group)
        total_reward, size = record.total_reward, record.reward_size
        found.setdefault(key, _Extremes(place, place, total_reward, total_reward, size)).add(place, total_reward, size)
    return [(e.best, e.worst) for e in found.values() if e.is_pair(reward_gap, expert_threshold)]


def task_key(record: EpisodeRecord) -> tuple[Any, ...]:
    """Return the key that two episodes of one task share: the environment, the task, and the first observation."""
    return record.env_id, record.item_id, record.agent_id, hash(tuple(record.turns[0].observation_ids))


def _with_prompt(record: dict[str, Any], side: str, who: str) -> Dialogue:
    answer, prompt = record.get(side), record.get("prompt", [])
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    if not isinstance(answer, list) or not isinstance(prompt, list):
        raise TrajectoryError(
            f"{who}: must hold the messages of both answers under chosen and rejected; got {answer!r:.80} for {side}."
        )
    return parse_dialogue([*prompt, *answer], f"{who}, {side}")


def _opening(dialogue: Dialogue) -> tuple[Any, ...]:
    """Return the messages up to the first answer."""
    return dialogue.messages[: 2 if dialogue.messages[0]["role"] == "system" else 1]
