"""How much memory a run holds, and how it gives back what it no longer needs."""

from __future__ import annotations

import ctypes

import psutil


def give_back_freed_memory() -> None:
    """Return the C heap's free pages to the system: sequences of ever new lengths fragment it, train step by step."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


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
