"""The context of an agent: the turns that stay in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONTEXTS = ("full", "last_n_turns", "summarize_observations")
NUM_TURNS = 5  # where the option does not say


@dataclass(frozen=True)
class Said:
    """One completion of an episode.

    Args:
        kind: "action", "plan", "reflection" or "summary".
        attempt: in which it was written, from 1.
        is_pinned: it stays in every context, as a plan and the reflection on a failed attempt do.
    """

    kind: str
    attempt: int
    is_pinned: bool = False


@dataclass(frozen=True)
class Context:
    """The turns that a policy reads.

    Args:
        kind: one of `CONTEXTS`.
        num_turns: the actions that stay, with what followed them; or those after which a summary is due.
    """

    kind: str = "full"
    num_turns: int = NUM_TURNS

    @property
    def note(self) -> str:
        """The system prompt's words about it."""
        if self.kind == "last_n_turns":
            return f"You read the task and your last {self.num_turns} turns; older ones are left out."
        if self.kind == "summarize_observations":
            return (
                f"After every {self.num_turns} actions you are asked for a summary; what came before it is then left "
                "out, but for the task."
            )
        return ""

    def wants_summary(self, said: Sequence[Said]) -> bool:
        """Return whether enough actions were taken in this attempt since the last summary."""
        if self.kind != "summarize_observations":
            return False
        since = 0
        for turn in said:
            since = 0 if turn.kind == "summary" or turn.attempt != said[-1].attempt else since + (turn.kind == "action")
        return since >= self.num_turns

    def kept(self, said: Sequence[Said], attempt: int) -> list[int]:
        """Return the turns that the policy reads next, by their numbers: all, or the pinned ones and the latest.

        The latest are of the present attempt alone: the last `num_turns` actions and what followed the first of them,
        or the last summary and what followed it.
        """
        if self.kind == "full":
            return list(range(len(said)))
        first = 0
        if self.kind == "last_n_turns":
            actions = [k for k, turn in enumerate(said) if turn.kind == "action"]
            first = actions[-self.num_turns] if len(actions) > self.num_turns else 0
        elif summaries := [k for k, turn in enumerate(said) if turn.kind == "summary"]:
            first = summaries[-1]
        return [k for k, turn in enumerate(said) if turn.is_pinned or (k >= first and turn.attempt == attempt)]
