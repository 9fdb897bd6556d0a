"""What Ray's workers have for the user, who does not see their logs: the phases of a run, a runner that waits, how far
the sampling is.

They go through the cluster's key-value store: a call of the runner would have to wait until the sampling is over.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from typing import TYPE_CHECKING

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)

if TYPE_CHECKING:
    from rllm_gym.rollout.loop import RolloutLoop

NAMESPACE = "rllm_gym/notices"
PROGRESS = "rllm_gym/progress"


def tell(text: str) -> None:
    """Give the user a line; nothing where no Ray runs."""
    if _internal_kv_initialized():
        key = f"{time.time():.6f}-{uuid.uuid4().hex}"  # in the order of time
        _internal_kv_put(key, text, namespace=NAMESPACE)


class NoticeHandler(logging.Handler):
    """Also gives what a logger says to the user.

    Args:
        who: begins every line.
    """

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def emit(self, record: logging.LogRecord) -> None:
        tell(f"{self._who}: {record.getMessage()}")


class ProgressReports:
    """Lets the user see how many of a sampler's episodes have ended, from a thread that looks every second.

    Args:
        loop: of the sampler.
    """

    def __init__(self, loop: RolloutLoop, *, tick_s: float = 1.0) -> None:
        self._loop, self._tick_s = loop, tick_s
        self._who = f"{platform.node()}-{os.getpid()}-{id(self)}"
        self._is_stopped = threading.Event()
        threading.Thread(target=self._watch, name="progress-reports", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()

    def _watch(self) -> None:
        total, told = 0, (0, 0)
        while not self._is_stopped.wait(self._tick_s):
            left = self._loop.num_unfinished_episodes
            total = max(total, left) if left else 0
            if (total - left, total) != told and _internal_kv_initialized():
                told = (total - left, total)
                _internal_kv_put(self._who, f"{told[0]} {told[1]}", namespace=PROGRESS)


def progress_of_all() -> tuple[int, int]:
    """Return how many episodes have ended, and of how many, over all samplers that are at work."""
    values = [_internal_kv_get(key, namespace=PROGRESS) for key in _internal_kv_list("", namespace=PROGRESS)]
    pairs = [tuple(map(int, value.split())) for value in values if value]
    return sum(done for done, _ in pairs), sum(total for _, total in pairs)


def take_notices() -> list[str]:
    """Return the lines that have come since the last call."""
    keys = sorted(_internal_kv_list("", namespace=NAMESPACE))
    lines = [_internal_kv_get(key, namespace=NAMESPACE).decode() for key in keys]
    for key in keys:
        _internal_kv_del(key, namespace=NAMESPACE)
    return lines
