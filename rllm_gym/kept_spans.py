"""Where the words of a policy stand in a template's rendering, so that sampled ids stay where their text stays."""

from __future__ import annotations

import difflib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MOST_LINES = 400  # of a text that is compared line by line
_LEAST_HEAD = 4  # characters of a literal that are looked for


class Span(NamedTuple):
    """A piece of a rendering that is a piece of what was said: `rendered[start:end] == said[at : at + end - start]`."""

    start: int
    end: int
    at: int


@dataclass(frozen=True)
class EncodedText:
    """A text and its tokens, with the characters where each begins and ends.

    Args:
        hard: the numbers of the tokens that no neighbour can become part of: added ones.
    """

    text: str
    ids: list[int]
    starts: list[int]
    ends: list[int]
    hard: list[int]

    def is_boundary(self, at: int) -> bool:
        """Return whether no token stands on both sides of a character."""
        k = bisect_left(self.starts, at)
        return k == 0 or self.ends[k - 1] <= at


def find_spans(rendered: str, skeleton: str, marks: Sequence[str], said: Sequence[str]) -> list[list[Span]]:
    """Return the pieces of each text that a template has kept, in order.

    Args:
        rendered: what the template makes of a conversation.
        skeleton: what it makes of the same one with a mark in place of each text of the policy.
        said: these texts.
    """
    found: list[list[Span]] = [[] for _ in said]
    literals: list[tuple[int, str]] = []  # the text that was said, and the literal before it
    at = 0
    for k, mark in enumerate(marks):
        place = skeleton.find(mark, at)
        if place >= 0:  # some templates leave old turns out
            literals.append((k, skeleton[at:place]))
            at = place + len(mark)
    literals.append((-1, skeleton[at:]))
    position = 0
    for (k, before), (_, after) in itertools.pairwise(literals):
        start = position + common_prefix(rendered[position:], before)
        whole = start + len(said[k])
        if rendered.startswith(said[k], start) and rendered.startswith(after[:16], whole):
            spans, end = [Span(start, whole, 0)], whole
        else:
            end = _find(rendered, after, start)
            if end < 0:
                position = start
                continue
            spans = [Span(start + a, start + b, i) for a, b, i in _common(said[k], rendered[start:end])]
        found[k] = [span for span in _widened(spans, rendered, said[k], position) if span.end > span.start]
        position = max([end, *(span.end for span in found[k])])
    return found


def _find(text: str, literal: str, start: int) -> int:
    """Return where a literal begins; its end may depend on what was said."""
    length = len(literal)
    while length >= min(_LEAST_HEAD, len(literal)):
        if (place := text.find(literal[:length], start)) >= 0:
            return place
        length //= 2
    return -1


def _common(said: str, kept: str) -> list[Span]:
    """Return the pieces of what was said that are in what a template made of it."""
    if not kept or not said.strip():
        return []
    if (at := said.rfind(kept)) >= 0:  # white space or a thought is gone
        return [Span(0, len(kept), at)]
    core = said.strip()
    if (place := kept.find(core)) >= 0:
        return [Span(place, place + len(core), said.find(core))]
    ours, theirs = said.splitlines(keepends=True), kept.splitlines(keepends=True)
    if max(len(ours), len(theirs)) <= _MOST_LINES:
        blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        ours_at, theirs_at = _line_starts(ours), _line_starts(theirs)
        lines = [Span(theirs_at[b], theirs_at[b + size], ours_at[a]) for a, b, size in blocks if size]
        if lines:
            return lines
    length = common_prefix(said[::-1], kept[::-1])
    return [Span(len(kept) - length, len(kept), len(said) - length)]


def _widened(spans: list[Span], rendered: str, said: str, first: int) -> list[Span]:
    """Return the spans with what stands beside them in both texts, such as the space that a template writes itself."""
    out: list[Span] = []
    for k, (span_start, span_end, span_at) in enumerate(spans):
        start, end, at = span_start, span_end, span_at
        least, least_at = (out[-1].end, out[-1].at + out[-1].end - out[-1].start) if out else (first, 0)
        most = spans[k + 1].start if k + 1 < len(spans) else len(rendered)
        while start > least and at > least_at and rendered[start - 1] == said[at - 1]:
            start, at = start - 1, at - 1
        while end < most and at + end - start < len(said) and rendered[end] == said[at + end - start]:
            end += 1
        out.append(Span(start, end, at))
    return out


def _line_starts(lines: Sequence[str]) -> list[int]:
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return starts


def common_prefix(a: str, b: str) -> int:
    if b.startswith(a) or a.startswith(b):
        return min(len(a), len(b))
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def sampled_tokens(
    ids: Sequence[int], said: str, span: Span, decode: Callable[[Sequence[int]], str]
) -> tuple[Span, list[int]] | None:
    """Return the sampled ids that say a span, and the part of it that they say; None where no whole token does."""
    length = span.end - span.start
    if span.at == 0 and length == len(said):
        return span, list(ids)
    first = first_token_at(ids, span.at, decode)
    last = first_token_at(ids, span.at + length + 1, decode) - 1  # the last boundary that is not behind the span
    for begin in range(first, min(first + 4, last)):  # a character may be of several tokens
        start = len(decode(ids[:begin])) if begin else 0
        for stop in range(last, max(last - 4, begin), -1):
            text = decode(ids[begin:stop])
            if start >= span.at and start + len(text) <= span.at + length and said.startswith(text, start):
                offset = span.start - span.at
                return Span(start + offset, start + offset + len(text), start), list(ids[begin:stop])
    return None


def first_token_at(ids: Sequence[int], at: int, decode: Callable[[Sequence[int]], str]) -> int:
    """Return the number of the first token that begins at a character or behind it, `len(ids)` where there is none."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if len(decode(ids[:middle])) < at else (low, middle)
    return low


def splice(
    encoded: EncodedText, kept: Sequence[tuple[Span, list[int]]], encode: Callable[[str], list[int]]
) -> list[int]:
    """Return the tokens of a text in which spans keep the ids that were sampled.

    Everything else has the tokens of the whole text, but for one that would reach into a span.

    Args:
        encode: text without added tokens -> ids.
    """
    ids: list[int] = []
    at = 0
    for span, sampled in kept:
        ids += _between(encoded, at, span.start, encode)
        ids += sampled
        at = span.end
    return ids + _between(encoded, at, len(encoded.text), encode)


def _between(encoded: EncodedText, start: int, end: int, encode: Callable[[str], list[int]]) -> list[int]:
    if start == end:
        return []
    before: list[int] = []
    after: list[int] = []
    if not encoded.is_boundary(start):  # a token reaches out of the span: up to the next added token anew
        stop = next((encoded.starts[k] for k in encoded.hard if start <= encoded.starts[k] < end), end)
        before, start = encode(encoded.text[start:stop]), stop
    if start < end and not encoded.is_boundary(end):
        begin = next((encoded.ends[k] for k in reversed(encoded.hard) if start <= encoded.ends[k] <= end), start)
        after, end = encode(encoded.text[begin:end]), begin
    if start == end:
        return before + after
    return before + encoded.ids[bisect_left(encoded.starts, start) : bisect_left(encoded.starts, end)] + after
