"""Tables and curves of the rows; a row counts when its run has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import study
from benchmarks.learning.runner import as_method_rows, chosen_lrs, common_lr, last_success, reading_at, rows_of
from benchmarks.learning.statistics import Contrast, contrast, holm, t_interval

Rows = Sequence[Mapping[str, Any]]
Pair = tuple[str, str, str]
BUDGETS = ("turns", "tokens")


def write_report(rows: Rows, search: Rows, images: Path) -> None:
    """Print the tables of the schedules on BabyAI, and draw a curve for each budget."""
    print_search(search)
    print_rows(rows, images, "curve")
    lr = chosen_lrs(search, study.SEARCHED)["long"] if rows and search else None
    if best_fixed := best_fixed_of(search, lr, study.FIXED):
        others = [(study.TROUBLE, "long")]
        exploratory = [("scaling_inter", study.LONG_SLOW), (study.LONG_SLOW, "long")]
        print_contrasts(rows, *pairs_of(best_fixed, study.SCHEDULES, others, exploratory))


def write_textcraft(rows: Rows, search: Rows, images: Path) -> None:
    """Print the tables of the schedules on TextCraft, which share a learning rate, and draw its curves.

    The rows of the rate that the search chose come first; those of another were added later, and are exploratory.
    """
    print_search(search)
    if not search:
        return
    fixed = [name for name in study.FIXED if name in study.TEXTCRAFT_SCHEDULES]
    chosen, *added = study.textcraft_lrs(common_lr(search))
    for lr in (chosen, *added):
        mine = [row for row in rows if row["lr"] == lr]
        print(f"\nlr {lr:g}{', exploratory' if lr in added else ''}:")
        print_rows(mine, images, f"curve_textcraft{'_slow' if lr in added else ''}")
        if mine and (best_fixed := best_fixed_of(search, lr, fixed)):
            pairs, labels = pairs_of(best_fixed, study.TEXTCRAFT_SCHEDULES)
            print_contrasts(mine, pairs, dict.fromkeys(pairs, "exploratory") if lr in added else labels)
    of_rates = [{**row, "schedule": f"{row['schedule']}, {row['lr']:g}"} for row in rows]
    for lr in added:
        pairs = [(f"{name}, {lr:g}", f"{name}, {chosen:g}", "turns") for name in study.TEXTCRAFT_SCHEDULES]
        print_contrasts(of_rates, pairs, dict.fromkeys(pairs, "exploratory"))


def print_rows(rows: Rows, images: Path, name: str) -> None:
    """Print a table for each budget, and draw its curve."""
    if not rows:
        print("No run has ended yet.")
        return
    check_comparable(rows)
    images.mkdir(parents=True, exist_ok=True)
    for budget in BUDGETS:
        print_schedules(rows, budget)
        draw(rows, budget, images / f"{name}_{budget}.png")


def write_methods(rows: Rows, search: Rows, of_schedules: Rows, search_of_schedules: Rows, images: Path) -> None:
    """Print the methods' tables and each one's difference from GRPO, some of whose rows are among the schedules'.

    The presets are compared with GRPO at their own learning rate; there the other methods' differences are exploratory.
    """
    searched = list(study.method_search_runs(study.METHODS))
    tried = rows_of(searched, [*as_method_rows(search_of_schedules), *search])
    if len(tried) < len(searched):
        print(f"\nMethods: {len(tried)} of {len(searched)} runs of their search have ended.")
        return
    lrs = chosen_lrs(tried, study.OWN_LR, key="method")
    known = [*as_method_rows(of_schedules), *rows]
    # Tables and curves name their rows by the schedule.
    ended = [{**row, "schedule": row["method"]} for row in rows_of(list(study.method_runs(study.METHODS, lrs)), known)]
    ended += [{**row, "schedule": study.GRPO_SLOW} for row in rows_of(list(study.grpo_runs_of_presets()), known)]
    print_search([{**row, "schedule": row["method"]} for row in tried])
    if ended:
        check_comparable(ended)
        print_schedules(ended, "turns")
        for name, others in (("methods", study.PRESETS), ("presets", study.OWN_LR)):
            draw([row for row in ended if row["schedule"] not in others], "turns", images / f"curve_{name}.png")
        pairs = [(name, "grpo", "turns") for name in study.OWN_LR if name != "grpo"]
        pairs += [(name, study.GRPO_SLOW, "turns") for name in study.PRESETS]
        added = [(name, study.GRPO_SLOW, "turns") for name in study.OWN_LR]
        print_contrasts(ended, [*pairs, *added], dict.fromkeys(added, "exploratory"))


def check_comparable(rows: Rows) -> None:
    """Make sure that all rows began with one policy and were judged on one panel.

    Raises:
        ValueError: they did not.
    """
    for name, values in (
        ("first policy", {row["base_model"] for row in rows}),
        ("panel", {reading_at(row, study.NUM_POINTS)["panel_hash"] for row in rows}),
        ("budget", {(row["turns"], row["tokens"]) for row in rows}),
    ):
        if len(values) > 1:
            raise ValueError(f"report: all rows must have one {name}; got {len(values)}. Take the others out.")


def best_fixed_of(search: Rows, lr: float | None, fixed: Sequence[str]) -> str | None:
    """Return the fixed schedule with the highest success at an lr on the search seeds; of equal ones the longer.

    Args:
        fixed: those to choose from, the shorter first; None is returned where one of them has not ended.
    """
    means = {}
    for name in reversed(fixed):
        mine = [last_success(row) for row in search if row["schedule"] == name and row["lr"] == lr]
        if mine:
            means[name] = np.mean(mine)
    return max(means, key=means.__getitem__) if len(means) == len(fixed) else None


def print_search(search: Rows) -> None:
    if not search:
        return
    print("\n| search | lr | seed | success at the end |\n|---|---|---|---|")
    for row in search:
        print(f"| {row['schedule']} | {row['lr']:g} | {row['seed']} | {last_success(row):.3f} |")


def print_schedules(rows: Rows, budget: str) -> None:
    """Print a line per schedule: means over seeds, of success with its interval."""
    total, start = rows[0][budget], rows[0]["start"]["last"]["success"]
    print(f"\nAfter {total:,} {budget} of training (at the start {start:.3f}):\n")
    print(
        "| | seeds | success | below the start | 2-5 turns | 6-10 turns | training tasks | turns per solved "
        "| tokens per solved | truncated | entropy | gradient norm | collapsed | train steps | minutes |\n"
        + "|---" * 15
        + "|"
    )
    for name in names_of(rows):
        mine = [row for row in rows if row["schedule"] == name]
        last = [reading_at(row, study.NUM_POINTS, budget) for row in mine]
        mean, low, high = t_interval([reading["success"] for reading in last])
        cells = [name, str(len(mine)), f"{mean:.3f} [{low:.3f}, {high:.3f}]"]
        cells += [str(sum(reading["success"] < start for reading in last))]
        cells += [f"{np.mean([of_lengths(r, lengths) for r in last]):.3f}" for lengths in (range(2, 6), range(6, 11))]
        cells += [f"{np.mean([row['readings'][-1]['success'] for row in mine]):.3f}"]
        cells += [_mean_of(last, "turns_per_solved"), _mean_of(last, "tokens_per_solved"), _mean_of(last, "truncated")]
        learnt = [
            step for row in mine for step in row["curve"][-10:] if step["gradient_norm"] > 0.0
        ]  # the others have 0
        for metric in ("entropy", "gradient_norm"):
            cells += [f"{np.mean([step[metric] for step in learnt]):.3f}" if learnt else "-"]
        cells += [str(sum(row["collapse"] for row in mine))]
        cells += [f"{np.mean([row[key] for row in mine]):.0f}" for key in ("train_steps", "minutes")]
        print("| " + " | ".join(cells) + " |")


def of_lengths(reading: Mapping[str, Any], lengths: range) -> float:
    """Return the mean success over solution lengths; a length counts once, however many tasks have it."""
    return float(np.mean([rate for length, rate in reading["by_length"].items() if int(length) in lengths]))


def _mean_of(readings: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [reading[key] for reading in readings if reading[key] is not None]
    return f"{np.mean(values):.2f}" if values else "-"


def pairs_of(
    best_fixed: str,
    schedules: Sequence[str],
    others: Sequence[tuple[str, str]] = (),
    exploratory: Sequence[tuple[str, str]] = (),
) -> tuple[list[Pair], dict[Pair, str]]:
    """Return the contrasts of schedules, and those that are outside of the family under Holm's correction.

    The primary one is ScalingInter minus the best fixed horizon at equal turns.

    Args:
        schedules: each is compared with ScalingInter.
        others: pairs of the same family.
        exploratory: pairs outside of it, which were added after a part had been seen.
    """
    first = ("scaling_inter", best_fixed)
    pairs = [first, *((name, first[0]) for name in schedules if name not in first), *others]
    labels = {(*pair, budget): "exploratory" for pair in exploratory for budget in BUDGETS}
    found = [(*pair, budget) for budget in BUDGETS for pair in [*pairs, *exploratory]]
    return found, {**labels, (*first, "turns"): "primary"}


def print_contrasts(rows: Rows, pairs: Sequence[Pair], labels: Mapping[Pair, str]) -> None:
    """Print the differences of pairs; those without a label are one family under Holm's correction, from the first on.

    Args:
        pairs: minuend, subtrahend, and the budget that both have spent.
    """
    found = {pair: between(rows, *pair) for pair in pairs}
    known = {pair: of for pair, of in found.items() if of is not None}
    planned = [pair for pair in pairs if pair not in labels]
    p_values = {" ".join(pair): known[pair].p for pair in planned if pair in known and not isnan(known[pair].p)}
    adjusted = holm(p_values, len(planned))
    print("\n| contrast | equal | seeds | difference | t interval | crossed bootstrap | p | Holm | found with 80 % |")
    print("|---" * 9 + "|")
    for key, of in known.items():
        name = " ".join(key)
        corrected = f"{adjusted[name]:.3f}" if name in adjusted else labels.get(key, "-")
        t_low, t_high = of.t_interval
        low, high = of.crossed_interval
        print(
            f"| {key[0]} - {key[1]} | {key[2]} | {of.num_seeds} | {of.mean:+.3f} | [{t_low:+.3f}, {t_high:+.3f}] "
            f"| [{low:+.3f}, {high:+.3f}] | {of.p:.3f} | {corrected} | {of.detectable:.3f} |"
        )


def between(rows: Rows, a: str, b: str, budget: str) -> Contrast | None:
    """Return the contrast of two schedules over the seeds that both have; None without any."""
    solved = {
        name: {
            row["seed"]: reading_at(row, study.NUM_POINTS, budget)["solved"] for row in rows if row["schedule"] == name
        }
        for name in (a, b)
    }
    seeds = sorted(set(solved[a]) & set(solved[b]))
    return contrast([solved[a][s] for s in seeds], [solved[b][s] for s in seeds]) if seeds else None


def names_of(rows: Rows) -> list[str]:
    return [
        name
        for name in (*study.REPORTED, *study.OWN_LR, study.GRPO_SLOW, *study.PRESETS)
        if any(row["schedule"] == name for row in rows)
    ]


def draw(rows: Rows, budget: str, file: Path) -> None:
    """Draw success over a budget's eight points: each schedule's mean over seeds, every seed a thin line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 4.5), layout="constrained")
    share = np.arange(study.NUM_POINTS + 1) / study.NUM_POINTS
    for number, name in enumerate(names_of(rows)):
        curves = [
            [row["start"]["last"]["success"]]
            + [reading_at(row, k, budget)["success"] for k in range(1, study.NUM_POINTS + 1)]
            for row in rows
            if row["schedule"] == name
        ]
        for curve in curves:
            axis.plot(share * rows[0][budget], curve, color=f"C{number}", alpha=0.15, linewidth=0.8)
        label = f"{name} ({len(curves)})"
        axis.plot(share * rows[0][budget], np.mean(curves, axis=0), color=f"C{number}", marker="o", label=label)
    axis.set(xlabel=f"{budget} of training", ylabel=f"success on held-out tasks, horizon {study.LONG}")
    figure.legend(title="(seeds)", fontsize="small", loc="outside right upper")
    figure.savefig(file, dpi=120)
    plt.close(figure)
