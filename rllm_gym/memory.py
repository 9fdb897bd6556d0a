"""How much memory a run holds, and how it gives back what it no longer needs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import psutil

# Returns the C heap's free pages to the system: sequences of ever new lengths fragment it, train step by step. A call
# without effect where the C library has no such function (glibc has it).
give_back_freed_memory: Callable[[], Any] = functools.partial(getattr(ctypes.CDLL(None), "malloc_trim", int), 0)


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
