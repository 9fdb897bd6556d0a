"""Reads conversations in JSON: AgentGym's trajectories (`from`, `value`, `loss`) and chat messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.errors import TrajectoryError
from rllm_gym.types import Message

ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}
_BLOCK_CHARS = 2**20
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class Dialogue:
    """A conversation: perhaps a system message, then user and assistant by turns, an assistant's message last.

    Args:
        messages: role and content.
        is_trained: for each message whether its tokens are to be learnt; only an assistant's ever are.
        item_id: the task, where the file names it.
        reward: of the whole, where the file has one.
        final_reply: what the environment said last, where it did; it is in no message.
    """

    messages: tuple[Message, ...]
    is_trained: tuple[bool, ...]
    item_id: str | int | None = None
    reward: float | None = None
    final_reply: str | None = None

    @property
    def is_agentgyms(self) -> bool:
        """Whether it begins in AgentGym's protocol: with an instruction, and an "OK" that is not learnt."""
        if len(self.messages) < 4 or self.messages[0]["role"] != "user" or self.is_trained[1]:
            return False
        return self.messages[1]["content"].strip().lower().startswith("ok.")


def read_dialogues(path: str | Path) -> Iterator[Dialogue]:
    """Return a lazy iterator over the conversations of a JSON array or of JSON Lines.

    Each is `{"conversations": [{"from": "human" | "gpt" | "system", "value": text, "loss": true | false | null}]}` as
    AgentGym publishes them, or `{"messages": [{"role": ..., "content": text}]}`. An assistant's message is learnt
    unless its `loss` is false.

    Raises:
        FileNotFoundError: there is no such file.
        TrajectoryError: while iterating: names the record and what is wrong with it.
    """
    for number, record in enumerate(read_json_objects(path)):
        yield parse_dialogue(record, f"{path}: record {number}")


def parse_dialogue(record: Any, who: str) -> Dialogue:
    """Return the conversation in a JSON object.

    Raises:
        TrajectoryError: `who` and what is wrong.
    """
    messages = record if isinstance(record, list) else None
    if isinstance(record, dict):
        messages = record.get("conversations", record.get("messages"))
    if not isinstance(messages, list) or not messages:
        raise TrajectoryError(
            f'{who}: must hold a list of messages under "conversations" or "messages"; got {_outline(record)}.'
        )
    parsed: list[Message] = []
    is_trained: list[bool] = []
    for k, message in enumerate(messages):
        role, content, loss = _fields(message, f"{who}, message {k}")
        parsed.append({"role": role, "content": content})
        is_trained.append(role == "assistant" and loss is not False)
    final_reply = parsed[-1]["content"] if parsed[-1]["role"] == "user" else None
    while parsed and parsed[-1]["role"] != "assistant":  # what the environment said last has nothing after it to learn
        parsed.pop()
        is_trained.pop()
    _check_turns([message["role"] for message in parsed], who)
    of_record = record if isinstance(record, dict) else {}
    reward = of_record.get("reward")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, (int, float))):
        raise TrajectoryError(f"{who}: reward must be a number; got {reward!r:.80}.")
    return Dialogue(tuple(parsed), tuple(is_trained), of_record.get("item_id"), reward, final_reply)


def read_json_objects(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON array or of JSON Lines; only a part of the file is in memory.

    Raises:
        FileNotFoundError: there is no such file.
        TrajectoryError: the file is neither.
    """
    decoder = json.JSONDecoder()
    with Path(path).open(encoding="utf-8-sig") as file:
        text, position, at_end = "", 0, False
        is_array: bool | None = None
        while True:
            position = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]  # it matches nothing, too
            if is_array is None and position < len(text):
                is_array = text[position] == "["
                position += is_array
                continue
            if is_array and text[position : position + 1] == "]":
                return
            try:
                value, position = decoder.raw_decode(text, position)
            except json.JSONDecodeError as error:
                rest = text[position:]
                if not at_end:
                    # Twice as much each time, so that a long object is not scanned again for every block.
                    block = file.read(max(_BLOCK_CHARS, len(rest)))
                    text, position, at_end = rest + block, 0, not block
                    continue
                if not rest and not is_array:
                    return
                raise TrajectoryError(
                    f"{path}: must be a JSON array or JSON Lines; got {rest[:40]!r} ({error.msg}). Repair the file."
                ) from None
            if not isinstance(value, dict):
                raise TrajectoryError(f"{path}: every record must be a JSON object; got {_outline(value)}.")
            yield value


def _fields(message: Any, who: str) -> tuple[str, str, Any]:
    if not isinstance(message, dict):
        raise TrajectoryError(
            f"{who}: must be an object with from and value, or role and content; got {message!r:.80}."
        )
    role, content = message.get("from", message.get("role")), message.get("value", message.get("content"))
    if role not in ROLES:
        raise TrajectoryError(f"{who}: the speaker must be one of {', '.join(ROLES)}; got {role!r}.")
    if not isinstance(content, str):
        raise TrajectoryError(f"{who}: the content must be text; got {content!r:.80}.")
    if message.get("loss") not in (None, True, False):
        raise TrajectoryError(f"{who}: loss must be true, false or null; got {message['loss']!r}.")
    return ROLES[role], content, message.get("loss")


def _check_turns(roles: Sequence[str], who: str) -> None:
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not turns or list(turns) != ["user", "assistant"] * (len(turns) // 2):
        raise TrajectoryError(
            f"{who}: after the system message, if any, user and assistant must take turns, the user first; got "
            f"{', '.join(roles) or 'no assistant'}. Join or leave out messages."
        )


def _outline(value: Any) -> str:
    return f"the keys {', '.join(map(str, value))}" if isinstance(value, dict) else f"{value!r:.80}"
