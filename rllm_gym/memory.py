"""How much memory a run holds, and how it gives back what it no longer needs."""

from __future__ import annotations

import ctypes
import itertools

import psutil

GIVE_BACK_EVERY = 20  # steps
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h
_libc = ctypes.CDLL(None)
_steps = itertools.count(1)


def keep_freed_memory() -> None:
    """Let this process keep what it frees, large blocks too, for its next step: where the C library is glibc.

    By itself, glibc gives such blocks back to the system, which clears every page of the next ones: a fifth of a train
    step's time on a CPU. See `give_back_freed_memory`.
    """
    if hasattr(_libc, "malloc_trim"):
        _libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never
        _libc.mallopt(_M_MMAP_MAX, 0)


def give_back_freed_memory() -> None:
    """Return the C heap's free pages to the system, at every `GIVE_BACK_EVERY`th call: where the C library is glibc.

    Sequences of ever new lengths fragment the heap, train step by step.
    """
    if next(_steps) % GIVE_BACK_EVERY == 0 and hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


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
