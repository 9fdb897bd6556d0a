"""Lets the processes of a run finish a train step when a scheduler signals all of them; the driver ends them."""

from __future__ import annotations

import contextlib
import signal


def outlive_sigterm() -> None:
    """Do nothing at SIGTERM, in a worker whose driver has asked for an end already.

    Its children get the default again: a handler does not outlive `exec`, as a signal that is ignored would. A thread
    that is not the main one sets no handler; there the signal stays as it is.
    """
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
