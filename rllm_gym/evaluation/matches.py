"""Win rates of policies against each other, in a game for two."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.data import EpisodeRecord, read_episodes
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.export import export_policy
from rllm_gym.evaluation.policy import find_policy
from rllm_gym.evaluation.run import TRAJECTORIES, evaluate
from rllm_gym.evaluation.statistics import success_interval
from rllm_gym.registration import make_multi_agent

MATRIX = "matrix.json"
PLAYERS = ["player_0", "player_1"]


def win_rates(
    policies: Sequence[str | Path],
    env: str,
    *,
    env_config: Mapping[str, Any] | None = None,
    split: str = "eval",
    num_tasks: int = 50,
    seed: int = 10_000,
    horizon: int = 100,
    config: Mapping[str, Any] | None = None,
    out: str | Path,
) -> dict[str, Any]:
    """Let every two policies play each other, each task once from either seat.

        win_rates(["runs/early", "runs/late"], "TextArenaDuel-v0", env_config={"game": "Nim-v0"}, out="results/nim")

    Args:
        policies: two or more of one tokenizer: checkpoints, runs (their newest checkpoints) or Hugging Face models.
        env: an environment with two seats that players change, such as KuhnPoker-v0 and TextArenaDuel-v0.
        env_config: its keywords.
        split: of its tasks.
        num_tasks: that each pair plays; two games each.
        seed: of the tasks and of the sampling.
        horizon: in steps of the environment; a game that it ends is drawn.
        config: options of the sampler.
        out: an empty folder for every game, and for `matrix.json`.

    Returns:
        `policies`; `win_rate`, a matrix in which row i has what share of games policy i won against each other one
        (None of itself; the rest of a pair is draws); `interval`, the same with 95 % intervals; `num_games` of a pair;
        `errors`, games in which the environment failed.

    Raises:
        ConfigError: one of these cannot be.
    """
    names = [find_policy(policy).name for policy in policies]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"win_rates: policies must be two or more different ones; got {names!r}. Name others.")
    made = make_multi_agent(env, **dict(env_config or {}))
    if made.possible_agents != PLAYERS or not getattr(made, "rotates_seats", False):
        raise ConfigError(f"win_rates: env must be a game with two seats that players change; got {env!r}.")
    made.close()
    folder = Path(out)
    num = len(names)
    rates: list[list[float | None]] = [[None] * num for _ in names]
    intervals: list[list[list[float] | None]] = [[None] * num for _ in names]
    errors = 0
    with tempfile.TemporaryDirectory() as scratch:
        models = [_model(policy, Path(scratch) / str(k)) for k, policy in enumerate(policies)]
        for i, j in itertools.combinations(range(num), 2):
            evaluate(
                models[i],
                envs=[(env, dict(env_config or {}))],
                split=split,
                num_tasks=num_tasks,
                samples=2,
                seed=seed,
                horizon=horizon,
                config={**(config or {}), "evaluation_game_samples": 0, **_of_two(models[i], models[j])},
                out=folder / f"{i}-{j}",
            )
            games, failed = _games(folder / f"{i}-{j}" / TRAJECTORIES)
            errors += failed
            for row, column, sign in ((i, j, 1), (j, i, -1)):
                counts = [(sum(result == sign for result in of_task), len(of_task)) for of_task in games]
                if counts:
                    rates[row][column] = sum(won for won, _ in counts) / sum(played for _, played in counts)
                    intervals[row][column] = list(success_interval(counts))
    report = {
        "env": env, "env_config": dict(env_config or {}), "policies": names, "win_rate": rates, "interval": intervals,
        "num_games": 2 * num_tasks, "errors": errors,
    }  # fmt: skip
    (folder / MATRIX).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def matrix_table(report: Mapping[str, Any]) -> str:
    """Return the win rates in percent with their intervals, as a table in Markdown: row against column."""
    names = _short_names(report["policies"])
    lines = [["wins of row", *names], ["---", *["---:"] * len(names)]]
    for name, rates, intervals in zip(names, report["win_rate"], report["interval"], strict=True):
        cells = [
            "-" if rate is None else f"{100 * rate:.1f} ({100 * interval[0]:.1f} - {100 * interval[1]:.1f})"
            for rate, interval in zip(rates, intervals, strict=True)
        ]
        lines.append([name, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _short_names(names: Sequence[str]) -> list[str]:
    """Return as many last parts of each path as tell all of them apart."""
    parts = [Path(name).parts for name in names]
    for length in range(1, max(map(len, parts))):
        short = ["/".join(each[-length:]) for each in parts]
        if len(set(short)) == len(short):
            return short
    return list(names)


def _own_policy(agent_id: str, episode: Any = None, **kwargs: Any) -> str:
    return agent_id


def _of_two(first: str, second: str) -> dict[str, Any]:
    """Return the options with which each player is a policy of its own."""
    return {
        "policies": PLAYERS,
        "policy_mapping_fn": _own_policy,
        "algorithm_config_overrides_per_module": {
            player: {"base_model": model} for player, model in zip(PLAYERS, (first, second), strict=True)
        },
    }


def _model(policy: str | Path, folder: Path) -> str:
    """Return a policy as a Hugging Face model, exported where it is a checkpoint."""
    found = find_policy(policy)
    if found.checkpoint is None:
        return found.name
    export_policy(found.checkpoint, folder)
    return str(folder)


def _games(trajectories: Path) -> tuple[list[list[int]], int]:
    """Return by task what player_0 got of each game, 1 for a win, -1 for a loss, 0 else; and how many games failed."""
    by_game: dict[tuple[tuple[int, ...], int], dict[str, EpisodeRecord]] = defaultdict(dict)
    for record in read_episodes(trajectories):
        by_game[record.seed_key, record.member][record.agent_id] = record
    by_task: dict[tuple[int, ...], list[int]] = defaultdict(list)
    failed = 0
    for (group, _), records in sorted(by_game.items()):
        if any(record.error is not None for record in records.values()):
            failed += 1
            continue
        first, second = PLAYERS
        by_task[group].append(_has_won(first, second, records) - _has_won(second, first, records))
    return list(by_task.values()), failed


def _has_won(player: str, other: str, records: Mapping[str, EpisodeRecord]) -> bool:
    """Return whether a player has won; one that never had a turn has no record, and wins what the other loses."""
    if player in records:
        return bool(records[player].is_success)
    return records[other].end_reason == "terminated" and records[other].total_reward < 0
