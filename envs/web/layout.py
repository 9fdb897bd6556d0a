"""Facts that the accessibility tree lacks: which elements take clicks, words of their attributes, where they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_HINT_CHARS = 40
HINT_ATTRIBUTES = ("id", "class", "fill")  # and data-*
# What a mouse has to do with, beside what takes clicks: shapes, and what jQuery UI lets one drag or resize.
SVG_SHAPES = ("circle", "ellipse", "rect", "line", "path", "polygon", "polyline", "text")
SHAPES = (*SVG_SHAPES, "CANVAS", "IMG", "TEXTAREA")
DRAGGABLE = ("ui-draggable", "ui-sortable-handle", "ui-resizable-handle", "ui-droppable")
WHOLE_PAGE = ("#document", "HTML", "BODY")  # where scripts listen for everything inside


@dataclass(frozen=True)
class Layout:
    """The elements of a page by Chromium's numbers of their DOM nodes.

    Args:
        clickable: those that are shown and listen for clicks, or react to them by nature.
        above: those that have been scrolled out of view at the top.
        hints: words from an element's attributes; for those that have no name.
        places: x, y, width and height in the viewport, if asked for; then shapes and what can be dragged are clickable.
        shapes: by drawing (SVG) those in it, if places are asked for; the tree has a drawing as one picture.
    """

    clickable: frozenset[int] = frozenset()
    above: frozenset[int] = frozenset()
    hints: dict[int, str] = field(default_factory=dict)
    places: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    shapes: dict[int, list[int]] = field(default_factory=dict)


def read_layout(snapshot: dict[str, Any], *, with_places: bool = False) -> Layout:
    """Parse an answer to DOMSnapshot.captureSnapshot; of frames inside the page, all but what is above."""
    strings = snapshot["strings"]
    clickable: set[int] = set()
    above: set[int] = set()
    hints: dict[int, str] = {}
    places: dict[int, tuple[int, int, int, int]] = {}
    shapes: dict[int, list[int]] = {}
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
        if with_places and number == 0:
            left, top = document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)
            for index, (x, y, width, height) in boxes.items():
                if width > 0 or height > 0:
                    places[ids[index]] = (round(x - left), round(y - top), round(width), round(height))
                    words = {strings[i] for i in nodes["attributes"][index]}
                    if strings[tags[index]] in SHAPES or any(d in word for word in words for d in DRAGGABLE):
                        clickable.add(ids[index])
            for index in boxes:
                if strings[tags[index]] in SVG_SHAPES and ids[index] in places:
                    drawing = nodes["parentIndex"][index]
                    while strings[tags[drawing]] not in ("svg", *WHOLE_PAGE):
                        drawing = nodes["parentIndex"][drawing]
                    shapes.setdefault(ids[drawing], []).append(ids[index])
        for index, attributes in enumerate(nodes["attributes"]):
            if attributes and (hint := _hint(strings[tags[index]], [strings[i] for i in attributes])):
                hints[ids[index]] = hint
    return Layout(frozenset(clickable), frozenset(above), hints, places, shapes)


def _hint(tag: str, attributes: list[str]) -> str:
    """Return the words of an element's attributes; of a drawn shape also which shape it is."""
    words = [tag] if tag.islower() else []  # HTML's tags come in capitals, those of SVG do not
    for name, value in zip(attributes[::2], attributes[1::2], strict=True):
        if name in HINT_ATTRIBUTES or name.startswith("data-"):
            words += value.split()
    return " ".join(words)[:MAX_HINT_CHARS]
