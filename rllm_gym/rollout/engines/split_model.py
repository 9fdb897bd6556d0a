"""A model that vLLM has split over several processes (`tensor_parallel_size`), of which any may die."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

import torch

from rllm_gym.errors import EngineDiedError

NOTICED_WITHIN_S = 2.0  # an error may come from the other parts before the system says that one has ended


@contextlib.contextmanager
def threads_shared(num_parts: int) -> Iterator[None]:
    """Give each of the processes that start here its part of this process's threads, which all would take whole."""
    before = os.environ.get("OMP_NUM_THREADS")
    if num_parts > 1:
        os.environ["OMP_NUM_THREADS"] = str(max(torch.get_num_threads() // num_parts, 1))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextlib.contextmanager
def all_parts(executor: Any) -> Iterator[None]:
    """Say so where an error comes from a part that has died: vLLM says that something was cancelled, or not connected.

    Args:
        executor: vLLM's, of whatever kind.

    Raises:
        EngineDiedError: a part has died.
    """
    try:
        yield
    except Exception as error:
        if not _has_lost_a_part(executor):
            raise
        raise EngineDiedError(
            "VLLMEngine: a process that held a part of the model has ended, killed perhaps for memory."
        ) from error


def _has_lost_a_part(executor: Any) -> bool:
    if getattr(executor, "is_failed", False):
        return True
    parts = getattr(executor, "workers", None) or ()
    return bool(parts) and bool(wait([part.proc.sentinel for part in parts], timeout=NOTICED_WITHIN_S))
