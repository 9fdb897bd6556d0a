"""What the accessibility tree does not tell: which elements take clicks, words of their attributes, where they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_HINT_CHARS = 40
HINT_ATTRIBUTES = ("id", "class", "fill")  # and data-*
WHOLE_PAGE = ("#document", "HTML", "BODY")  # where scripts listen for everything inside


@dataclass(frozen=True)
class Layout:
    """The elements of a page by Chromium's numbers of their DOM nodes.

    Args:
        clickable: those that are shown and listen for clicks, or react to them by nature.
        above: those that have been scrolled out of view at the top.
        hints: words from an element's attributes; for those that have no name.
    """

    clickable: frozenset[int] = frozenset()
    above: frozenset[int] = frozenset()
    hints: dict[int, str] = field(default_factory=dict)


def read_layout(snapshot: dict[str, Any]) -> Layout:
    """Return what an answer to DOMSnapshot.captureSnapshot says; of frames inside the page, all but what is above."""
    strings = snapshot["strings"]
    clickable: set[int] = set()
    above: set[int] = set()
    hints: dict[int, str] = {}
    for number, document in enumerate(snapshot["documents"]):
        nodes, layout = document["nodes"], document["layout"]
        ids, tags = nodes["backendNodeId"], nodes["nodeName"]
        boxes = dict(zip(layout["nodeIndex"], layout["bounds"], strict=True))
        for index in nodes["isClickable"]["index"]:
            _, _, width, height = boxes.get(index, (0, 0, 0, 0))
            if width > 0 and height > 0 and strings[tags[index]] not in WHOLE_PAGE:
                clickable.add(ids[index])
        if number == 0:
            top = document.get("scrollOffsetY", 0)
            above = {ids[index] for index, (_, y, _, height) in boxes.items() if y + height <= top}
        for index, attributes in enumerate(nodes["attributes"]):
            if attributes and (hint := _hint(strings[tags[index]], [strings[i] for i in attributes])):
                hints[ids[index]] = hint
    return Layout(frozenset(clickable), frozenset(above), hints)


def _hint(tag: str, attributes: list[str]) -> str:
    """Return the words of an element's attributes; of a drawn shape also which shape it is."""
    words = [tag] if tag.islower() else []  # HTML's tags come in capitals, those of SVG do not
    for name, value in zip(attributes[::2], attributes[1::2], strict=True):
        if name in HINT_ATTRIBUTES or name.startswith("data-"):
            words += value.split()
    return " ".join(words)[:MAX_HINT_CHARS]
