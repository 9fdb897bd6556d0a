"""When two returns are the same: of rewards that are summed in another order, the last bits differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

TIE = 1e-9  # of the size of the rewards that were summed; float64 rounds to 1e-16 of it


def tie(value_N: Any, size_N: Any, group_N: Any = None) -> npt.NDArray[np.float64]:
    """Return the values with ties made equal: what lies within 1e-9 of the largest size of its group.

    Every return is passed through here before it is compared, so that rounding never is an advantage.

    Args:
        value_N: float64, sums of rewards.
        size_N: how large the rewards of each sum were, as the sum of their absolute values.
        group_N: int, which values are compared with each other; None compares all.
    """
    value_N, size_N = np.asarray(value_N, np.float64), np.asarray(size_N, np.float64)
    group_N = np.zeros(len(value_N), np.int64) if group_N is None else np.asarray(group_N)
    if not len(value_N):
        return value_N.copy()
    _, group_N = np.unique(group_N, return_inverse=True)
    largest_G = np.zeros(group_N.max() + 1)
    np.maximum.at(largest_G, group_N, size_N)
    order_N = np.lexsort((value_N, group_N))
    sorted_N, of_group_N = value_N[order_N], group_N[order_N]
    is_new_N = np.ones(len(sorted_N), np.bool_)
    is_new_N[1:] = (np.diff(of_group_N) > 0) | (np.diff(sorted_N) > TIE * largest_G[of_group_N[1:]])
    tied_N = np.empty_like(sorted_N)
    tied_N[order_N] = sorted_N[np.maximum.accumulate(np.where(is_new_N, np.arange(len(sorted_N)), 0))]
    return tied_N


def reaches(value: Any, threshold: float, size: Any) -> Any:
    """Return whether a return is at least the threshold, within 1e-9 of both: 0.1 ten times is 1.

    Args:
        value: a float, or floats of any shape; of numpy and torch, too.
        size: see `tie`; of the value's shape.
    """
    return value >= threshold - TIE * (size + abs(threshold))
