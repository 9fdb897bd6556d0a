"""The end of a run: `summary.json`, `learning_curve.png`, and the last lines on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllm_gym.checkpoints import newest_checkpoint, read_results

SUMMARY = "summary.json"
CURVE = "learning_curve.png"


def split_metrics(evaluation: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return {split: metrics} of an evaluation; `env_runners` there is all splits together."""
    return {
        name: metrics
        for name, metrics in (evaluation or {}).items()
        if name != "env_runners" and isinstance(metrics, dict) and "success_rate" in metrics
    }


def describe_evaluation(result: dict[str, Any]) -> str:
    """Return a result's evaluation in words, for example `train 0.47 -> 0.80  eval 0.41 -> 0.63`; "" without one."""
    before, after = split_metrics(result.get("evaluation_on_start")), split_metrics(result.get("evaluation"))
    parts = []
    for split, metrics in after.items():
        start = f"{before[split]['success_rate']:.3f} -> " if split in before else ""
        parts.append(f"{split} {start}{metrics['success_rate']:.3f}")
    if (loss := (result.get("evaluation") or {}).get("loss")) is not None:
        first = (result.get("evaluation_on_start") or {}).get("loss")
        parts.append(f"held-out loss {'' if first is None else f'{first:.3f} -> '}{loss:.3f}")
    if game := describe_game(result.get("evaluation") or {}, result.get("evaluation_on_start") or {}):
        parts.append(game)
    for metrics in list(after.values())[:1]:
        parts.append(f"({metrics.get('num_episodes', 0):g} episodes each, horizon {metrics.get('horizon', 0):g})")
    return "  ".join(parts)


def describe_game(after: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """Return how far a policy is from optimal play, for example `NashConv 0.917 -> 0.412 (exact, illegal 0.021)`."""
    if "nash_conv" not in after:
        return ""
    start = f"{before['nash_conv']:.3f} -> " if before and "nash_conv" in before else ""
    return f"NashConv {start}{after['nash_conv']:.3f} ({after['method']}, illegal {after['illegal_probability']:.3f})"


def summarize(results: list[dict[str, Any]], *, name: str, trial: Path) -> dict[str, Any] | None:
    """Return a trial's before and after, from its results; None if it was never evaluated.

    `success_*` are of the split `train`, `eval_success_*` of the split `eval`; `evaluations` has every split.
    """
    evaluated = [result for result in results if split_metrics(result.get("evaluation"))]
    if not evaluated:
        return None
    last = evaluated[-1]
    after = split_metrics(last["evaluation"])
    before = next((split_metrics(r["evaluation_on_start"]) for r in evaluated if r.get("evaluation_on_start")), {})
    rates = {
        split: {
            "before": before.get(split, {}).get("success_rate"),
            "after": metrics["success_rate"],
            "episodes": metrics.get("num_episodes"),
            "failed_episodes": metrics.get("num_failed_episodes"),
        }
        for split, metrics in after.items()
    }
    config = last.get("config") or {}
    checkpoint = newest_checkpoint(trial)
    any_split = next(iter(after.values()))
    return {
        "name": name,
        "success_before": rates.get("train", {}).get("before"),
        "success_after": rates.get("train", {}).get("after"),
        "eval_success_before": rates.get("eval", {}).get("before"),
        "eval_success_after": rates.get("eval", {}).get("after"),
        "horizon": any_split.get("horizon"),
        "episodes": min(rate["episodes"] or 0 for rate in rates.values()),
        "seeds": {"run": config.get("seed"), "evaluation": config.get("evaluation_seed")},
        "train_steps": results[-1]["training_iteration"],
        "evaluated_at_step": last["training_iteration"],
        "seconds": sum(result.get("time_this_iter_s", 0.0) for result in results),
        "evaluations": rates,
        "trial": str(trial),
        "checkpoint": str(checkpoint.path) if checkpoint else None,
    }


def write_summary(run: Path, trials: list[Path]) -> dict[str, Any] | None:
    """Write `summary.json` of a run's trials: of a single trial its own, of a sweep a list under `trials`."""
    summaries = [summarize(read_results(trial), name=run.name, trial=trial) for trial in trials]
    found = [summary for summary in summaries if summary]
    if not found:
        return None
    content = found[0] if len(trials) == 1 else {"name": run.name, "trials": found}
    (run / SUMMARY).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return content


def draw_curve(run: Path, trials: list[Path]) -> Path | None:
    """Draw success per train step, the horizon on a second axis, and the evaluations before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    histories = {trial.name: read_results(trial) for trial in trials}
    histories = {name: [r for r in results if _success(r) is not None] for name, results in histories.items()}
    histories = {name: results for name, results in histories.items() if results}
    if not histories:
        return None
    figure, axis = plt.subplots(figsize=(8, 4.5), dpi=120)
    is_single = len(histories) == 1
    for name, results in histories.items():
        steps = [r["training_iteration"] for r in results]
        rates = [_success(r) for r in results]
        [points] = axis.plot(steps, rates, ".", markersize=4, alpha=0.35)
        label = "train steps (sampled), smoothed" if is_single else name
        axis.plot(steps, smoothed(rates), linewidth=1.6, color=points.get_color(), label=label)
    if is_single:
        [results] = histories.values()
        _mark_evaluations(axis, results)
        _draw_horizon(axis.twinx(), results)
    axis.set(xlabel="train step", ylabel="success rate", ylim=(0, 1), title=run.name)
    axis.grid(alpha=0.25)
    axis.legend(loc="lower right", fontsize="small")
    figure.tight_layout()
    figure.savefig(run / CURVE)
    plt.close(figure)
    return run / CURVE


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and its neighbours: a twentieth of all on each side, fewer near the ends."""
    reach = len(values) // 20
    windows = [values[max(0, k - reach) : k + reach + 1] for k in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _success(result: dict[str, Any]) -> Any:
    return (result.get("env_runners") or {}).get("success_rate")


def _mark_evaluations(axis: Any, results: list[dict[str, Any]]) -> None:
    """Draw every split's evaluations; the one before the first train step stands at 0."""
    points: dict[str, dict[int, float]] = {}
    for result in results:
        for split, metrics in split_metrics(result.get("evaluation_on_start")).items():
            points.setdefault(split, {}).setdefault(0, metrics["success_rate"])
        for split, metrics in split_metrics(result.get("evaluation")).items():
            points.setdefault(split, {})[result["training_iteration"]] = metrics["success_rate"]
    for split, marker in zip(sorted(points, reverse=True), "os^vD", strict=False):
        steps = sorted(points[split])
        rates = [points[split][step] for step in steps]
        axis.plot(steps, rates, marker + ":", markersize=7, label=f"evaluation, {split} tasks")


def _draw_horizon(axis: Any, results: list[dict[str, Any]]) -> None:
    pairs = [(r["training_iteration"], r["max_episode_steps"]) for r in results if r.get("max_episode_steps")]
    if not pairs:
        axis.set_yticks([])
        return
    steps, horizons = zip(*pairs, strict=True)
    axis.step(steps, horizons, where="mid", color="gray", linewidth=1, alpha=0.6)
    axis.set_ylim(0, max(horizons) * 1.5)
    axis.set_ylabel("horizon (turns)", color="gray")
