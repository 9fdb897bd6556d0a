"""Differences between schedules with their uncertainty. The seed is the unit: a cell of seed and task is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE, POWER = 0.95, 0.8
NUM_RESAMPLES = 9999
_SEED = 0  # of the bootstrap, so that a report is the same whenever it is made


@dataclass(frozen=True)
class Contrast:
    """The difference between the success rates of two schedules.

    Args:
        mean: over seeds, of the mean difference over tasks.
        t_interval: over seeds, with n - 1 degrees of freedom.
        crossed_interval: by a bootstrap that resamples seeds and tasks, each on its own.
        p: of the t test.
        detectable: the difference that as many seeds of this spread find with 80 % at 0.05.
    """

    num_seeds: int
    mean: float
    t_interval: tuple[float, float]
    crossed_interval: tuple[float, float]
    p: float
    detectable: float


def contrast(a_ST: npt.ArrayLike, b_ST: npt.ArrayLike) -> Contrast:
    """Return the contrast a - b.

    Args:
        a_ST, b_ST: success rates of seeds (rows) and tasks (columns), both in the same order.
    """
    from scipy.stats import ttest_1samp

    difference_ST = np.asarray(a_ST, float) - np.asarray(b_ST, float)
    by_seed = difference_ST.mean(axis=1)
    n, mean = len(by_seed), float(by_seed.mean())
    crossed = crossed_interval(difference_ST)
    spread = float(by_seed.std(ddof=1)) if n > 1 else 0.0
    if spread == 0.0:  # one seed, or no spread: Student's t says nothing
        unknown = (float("nan"), float("nan"))
        return Contrast(n, mean, unknown, crossed, float("nan"), float("nan"))
    test = ttest_1samp(by_seed, 0.0)
    found = test.confidence_interval(CONFIDENCE)
    interval = (float(found.low), float(found.high))
    return Contrast(n, mean, interval, crossed, float(test.pvalue), detectable_difference(spread, n))


def crossed_interval(difference_ST: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the percentile interval of the grand mean; seeds and tasks are resampled independently of each other.

    Source: Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1(2).
    """
    rng = np.random.default_rng(_SEED)
    num_seeds, num_tasks = difference_ST.shape
    # How often each seed and each task is drawn is all that the mean depends on.
    seeds_RS = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=NUM_RESAMPLES) / num_seeds
    tasks_RT = rng.multinomial(num_tasks, np.full(num_tasks, 1 / num_tasks), size=NUM_RESAMPLES) / num_tasks
    means_R = np.einsum("rs,st,rt->r", seeds_RS, difference_ST, tasks_RT, optimize=True)
    low, high = np.quantile(means_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def detectable_difference(spread: float, num_seeds: int) -> float:
    """Return the difference that a two-sided t test at 0.05 over seeds finds with a chance of 80 %.

    Args:
        spread: standard deviation of the seeds' differences.
    """
    from scipy.optimize import brentq
    from scipy.stats import f, ncf

    freedom = num_seeds - 1
    critical = f.ppf(
        CONFIDENCE, 1, freedom
    )  # t squared; scipy's noncentral t has holes where its noncentral F has none

    def missing_power(effect: float) -> float:
        return float(ncf.sf(critical, 1, freedom, effect**2 * num_seeds)) - POWER

    return spread * float(brentq(missing_power, 1e-3, 50.0))


def holm(p_values: Mapping[str, float], num_tests: int) -> dict[str, float]:
    """Return Holm's adjusted p-values: the k-th smallest of m times m - k + 1, and never below the one before.

    Source: Holm 1979, Scandinavian Journal of Statistics 6(2).

    Args:
        num_tests: m; those without a p-value yet count as the largest, so that they can only lower the others later.
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    ordered: Sequence[str] = sorted(p_values, key=lambda name: p_values[name])
    for k, name in enumerate(ordered):
        largest = max(largest, min(1.0, (num_tests - k) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds and its interval: NaN of one seed, without width of equal ones."""
    from scipy.stats import ttest_1samp

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    if len(set(values)) == 1:
        return mean, mean, mean
    found = ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return mean, float(found.low), float(found.high)
