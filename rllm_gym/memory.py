"""Measures the memory of a run, and gives back what it no longer needs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import psutil

GIVE_BACK_EVERY = 20  # train steps
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MOST_IN_HEAP = 32 * 2**20  # bytes of a block; glibc takes no higher one
_FEW_IN_HEAP = 6 * 2**20
_libc = ctypes.CDLL(None)


def keep_freed_memory(*, sparingly: bool = False) -> None:
    """Let this process keep what it frees for its next step, but for the largest blocks: where the C library is glibc.

    By itself, glibc gives most of it back to the system, which clears every page of what is taken next: up to a fifth
    of a train step's time on a CPU. What fragments is given back at every `GIVE_BACK_EVERY`th train step.

    Args:
        sparingly: keep only smaller blocks. Between those that a model's layers keep, freed ones lie where the next do
            not fit: with blocks of 4 to 19 MB a sixth of an update's memory. Its time rises by up to a tenth.
    """
    if hasattr(_libc, "malloc_trim"):
        _libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never
        _libc.mallopt(_M_MMAP_THRESHOLD, _FEW_IN_HEAP if sparingly else _MOST_IN_HEAP)


# Returns the C heap's free pages to the system: sequences of ever new lengths fragment it, train step by step. A call
# without effect where the C library is not glibc.
give_back_freed_memory: Callable[[], int] = functools.partial(getattr(_libc, "malloc_trim", int), 0)


def process_tree_bytes(*, with_root: bool = True) -> int:
    """Return the memory of this process and of all below it, in bytes.

    It is the proportional set size: pages that several processes share are counted once.

    Args:
        with_root: False leaves this process itself out.
    """
    root = psutil.Process()
    total = 0
    for process in [root] * with_root + root.children(recursive=True):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it ended meanwhile
            continue
    return total
