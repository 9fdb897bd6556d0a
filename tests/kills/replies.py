"""What the scripted engine says: always the same to the same prompt, so that a group's episodes must be equal."""

from __future__ import annotations

import functools
import zlib

from rllm_gym.models import resolve_base_model
from rllm_gym.tokens import ChatTokenizer

ACTIONS = ("look around", "inventory", "go north", "open door", "click [1]", "examine me")


@functools.cache
def _chat() -> ChatTokenizer:
    return ChatTokenizer(str(resolve_base_model("tiny")))


def reply(prompt_ids: list[int]) -> list[int]:
    action = ACTIONS[zlib.crc32(repr(list(prompt_ids)).encode()) % len(ACTIONS)]
    return [int(token) for token in _chat().encode_action(f"Action: {action}")]
