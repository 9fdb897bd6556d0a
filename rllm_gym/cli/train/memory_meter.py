"""Watches how much memory a run's processes hold, and says so at its end."""

from __future__ import annotations

from typing import Any

from ray.tune import Callback

from rllm_gym.memory import process_tree_bytes

SETTLED_AFTER = 5  # train steps; caches and allocators fill up in the first ones


class MemoryMeter(Callback):
    """Measures after every train step; local Ray's processes are all below the driver."""

    def __init__(self) -> None:
        self.bytes_by_step: list[int] = []

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.bytes_by_step.append(process_tree_bytes())

    @property
    def growth(self) -> float | None:
        """Growth from the train steps just after the first five to the last ones, as a share; None for a short run.

        Each end is the median of up to five steps, since evaluations and checkpoints come and go.
        """
        settled = self.bytes_by_step[SETTLED_AFTER:]
        if len(settled) < 2:
            return None
        width = min(5, len(settled) // 2)
        first, last = sorted(settled[:width])[width // 2], sorted(settled[-width:])[width // 2]
        return last / first - 1

    def describe(self) -> str | None:
        """Return the line for the end of a run; None where nothing was measured."""
        if not self.bytes_by_step:
            return None
        text = f"at most {max(self.bytes_by_step) / 1e9:.2f} GB in all processes"
        if self.growth is not None:
            text += f"; {self.growth:+.1%} after the first {SETTLED_AFTER} train steps"
        return text
