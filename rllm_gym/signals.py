"""Signals: those of schedulers, which let a train step end, and the one that ends a call which does not return."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn


def outlive_sigterm() -> None:
    """Do nothing at SIGTERM, in a worker whose driver has asked for an end already.

    Its children get the default again: a handler does not outlive `exec`, as a signal that is ignored would. A thread
    that is not the main one sets no handler; there the signal stays as it is.
    """
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raise where the body, foreign code, takes longer; in another thread than the main one there is no limit.

    Raises:
        TimeoutError: says what must return within how many seconds.
    """

    def end(number: int, frame: object) -> NoReturn:
        raise TimeoutError(f"{what} must return within {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
