"""Keeps back what libraries say of themselves at every build: notices, deprecations of their own, progress bars."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

LOGGERS = ("ray", "ray.rllib", "ray.tune", "ray._private.worker", "ray._common.deprecation")


def hold_back() -> None:
    """Let Ray's loggers speak of errors at most, and transformers show no bar; call it after these are imported."""
    for logger in map(logging.getLogger, LOGGERS):
        logger.setLevel(max(logger.level, logging.ERROR))  # the command's is muted: it tells of errors itself
    if "transformers" in sys.modules:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()


@contextlib.contextmanager
def errors_alone(name: str) -> Iterator[None]:
    """Let a logger pass no warnings for a while."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
