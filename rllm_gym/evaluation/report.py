"""An evaluation's report: numbers for all episodes, by environment, by category and by task, and a table of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rllm_gym.data import EpisodeRecord
from rllm_gym.evaluation.panel import Panel
from rllm_gym.evaluation.statistics import average, pass_at_k, pass_hat_k, success_interval


@dataclass(frozen=True)
class Outcome:
    """The outcome of one episode; `turns` and `tokens` (sampled ones) are of all its agents together.

    `group` and `member` say which task it is of, and which of its episodes. `error` is None where the environment
    worked, and only then the rest counts.
    """

    group: tuple[int, ...]
    member: int
    is_success: bool
    total_reward: float
    turns: int
    tokens: int
    category: str
    end_reason: str
    error: str | None


def count_outcome(records: Sequence[EpisodeRecord]) -> Outcome:
    """Return an episode's outcome from its records, one per agent; it succeeded where all of them say so."""
    first = records[0]
    return Outcome(
        first.seed_key,
        first.member,
        is_success=all(record.is_success for record in records),
        total_reward=sum(record.total_reward for record in records),
        turns=sum(len(record.turns) for record in records),
        tokens=sum(len(turn.action_ids) for record in records for turn in record.turns),
        category=next((record.category for record in records if record.category), "all"),
        end_reason=first.end_reason,
        error=first.error,
    )


def make_report(panels: Mapping[str, Panel], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the report on episodes of panels, which go by their environments' names.

    An unsuccessful episode lowers the success rate; one in which the environment failed is counted in `errors` alone.
    Keys: `success_rate`, `success_interval` (95 %), `mean_return`, `turns` and `tokens` of an episode, `avg@k`,
    `pass@k` and `pass^k` of k = 1 to `samples`, `score_avg@k` and `score_pass@k` (see `_scores`), `errors`,
    `end_reasons`; `by_category` and `by_env` have them again, and `tasks` what came of each task.
    """
    by_group: dict[tuple[int, ...], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_group[outcome.group].append(outcome)
    by_env = {}
    everything: list[list[Outcome]] = []
    for k, (name, panel) in enumerate(panels.items()):
        tasks = [sorted(by_group[group.key], key=lambda outcome: outcome.member) for group in panel.groups(k)]
        names = [panel.categories.get(str(item_id)) for item_id in panel.item_ids]
        tasks = [
            [replace(outcome, category=category or outcome.category) for outcome in task]
            for category, task in zip(names, tasks, strict=True)
        ]
        everything += tasks
        by_env[name] = {
            "env": panel.env,
            "split": panel.split,
            "panel_hash": panel.hash,
            "horizon": panel.horizon,
            **_numbers(tasks, panel.samples),
            "by_category": _by_category(tasks, panel.samples),
            "tasks": [
                {"item_id": item_id, "seed": seed, **_task(task)}
                for item_id, seed, task in zip(panel.item_ids, panel.seeds, tasks, strict=True)
            ],
        }
    samples = min(panel.samples for panel in panels.values())
    return {
        **_numbers(everything, samples),
        "by_category": _by_category(everything, samples),
        "by_env": by_env,
    }


def _numbers(tasks: Sequence[Sequence[Outcome]], samples: int) -> dict[str, Any]:
    """Return the numbers of some tasks."""
    outcomes = [outcome for task in tasks for outcome in task]
    played = [outcome for outcome in outcomes if outcome.error is None]
    counts = [_counts(task) for task in tasks]
    counts = [(solved, num_played) for solved, num_played in counts if num_played]
    num_solved = sum(solved for solved, _ in counts)
    return {
        "num_tasks": len(tasks),
        "samples": samples,
        "episodes": len(played),
        "successes": num_solved,
        "success_rate": num_solved / len(played) if played else None,
        "success_interval": list(success_interval(counts)) if played else None,
        "mean_return": _mean([outcome.total_reward for outcome in played]),
        "turns": _mean([outcome.turns for outcome in played]),
        "tokens": _mean([outcome.tokens for outcome in played]),
        "avg@k": average(counts),
        "pass@k": {str(k): pass_at_k(counts, k) for k in range(1, samples + 1)},
        "pass^k": {str(k): pass_hat_k(counts, k) for k in range(1, samples + 1)},
        **_scores(tasks),
        "errors": len(outcomes) - len(played),
        "end_reasons": dict(sorted(Counter(outcome.end_reason for outcome in outcomes).items())),
    }


def _scores(tasks: Sequence[Sequence[Outcome]]) -> dict[str, float | None]:
    """Return the mean return of a task, averaged over tasks, and the share of tasks that have a return above 0.

    Source: AgentGym-RL (arXiv:2509.08755), verl/agent_trainer/main_generation.py: its Avg@k and Pass@k of k samples,
    whose scores are these returns where an environment plays in AgentGym's protocol.
    """
    returns = [[outcome.total_reward for outcome in task if outcome.error is None] for task in tasks]
    returns = [found for found in returns if found]
    return {
        "score_avg@k": _mean([float(np.mean(found)) for found in returns]),
        "score_pass@k": _mean([float(max(found) > 0) for found in returns]),
    }


def _by_category(tasks: Sequence[Sequence[Outcome]], samples: int) -> dict[str, Any]:
    found: dict[str, list[Sequence[Outcome]]] = defaultdict(list)
    for task in tasks:
        if categories := [outcome.category for outcome in task if outcome.error is None]:
            found[categories[0]].append(task)
    return {category: _numbers(found[category], samples) for category in sorted(found)}


def _task(task: Sequence[Outcome]) -> dict[str, Any]:
    solved, num_played = _counts(task)
    returns = [outcome.total_reward for outcome in task if outcome.error is None]
    errors = [outcome.error for outcome in task if outcome.error is not None]
    return {"successes": solved, "episodes": num_played, "mean_return": _mean(returns), "errors": errors}


def _counts(task: Sequence[Outcome]) -> tuple[int, int]:
    played = [outcome.is_success for outcome in task if outcome.error is None]
    return sum(played), len(played)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def markdown_table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return success rates in percent with their intervals: a row for each model, a column for each environment.

    Of one environment the columns are its categories. The last column is of all episodes.
    """
    by = "by_env" if len(reports[0]["by_env"]) > 1 else "by_category"
    columns = list(dict.fromkeys(name for report in reports for name in report[by]))
    columns = columns if len(columns) > 1 else []
    whole = "overall" if columns else next(iter(reports[0]["by_env"]))
    lines = [["model", *columns, whole], ["---", *["---:"] * (len(columns) + 1)]]
    for report in reports:
        cells = [_cell(report[by].get(column)) for column in columns]
        lines.append([str(report["model"]), *cells, _cell(report)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def measures_table(report: Mapping[str, Any]) -> str:
    """Return avg@k and pass@k in percent, of success and of scores: a row for each category and for all.

    `k` is the number of samples. Scores are averaged as they are.
    """
    samples = report["samples"]
    header = ["category", "tasks", f"avg@{samples}", f"pass@{samples}", f"score avg@{samples}", f"score pass@{samples}"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for name, of_env in report["by_env"].items():
        prefix = f"{name}: " if len(report["by_env"]) > 1 else ""
        lines += [_measures(prefix + category, numbers, samples) for category, numbers in of_env["by_category"].items()]
        lines.append(_measures(f"{prefix}all", of_env, samples))
    if len(report["by_env"]) > 1:
        lines.append(_measures("all", report, samples))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _measures(name: str, numbers: Mapping[str, Any], samples: int) -> list[str]:
    shares = (numbers["avg@k"], numbers["pass@k"][str(samples)], numbers["score_pass@k"])
    average, passed, score_passed = ("-" if share is None else f"{100 * share:.1f}" for share in shares)
    score = "-" if numbers["score_avg@k"] is None else f"{numbers['score_avg@k']:.3f}"
    return [name, str(numbers["num_tasks"]), average, passed, score, score_passed]


def _cell(numbers: Mapping[str, Any] | None) -> str:
    if numbers is None or numbers["success_rate"] is None:
        return "-"
    low, high = numbers["success_interval"]
    return f"{100 * numbers['success_rate']:.1f} ({100 * low:.1f} - {100 * high:.1f})"
