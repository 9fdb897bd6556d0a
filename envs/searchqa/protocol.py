"""The turns of a search agent, <think>, <search>, <information>, <answer>, as text: parsing and rendering."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rllm_gym.envs.searchqa.retrievers.base import Passage

MAX_PASSAGE_CHARS = 4000  # of a passage in a reply; wiki-18's have 100 words
_WELL_FORMED = [["<think>", "</think>", f"<{kind}>", f"</{kind}>"] for kind in ("search", "answer")]
_TAG = re.compile(r"</?(?:think|search|information|answer)>")


class Action(NamedTuple):
    """The action of a turn: `kind` is "search" or "answer", or "" for a text that does neither."""

    kind: str
    content: str = ""


class Element(NamedTuple):
    """The content between a tag and its end; `begin` and `end` are those of the whole."""

    begin: int
    content: str
    end: int


def elements(text: str, tag: str) -> Iterator[Element]:
    """Yield the elements of a tag, in linear time; a regular expression's grows with the text's square."""
    end = 0
    # Where a tag has no end, no later one has.
    while (begin := text.find(f"<{tag}>", end)) >= 0 and (close := text.find(f"</{tag}>", begin)) >= 0:
        end = close + len(tag) + 3
        yield Element(begin, text[begin + len(tag) + 2 : close], end)


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
    search, answer = (next(elements(text, tag), None) for tag in ("search", "answer"))
    if search and (not answer or search.begin < answer.begin):
        content = search.content.strip()
        return Action("search", content) if content else Action("")
    content = [element.content.strip() for element in elements(text, "answer")][-1] if answer else ""
    return Action("answer", content) if content else Action("")


def is_well_formed(text: str) -> bool:
    """Return whether a turn is one thought and then one search or answer, with nothing around and no tag inside."""
    tags = list(itertools.islice(_TAG.finditer(text), 5))
    if [tag[0] for tag in tags] not in _WELL_FORMED:
        return False
    around = (text[: tags[0].start()], text[tags[1].end() : tags[2].start()], text[tags[3].end() :])
    return not any(part.strip() for part in around)


def render_passages(passages: Sequence[Passage]) -> str:
    """Return the reply to a search."""
    docs = []
    for number, passage in enumerate(passages, 1):
        title, _, text = passage.contents[:MAX_PASSAGE_CHARS].partition("\n")
        docs.append(f"Doc {number}(Title: {title}) {text}")
    return "<information>" + "\n".join(docs or ["No passage found."]) + "</information>"
