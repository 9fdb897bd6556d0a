"""Lines of Ray's workers for the user, who does not see their logs: the phases of a run, a runner that waits, how far
the sampling is.

They go through the cluster's key-value store: a call of the runner would have to wait until the sampling is over.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)

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


def tell_progress(done: int, total: int) -> None:
    """Let the user see how many of this process's episodes have ended, and of how many."""
    if _internal_kv_initialized():
        _internal_kv_put(f"{platform.node()}-{os.getpid()}", f"{done} {total}", namespace=PROGRESS)


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
