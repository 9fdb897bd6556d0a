"""A rollout loop that plays on while its owner does something else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import torch

from rllm_gym.errors import EngineDiedError, RllmGymError

if TYPE_CHECKING:
    from rllm_gym.rollout.loop import RolloutLoop
    from rllm_gym.types import EpisodeGroup, TaskGroup

LOOK_S = 1.0  # how often a caller looks whether the thread has died


class _StopError(Exception):
    pass


class BackgroundSampling:
    """Plays what its loop has been given, in a thread of its own, which alone touches the loop and its engines.

    What others want of them, such as to load weights, is done there between two steps of the engines.

    Args:
        loop: must not be driven by anybody else while it plays.
        num_threads: of torch, which has a number for each thread.
    """

    def __init__(self, loop: RolloutLoop, *, num_threads: int) -> None:
        self._loop, self._num_threads = loop, num_threads
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], Future[None]] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[EpisodeGroup] = queue.SimpleQueue()
        self._error: Exception | None = None
        self.groups: set[tuple[int, ...]] = set()  # the keys of those that were begun and not taken
        self._thread = threading.Thread(target=self._run, name="background-sampling", daemon=True)
        self._thread.start()

    def begin(self, submit: Callable[[], object], groups: Iterable[TaskGroup]) -> None:
        """Let a function submit groups to the loop, between two steps of its engines."""
        self.between_steps(submit)
        self.groups |= {group.key for group in groups}

    def between_steps(self, function: Callable[[], object]) -> None:
        """Call a function between two steps of the engines, and wait until it is done.

        Raises:
            RllmGymError: the thread has died. What the function raises is raised here, and the thread plays on.
        """
        done: Future[None] = Future()
        self._calls.put((function, done))
        while not wait([done], LOOK_S).done:
            self._check()
        done.result()

    def take(self, wait_s: float) -> list[EpisodeGroup]:
        """Return the groups that have ended since the last call; waits for a first one, at most so many seconds."""
        groups = []
        try:
            groups.append(self._finished.get(timeout=wait_s))
            while True:
                groups.append(self._finished.get_nowait())
        except queue.Empty:
            self._check()
        self.groups -= {ended.group.key for ended in groups}
        return groups

    def stop(self) -> None:
        """End the thread; the loop keeps what it has not played."""
        self._calls.put(None)
        self._thread.join()

    def _check(self) -> None:
        if isinstance(self._error, EngineDiedError):
            raise self._error
        if self._error is not None:
            raise RllmGymError(f"sampling in the background failed: {self._error}") from self._error

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        try:
            while (call := self._calls.get()) is not None:  # nothing is played
                _answer(*call)
                for group in self._loop.finished_groups(between_steps=self._answer_all):
                    self._finished.put(group)
        except _StopError:
            pass
        except Exception as error:  # whatever it was, the owner raises it
            self._error = error

    def _answer_all(self) -> None:
        while not self._calls.empty():
            if (call := self._calls.get()) is None:
                raise _StopError
            _answer(*call)


def _answer(function: Callable[[], object], done: Future[None]) -> None:
    try:
        function()
    except Exception as error:
        done.set_exception(error)
    else:
        done.set_result(None)
