"""Evaluations: panels of tasks, what a policy does on them, and how two policies compare."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_gym.evaluation.game import evaluate_game
    from rllm_gym.evaluation.matches import win_rates
    from rllm_gym.evaluation.run import evaluate
    from rllm_gym.games.nash import nash_conv

__all__ = ["evaluate", "evaluate_game", "nash_conv", "win_rates"]
_MODULES = {
    "evaluate": "rllm_gym.evaluation.run",
    "evaluate_game": "rllm_gym.evaluation.game",
    "nash_conv": "rllm_gym.games.nash",
    "win_rates": "rllm_gym.evaluation.matches",
}


def __getattr__(name: str) -> Any:
    """Import what needs the trainer only when it is asked for; panels and comparisons do without."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
