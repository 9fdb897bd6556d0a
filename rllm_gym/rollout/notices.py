"""Lines of Ray's workers for the user, who does not see their logs: the phases of a run, a runner that waits, how far
the sampling is.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid

from rllm_gym.rollout import ray_store

NOTICES, PROGRESS = "notices", "progress"


def tell(text: str) -> None:
    """Give the user a line; nothing where no Ray runs."""
    in_order_of_time = f"{time.time():.6f}-{uuid.uuid4().hex}"
    ray_store.put(NOTICES, in_order_of_time, text)


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
    ray_store.put(PROGRESS, f"{platform.node()}-{os.getpid()}", f"{done} {total}")


def progress_of_all() -> tuple[int, int]:
    """Return how many episodes have ended, and of how many, over all samplers that are at work."""
    pairs = [tuple(map(int, text.split())) for text in ray_store.get_all(PROGRESS)]
    return sum(done for done, _ in pairs), sum(total for _, total in pairs)


def take_notices() -> list[str]:
    """Return the lines that have come since the last call."""
    return ray_store.take_all(NOTICES)
