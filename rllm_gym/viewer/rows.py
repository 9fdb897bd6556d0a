"""The row of a record in the list of episodes, read from a stored line without its token ids."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_type_hints

from pydantic_core import from_json

MAX_CHARS = 10_000  # of a text in a row


class Row(NamedTuple):
    """One record in the list; the page gets rows as arrays in this order.

    `id` names the record in links. `run` and `trial` are numbers of the index's runs and trials. `version` is the
    policy version of the last turn, -1 without one. `step` is the train step, `group` the task group's key, and
    `invalid` counts invalid actions.
    """

    id: str
    run: int
    trial: int
    env: str
    item: str
    split: str
    category: str
    success: bool | None
    total: float
    turns: int
    tokens: int
    version: int
    step: int | None
    end: str
    agent: str
    episode: str
    group: str
    member: int
    evaluation: bool
    horizon: int | None
    seed: int
    invalid: int


# Arrays of numbers that no row needs, left out before parsing. Within a JSON string quotation marks are escaped, so
# that no part of a text is taken for one.
_NUMBERS = re.compile(
    rb'"(?:observation_ids|logp|advantage|trainer_logp|token_versions|final_observation_ids)":\s*\[[-+0-9.eE,\s]*\]'
)


def parse_row(line: bytes, *, run: int, trial: int) -> Row:
    """Return a stored line's row, without its id.

    Raises:
        ValueError: the line is no record.
    """
    record = from_json(_NUMBERS.sub(b'"_":0', line), allow_inf_nan=False)
    try:
        turns: Sequence[dict[str, Any]] = record["turns"]
        item = record.get("item_id")
        row = Row(
            id="",
            run=run,
            trial=trial,
            env=str(record["env_id"]),
            item="" if item is None else str(item),
            split=record.get("split") or "",
            category=record.get("category") or "",
            success=record.get("is_success"),
            total=float(sum(turn["reward"] for turn in turns)),
            turns=len(turns),
            tokens=sum(len(turn["action_ids"]) for turn in turns),
            version=turns[-1]["policy_version"] if turns else -1,
            step=record.get("train_step"),
            end=str(record["end_reason"]),
            agent=record.get("agent_id") or "agent",
            episode=str(record["episode_id"]),
            group="-".join(map(str, record.get("group") or [])),
            member=int(record.get("member") or 0),
            evaluation=bool(record.get("is_evaluation")),
            horizon=record.get("max_episode_steps"),
            seed=int(record["seed"]),
            invalid=sum(bool(turn.get("is_invalid_action")) for turn in turns),
        )
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"no trajectory record: {type(error).__name__}: {error!s:.200}") from error
    for name, value in row._asdict().items():
        if not _FITS[_COLUMNS[name]](value):
            raise ValueError(f"no trajectory record: {name} is {value!r:.200}")
    return row


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_CHARS


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


# What a column may hold, so that one odd record never spoils the page of all.
_COLUMNS = get_type_hints(Row)
_FITS: dict[Any, Callable[[Any], bool]] = {
    str: _is_text,
    int: _is_int,
    int | None: lambda value: value is None or _is_int(value),
    float: lambda value: isinstance(value, float) and math.isfinite(value),
    bool: lambda value: isinstance(value, bool),
    bool | None: lambda value: value is None or isinstance(value, bool),
}


_MESSAGES = re.compile(rb'"messages":\s*\[')
_TURNS = re.compile(rb'\],\s*"turns":\s*\[')


def says(line: bytes, text: str, folded: str) -> bool:
    """Whether a line's messages contain a text, in any case.

    Args:
        folded: `text` in lower case, as JSON has it, which most lines do not contain anywhere.
    """
    begin, end = _MESSAGES.search(line), None
    if begin:
        end = _TURNS.search(line, begin.end())
    part = line[begin.end() - 1 : end.start() + 1] if begin and end else line
    if folded not in part.decode(errors="replace").lower():
        return False
    try:
        found = from_json(part)
    except ValueError:
        return False
    messages = found if isinstance(found, list) else found.get("messages", [])
    contents = (message.get("content", "") for message in messages if isinstance(message, dict))
    return any(text in str(content).lower() for content in contents)
