"""Tells the user, from a thread of its own, what a rollout loop waits for and how far it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

FIRST_REPORT_S = 60.0  # the next ones come after twice the time
PROGRESS_S = 1.0


@dataclass(frozen=True)
class Waiting:
    """The reason that a loop waits, and since when no episode has ended, without time in which nobody drove it."""

    seconds_without_end: float
    num_for_engine: int
    num_for_environments: int
    num_not_begun: int
    longest: str  # the episode that has waited longest; empty where none is in flight

    def __str__(self) -> str:
        text = (
            f"{self.num_for_engine + self.num_for_environments} episodes are in flight, {self.num_for_engine} of them "
            f"wait for the engine and {self.num_for_environments} for their environments; {self.num_not_begun} have "
            "not begun."
        )
        return f"{text} The longest one: {self.longest}." if self.longest else text


class Watcher:
    """Looks again and again, until it is stopped.

    Args:
        look: called every `tick_s`; False ends the watch.
    """

    def __init__(self, look: Callable[[], bool], *, tick_s: float, name: str) -> None:
        self._look, self._tick_s = look, tick_s
        self._is_stopped = threading.Event()
        threading.Thread(target=self._watch, name=name, daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()

    def _watch(self) -> None:
        while not self._is_stopped.wait(self._tick_s) and self._look():
            pass


class WaitingReports(Watcher):
    """Logs what a loop waits for when no episode has ended for long; the loop's own thread may be the one that hangs.

    Args:
        waiting: returns what it waits for; None where it is there no more.
        tick_s: how often to look.
    """

    def __init__(self, waiting: Callable[[], Waiting | None], *, tick_s: float | None = None) -> None:
        self._waiting, self._due_s = waiting, FIRST_REPORT_S
        super().__init__(self._report, tick_s=FIRST_REPORT_S / 12 if tick_s is None else tick_s, name="waiting-reports")

    def _report(self) -> bool:
        if (waiting := self._waiting()) is None:
            return False
        waited_s = waiting.seconds_without_end
        if waited_s < FIRST_REPORT_S:
            self._due_s = FIRST_REPORT_S
        elif waited_s >= self._due_s:
            self._due_s = 2 * waited_s
            logger.warning("no episode has ended for %.0f s: %s", waited_s, waiting)
        return True


class ProgressReports(Watcher):
    """Tells how many of a sampler's episodes have ended.

    Args:
        num_unfinished: returns how many episodes were submitted and have not ended.
        tell: gets (ended, of how many), when one of them has changed.
    """

    def __init__(
        self, num_unfinished: Callable[[], int], tell: Callable[[int, int], None], *, tick_s: float = PROGRESS_S
    ) -> None:
        self._num_unfinished, self._tell = num_unfinished, tell
        self._total, self._told = 0, (0, 0)
        super().__init__(self._report, tick_s=tick_s, name="progress-reports")

    def _report(self) -> bool:
        left = self._num_unfinished()
        self._total = max(self._total, left) if left else 0
        now = (self._total - left, self._total)
        if now != self._told:
            self._told = now
            self._tell(*now)
        return True
