"""An episode as text for a terminal: who said what, with what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs the trainer, and who plays by hand does not
    from rllm_gym.data import EpisodeRecord

SHORTENED = "..."


def headline(record: EpisodeRecord) -> str:
    """Return an episode's task and end in one line."""
    outcome = "error" if record.error is not None else "solved" if record.is_success else "not solved"
    parts = [str(record.item_id if record.item_id is not None else record.env_id)]
    if record.category:
        parts.append(record.category)
    parts += [
        f"{record.split or ''}{' (evaluation)' if record.is_evaluation else ''}".strip(),
        f"{outcome} ({record.end_reason})",
        f"return {record.total_reward:g}",
        f"{len(record.turns)} turns",
        "" if record.max_episode_steps is None else f"horizon {record.max_episode_steps}",
        "" if record.train_step is None else f"step {record.train_step}",
        f"episode {record.episode_id}",
        "" if record.agent_id == "agent" else f"agent {record.agent_id}",
    ]
    return printable("  ".join(part for part in parts if part))


def episode_lines(record: EpisodeRecord, *, max_chars: int | None = None) -> Iterator[str]:
    """Yield an episode's headline and messages, line by line.

    Args:
        max_chars: of a message; what is longer is cut in its middle. None prints all of it.
    """
    yield headline(record)
    turns = iter(record.turns)
    for message in record.messages:
        name = {"user": "env", "assistant": "agent"}.get(message["role"], message["role"])
        first, *rest = printable(shortened(message["content"].strip(), max_chars)).split("\n")
        yield f"  {name:<7}{first}"
        yield from (f"  {'':<7}{line}" for line in rest)
        if message["role"] == "assistant" and (turn := next(turns, None)) is not None:
            notes = [f"reward {turn.reward:g}"] if turn.reward else []
            notes += ["invalid action"] if turn.is_invalid_action else []
            if notes:
                yield f"  {'':<7}({', '.join(notes)})"
    if record.error is not None:
        yield f"  error  {printable(' '.join(record.error.split()))}"


def brief_lines(record: EpisodeRecord, *, max_turns: int = 6, max_chars: int = 120) -> Iterator[str]:
    """Yield an episode in short: its headline, the end of its task, and the last line of each action."""
    yield headline(record)
    asked = next((message["content"] for message in record.messages if message["role"] == "user"), "")
    yield f"  task   {_last_line(asked, max_chars)}"
    said = [message["content"] for message in record.messages if message["role"] == "assistant"]
    for text in said[:max_turns]:
        yield f"  agent  {_last_line(text, max_chars)}"
    if len(said) > max_turns:
        yield f"  {'':<7}{SHORTENED} {len(said) - max_turns} more turns"


def _last_line(text: str, max_chars: int) -> str:
    lines = text.strip().splitlines()
    return printable(shortened(lines[-1], max_chars)) if lines else ""


def shortened(text: str, max_chars: int | None) -> str:
    """Return a text of at most `max_chars` characters, with the middle left out where it is longer."""
    if max_chars is None or len(text) <= max_chars:
        return text
    half = (max_chars - len(SHORTENED)) // 2
    return f"{text[:half]} {SHORTENED} {text[-half:]}"


def printable(text: str) -> str:
    """Return a text that moves no cursor and sets no colour: control characters are spelt, but for line breaks."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
