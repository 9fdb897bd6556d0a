"""Says what a rollout loop waits for when no episode has ended for long."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllm_gym.rollout.loop import RolloutLoop

logger = logging.getLogger(__name__)

FIRST_REPORT_S = 60.0  # the next ones come after twice the time


class WaitingReports:
    """Watches a loop from a thread of its own, for the loop's may be the one that hangs.

    Args:
        loop: is not kept alive.
        tick_s: how often it looks.
    """

    def __init__(self, loop: RolloutLoop, *, tick_s: float | None = None) -> None:
        self._loop, self._tick_s = weakref.ref(loop), FIRST_REPORT_S / 12 if tick_s is None else tick_s
        self._due_s = FIRST_REPORT_S
        self._is_stopped = threading.Event()
        threading.Thread(target=self._watch, name="waiting-reports", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()

    def _watch(self) -> None:
        while not self._is_stopped.wait(self._tick_s) and (loop := self._loop()) is not None:
            waited_s = loop.seconds_without_end
            if waited_s < FIRST_REPORT_S:
                self._due_s = FIRST_REPORT_S
            elif waited_s >= self._due_s:
                self._due_s = 2 * waited_s
                logger.warning("no episode has ended for %.0f s: %s", waited_s, describe_waiting(loop))
            del loop


def describe_waiting(loop: RolloutLoop) -> str:
    """Return how many episodes wait for what, and which one has waited longest; from any thread."""
    in_flight = loop.in_flight()
    num_in_engine = sum(is_in_engine for _, is_in_engine, _ in in_flight)
    text = (
        f"{len(in_flight)} episodes are in flight, {num_in_engine} of them wait for the engine and "
        f"{len(in_flight) - num_in_engine} for their environments; {loop.num_unfinished_episodes - len(in_flight)} "
        "have not begun."
    )
    if not in_flight:
        return text
    play, is_in_engine, seconds = max(in_flight, key=lambda found: found[2])
    job = play.slot.job
    what = "the engine" if is_in_engine else f"{(job and job.call) or 'a worker'} of {play.slot.name}"
    episode = play.episode
    return f"{text} The longest one: episode {episode.episode_id} ({episode.item_id}), {seconds:.0f} s for {what}."
