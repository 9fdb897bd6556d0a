"""Compares what policies did on the same panel, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.statistics import CONFIDENCE, difference_interval, sign_test
from rllm_gym.strangers_files import read_object

RESULT = "result.json"


def read_result(path: Path) -> dict[str, Any]:
    """Return the result in a folder that `rllib evaluate` wrote, or in its `result.json`.

    Raises:
        ConfigError: there is none.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        result = read_object(file)
        for key in ("model", "panel_hash", "by_env"):
            result[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"compare: must be a finished evaluation of `rllib evaluate`; got {str(path)!r} "
            f"({type(error).__name__}: {error}). Finish it with --resume."
        ) from error
    return result


def compare(
    results: Sequence[Mapping[str, Any]], *, labels: Sequence[str] | None = None, confidence: float = CONFIDENCE
) -> list[dict[str, Any]]:
    """Return how every result but the first differs from the first, paired by task.

    Keys: `a`, `b` (labels), `num_tasks` that both have played, `left_out` (an environment failed in one of them),
    `difference` of the success rates `b - a` averaged over these tasks with its `interval` (bootstrap over
    tasks), `better` and `worse` (the tasks on which b succeeds more and less often than a, as "environment item"), and
    the exact `p_value` of as many of both: with one episode of each task that is McNemar's test.

    Args:
        confidence: of the intervals.

    Raises:
        ConfigError: the results are of different panels, or no task was played in both.
    """
    labels = labels or [str(result["model"]) for result in results]
    if len(results) < 2:
        raise ConfigError(f"compare: needs at least two results; got {len(results)}.")
    first = results[0]
    for label, result in zip(labels, results, strict=True):
        if result["panel_hash"] != first["panel_hash"]:
            raise ConfigError(
                f"compare: results must be of one panel; {labels[0]} is of {first['panel_hash'][:12]}, and {label} of "
                f"{result['panel_hash'][:12]}. Evaluate both with the same --panel."
            )
    others = zip(labels[1:], results[1:], strict=True)
    return [_pair(first, result, labels[0], label, confidence) for label, result in others]


def _pair(a: Mapping[str, Any], b: Mapping[str, Any], label_a: str, label_b: str, confidence: float) -> dict[str, Any]:
    rates_a, rates_b = _rates(a), _rates(b)
    shared = [task for task in rates_a if rates_a[task] is not None and rates_b.get(task) is not None]
    if not shared:
        raise ConfigError(f"compare: some task must have been played in both; got none of {label_a} and {label_b}.")
    of_a, of_b = ([float(rates[task]) for task in shared] for rates in (rates_a, rates_b))  # type: ignore[arg-type]
    better = [task for task, x, y in zip(shared, of_a, of_b, strict=True) if y > x]
    worse = [task for task, x, y in zip(shared, of_a, of_b, strict=True) if y < x]
    return {
        "a": label_a,
        "b": label_b,
        "num_tasks": len(shared),
        "left_out": len(rates_a) - len(shared),
        "rate_a": sum(of_a) / len(shared),
        "rate_b": sum(of_b) / len(shared),
        "difference": (sum(of_b) - sum(of_a)) / len(shared),
        "interval": list(difference_interval(of_a, of_b, confidence)),
        "p_value": sign_test(len(better), len(worse)),
        "better": [_name(task) for task in better],
        "worse": [_name(task) for task in worse],
    }


# Environment's panel, number in it, environment's name, item.
Task = tuple[str, int, str, Any]


def _rates(result: Mapping[str, Any]) -> dict[Task, float | None]:
    """Return each task's success rate; None where no episode of it was played to its end.

    The environments' order in the call does not matter, nor what they are called there.
    """
    return {
        (of_env["panel_hash"], number, of_env["env"], task["item_id"]): (
            task["successes"] / task["episodes"] if task["episodes"] else None
        )
        for of_env in result["by_env"].values()
        for number, task in enumerate(of_env["tasks"])
    }


def _name(task: Task) -> str:
    _, number, env, item_id = task
    return f"{env.rpartition('/')[2]} {item_id if item_id is not None else f'task {number}'}"
