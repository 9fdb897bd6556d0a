"""Rates with their uncertainty, of one policy and of two on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

CONFIDENCE = 0.95
NUM_RESAMPLES = 9999
_SEED = 0  # of the bootstrap, so that a report is the same whenever it is made

# A task's outcome: (episodes that succeeded, episodes that were played to their end).
Counts = tuple[int, int]


def success_interval(counts: Sequence[Counts]) -> tuple[float, float]:
    """Return the interval of a success rate at 95 %: Wilson's, or by a bootstrap over tasks.

    Episodes of one task are alike, so that where tasks were played more than once it is the tasks that are resampled.
    With equal outcomes everywhere the bootstrap has no width; Wilson's interval over the tasks is taken there.
    """
    from scipy.stats import binomtest, bootstrap  # takes a second to import

    num_solved, num_episodes = np.sum(counts, axis=0)
    rates = {solved / played for solved, played in counts}
    if all(played == 1 for _, played in counts):
        found = binomtest(int(num_solved), int(num_episodes)).proportion_ci(CONFIDENCE, method="wilson")
        return float(found.low), float(found.high)
    if len(rates) == 1:
        found = binomtest(round(rates.pop() * len(counts)), len(counts)).proportion_ci(CONFIDENCE, method="wilson")
        return float(found.low), float(found.high)
    solved, played = np.transpose(counts).astype(float)
    found = bootstrap(
        (solved, played),
        lambda s, p, axis: s.sum(axis) / p.sum(axis),
        paired=True,
        n_resamples=NUM_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


def pass_at_k(counts: Sequence[Counts], k: int) -> float | None:
    """Return the probability that at least one of k episodes of a task succeeds, averaged over tasks.

        1 - C(n - c, k) / C(n, k)

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1; the estimator is unbiased. Tasks of fewer than k episodes are
    left out; None where no task has as many.
    """
    return _mean([1 - comb(n - c, k) / comb(n, k) for c, n in counts if n >= k])


def pass_hat_k(counts: Sequence[Counts], k: int) -> float | None:
    """Return the probability that all of k episodes of a task succeed, averaged over tasks.

        C(c, k) / C(n, k)

    Source: Yao et al. 2024, arXiv:2406.12045, section 3 (pass^k). Tasks of fewer than k episodes are left out.
    """
    return _mean([comb(c, k) / comb(n, k) for c, n in counts if n >= k])


def average(counts: Sequence[Counts]) -> float | None:
    """Return the success rate of a task, averaged over tasks (avg@k)."""
    return _mean([solved / played for solved, played in counts if played])


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided p-value for as many tasks on which one policy does better, and worse, than another.

    With one episode of each task it is McNemar's exact test.
    """
    from scipy.stats import binomtest

    return float(binomtest(better, better + worse, 0.5).pvalue) if better + worse else 1.0


def difference_interval(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean of `b - a` by a bootstrap over tasks; element i is task i in both.

    With equal differences everywhere the bootstrap has no width. There it is as wide as what Wilson's interval leaves
    to tasks of another difference, of which none was seen.
    """
    from scipy.stats import binomtest, bootstrap

    differences = np.subtract(b, a)
    if len(set(differences.tolist())) == 1:
        unseen = float(binomtest(0, len(differences)).proportion_ci(confidence, method="wilson").high)
        return max(-1.0, float(differences[0]) - unseen), min(1.0, float(differences[0]) + unseen)
    found = bootstrap(
        (differences,),
        np.mean,
        n_resamples=NUM_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
