"""Memory that long-running processes would keep for nothing."""

from __future__ import annotations

import ctypes


def give_back_freed_memory() -> None:
    """Return the C heap's free pages to the system: sequences of ever new lengths fragment it, train step by step."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
