"""Evaluations: panels of tasks, what a policy does on them, and how two policies compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_gym.evaluation.playing import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:
    """Import what needs the trainer only when it is asked for; panels and comparisons do without."""
    if name != "evaluate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rllm_gym.evaluation.playing import evaluate

    return evaluate
