"""Shows how far a sampling is that takes long."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import Progress

BAR_AFTER_S, LINE_AFTER_S = 3.0, 15.0


class SamplingProgress:
    """Reports it by a bar of its own, or without a terminal by a line.

    Args:
        progress: gets the bar.
        console: gets the lines.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress, self._console = progress, console
        self._bar = progress.add_task("sampling", total=None, visible=False)
        self._since_s: float | None = None
        self._told_s: float | None = None

    def __call__(self, num_done: int, num_episodes: int) -> None:
        """Show how many of the episodes being sampled have ended; of none, nothing is shown any more."""
        now_s = time.monotonic()
        if not num_episodes:
            self._since_s = self._told_s = None
            self._progress.update(self._bar, visible=False)
            return
        self._since_s = self._since_s or now_s
        if now_s - self._since_s >= BAR_AFTER_S:
            self._progress.update(self._bar, completed=num_done, total=num_episodes, visible=True)
        if not self._console.is_terminal and now_s - (self._told_s or self._since_s) >= LINE_AFTER_S:
            self._console.print(f"sampling: {num_done} of {num_episodes} episodes", highlight=False, soft_wrap=True)
            self._told_s = now_s
