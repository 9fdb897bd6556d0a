"""Which episodes of a trajectories folder stay when its disk space is bounded."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

Lines = Callable[[Path], Iterable[tuple[int, bytes]]]


@dataclass(frozen=True)
class Keep:
    """An episode stays that is one of the newest, one of its task's best or worst, or of a share of the rest.

    A task is an environment's item, in training or in the evaluation of a split. Which of the rest stay is decided by
    their names, so that every look at a folder comes to the same.

    Args:
        newest: of all.
        best: of each task, by the return; of equal ones the newer.
        worst: of each task, likewise.
        share: of what is left, between 0 and 1.
    """

    newest: int = 1000
    best: int = 1
    worst: int = 1
    share: float = 0.0

    def choose(self, shards: Iterable[Path], read_whole_lines: Lines) -> set[tuple[str, int]]:
        """Return (name of the shard, line number) of the records that stay, of shards in the order of writing.

        All records of an episode, one of each agent, stay or go together; their returns are added.
        """
        places: dict[str, list[tuple[str, int]]] = {}
        returns: dict[str, float] = defaultdict(float)
        tasks: dict[str, list[str]] = defaultdict(list)
        for shard in shards:
            for number, line in read_whole_lines(shard):
                record = from_json(line)
                name = record["episode_id"]
                if name not in places:
                    tasks[_task_of(record)].append(name)
                places.setdefault(name, []).append((shard.name, number))
                returns[name] += sum(turn["reward"] for turn in record["turns"])
        newest = list(places)[-self.newest :] if self.newest else []
        stay = {*newest, *self._extremes(tasks.values(), returns)}
        stay |= {name for name in places if zlib.crc32(name.encode()) < self.share * 2**32}
        return {place for name in stay for place in places[name]}

    def _extremes(self, tasks: Iterable[list[str]], returns: dict[str, float]) -> Iterator[str]:
        for names in tasks:
            newer_first = list(reversed(names))
            yield from sorted(newer_first, key=lambda name: -returns[name])[: self.best]
            yield from sorted(newer_first, key=lambda name: returns[name])[: self.worst]


def _task_of(record: dict[str, Any]) -> str:
    of_evaluation = record.get("split") if record.get("is_evaluation") else None
    return repr((record["env_id"], record.get("item_id"), of_evaluation))
