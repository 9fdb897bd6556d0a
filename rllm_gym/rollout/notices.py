"""Lines that Ray's workers have for the user, who does not see their logs: the phases of a run, a runner that waits.

They go through the cluster's key-value store: a call of the runner would have to wait until the sampling is over.
"""

from __future__ import annotations

import logging
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


def take_notices() -> list[str]:
    """Return the lines that have come since the last call."""
    keys = sorted(_internal_kv_list("", namespace=NAMESPACE))
    lines = [_internal_kv_get(key, namespace=NAMESPACE).decode() for key in keys]
    for key in keys:
        _internal_kv_del(key, namespace=NAMESPACE)
    return lines
