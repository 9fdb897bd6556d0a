"""Writes the page with its episodes into one file, which opens without a server and without a network."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from rllm_gym.errors import ConfigError, StorageError, TrajectoryError
from rllm_gym.viewer.episode_index import Index
from rllm_gym.viewer.page import self_contained_page
from rllm_gym.viewer.rows import Row


def export(index: Index, file: Path, *, max_episodes: int) -> tuple[int, int]:
    """Write the page of an index that was refreshed; return how many records it holds and how many there are.

    Of more than `max_episodes` whole groups are taken, evenly over the runs.

    Raises:
        ConfigError: there is no episode, or the file cannot be written.
    """
    shown = [number for number in range(len(index.rows)) if number not in index.hidden]
    if not shown:
        raise ConfigError(f"view: --export needs episodes; got none in {', '.join(map(str, index.paths))}.")
    chosen = choose([index.rows[number] for number in shown], max_episodes)
    numbers = [shown[k] for k in chosen]
    state = json.loads(index.state(0, index.generation))
    state["rows"] = [state["rows"][number] for number in numbers]
    state["hidden"] = []
    state["numLeftOut"] = len(shown) - len(numbers)
    # One dictionary of token texts for all episodes: it is most of an episode's size otherwise.
    texts: dict[str, dict[str, str]] = {}
    episodes = {}
    for number in numbers:
        try:
            episode = json.loads(index.episode(number))
        except TrajectoryError:  # its row, which was read before, will say so
            continue
        model = str(index.rows[number].trial)
        texts.setdefault(model, {}).update(episode.pop("texts"))
        episode["textsOf"] = model
        episodes[episode["id"]] = episode
    data = {"state": state, "episodes": episodes, "texts": texts, "curves": index.curves()}
    page = self_contained_page(gzip.compress(json.dumps(data, separators=(",", ":")).encode()))
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"view: --export cannot write {str(file)!r}: {error.strerror}.") from error
    return len(numbers), len(shown)


def choose(rows: Sequence[Row], most: int) -> list[int]:
    """Return which rows to keep, at most so many: whole groups, evenly over all of them, in their order.

    A single group that is larger than that is cut.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for k, row in enumerate(rows):
        key = (row.trial, row.env, row.split, row.group, row.evaluation, row.step) if row.group else (row.id,)
        groups.setdefault(key, []).append(k)
    found = list(groups.values())
    # The order of a van der Corput sequence visits the groups evenly, wherever one stops.
    order = sorted(range(len(found)), key=lambda k: int(f"{k:020b}"[::-1], 2))
    kept: list[int] = []
    for k in order:
        if len(kept) + len(found[k]) <= most:
            kept += found[k]
    return sorted(kept or found[0][:most])
