"""The turns of a search agent, <think>, <search>, <information>, <answer>, as text: parsing and rendering."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rllm_gym.envs.searchqa.retrievers.base import Passage

MAX_PASSAGE_CHARS = 4000  # of a passage in a reply; wiki-18's have 100 words
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_WELL_FORMED = re.compile(r"\s*<think>(.*?)</think>\s*<(search|answer)>(.*?)</\2>\s*", re.DOTALL)
_TAG = re.compile(r"</?(?:think|search|information|answer)>")


class Action(NamedTuple):
    """What a turn does: `kind` is "search" or "answer", or "" for a text that does neither."""

    kind: str
    content: str = ""


def parse_turn(text: str) -> Action:
    """Return the action of a model's turn: the first search or answer whose tag is opened and closed.

    Where that is an answer and there are several, the last answer is taken, as in Search-R1 and AgentGym. An empty
    one is no action.

    Raises:
        TypeError: `text` is not a string, as when token ids reach a text environment.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"SearchQAEnv: an action is a string; got {type(text).__name__}. "
            'Make the environment with obs_type="token" to step it with token ids.'
        )
    match = _ACTION.search(text)
    if match is None:
        return Action("")
    kind, content = match[1], match[2]
    if kind == "answer":
        content = _ANSWER.findall(text)[-1]
    return Action(kind, content.strip()) if content.strip() else Action("")


def is_well_formed(text: str) -> bool:
    """Return whether a turn is one thought and then one search or answer, with nothing around and no tag inside."""
    match = _WELL_FORMED.fullmatch(text)
    return match is not None and not any(_TAG.search(part) for part in (match[1], match[3]))


def render_passages(passages: Sequence[Passage]) -> str:
    """Return the reply to a search."""
    docs = []
    for number, passage in enumerate(passages, 1):
        title, _, text = passage.contents[:MAX_PASSAGE_CHARS].partition("\n")
        docs.append(f"Doc {number}(Title: {title}) {text}")
    return "<information>" + "\n".join(docs or ["No passage found."]) + "</information>"
