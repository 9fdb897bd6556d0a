"""WebArena's actions: parsing them from a model's text, and carrying them out on a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rllm_gym.envs.agents.functions import Function
from rllm_gym.envs.base import parse_action

if TYPE_CHECKING:
    from rllm_gym.envs.web.page import WebPage

ACTIONS = """\
- click [id]: click on an element
- type [id] [text] [1]: replace the text of a field and press Enter; with [0] at the end without Enter
- hover [id]: move the mouse over an element
- press [keys]: press a key or a combination, like Enter or Control+a
- scroll [down] or scroll [up]
- new_tab, tab_focus [number], close_tab: open, choose and close tabs
- goto [url], go_back, go_forward: navigate
- stop [answer]: end the task; the answer is empty where none is asked for"""
# Of environments that show where elements are; WebArena has none of these.
POINTER_ACTIONS = """\
- drag [id] [id]: drag an element onto another
- mouse_click [x] [y]: click at a place, in pixels from the left and from the top
- mouse_drag [x] [y] [x] [y]: press the mouse at a place and release it at another"""
FUNCTIONS = (
    Function("click", "click [{id}]", "click on the element with this number", integers=("id",)),
    Function(
        "type",
        "type [{id}] [{text}] [{enter}]",
        "replace the text of a field; enter is 1 to press Enter afterwards, else 0",
        integers=("id", "enter"),
    ),
    Function("hover", "hover [{id}]", "move the mouse over an element", integers=("id",)),
    Function("press", "press [{keys}]", "press a key or a combination, like Enter or Control+a"),
    Function("scroll", "scroll [{direction}]", "scroll up or down"),
    Function("new_tab", "new_tab", "open a tab"),
    Function("tab_focus", "tab_focus [{number}]", "choose a tab", integers=("number",)),
    Function("close_tab", "close_tab", "close the tab"),
    Function("goto", "goto [{url}]", "go to an address"),
    Function("go_back", "go_back", "go back"),
    Function("go_forward", "go_forward", "go forward again"),
    Function("stop", "stop [{answer}]", "end the task; the answer is empty where none is asked for"),
)
POINTER_FUNCTIONS = (
    Function("drag", "drag [{id}] [{target}]", "drag an element onto another", integers=("id", "target")),
    Function("mouse_click", "mouse_click [{x}] [{y}]", "click at a place, in pixels", integers=("x", "y")),
    Function(
        "mouse_drag",
        "mouse_drag [{x}] [{y}] [{to_x}] [{to_y}]",
        "press the mouse at a place and release it at another",
        integers=("x", "y", "to_x", "to_y"),
    ),
)

_ID = re.compile(r"\s*\[\s*([0-9]+)\s*\]")
_TYPE = re.compile(r"\s*\[\s*([0-9]+)\s*\]\s*\[(.*)\]", re.DOTALL)
_TYPE_WITH_ENTER = re.compile(
    r"\s*\[\s*([0-9]+)\s*\]\s*\[(.*)\]\s*\[\s*(?:press_enter_after\s*=\s*)?([01])\s*\]", re.DOTALL
)
_DIRECTION = re.compile(r"\s*\[?\s*(?:direction\s*=\s*)?(up|down)\s*\]?", re.IGNORECASE)
_BRACKETS = re.compile(r"\s*\[(.*)\]", re.DOTALL)
_FENCE = re.compile(r"```(?:[a-z]+\n)?(.*?)```", re.DOTALL)

WITHOUT_ARGUMENT = ("new_tab", "close_tab", "go_back", "go_forward")
FORMS = {
    "click": "click [id]",
    "type": "type [id] [text] [0 or 1]",
    "hover": "hover [id]",
    "press": "press [keys]",
    "scroll": "scroll [up] or scroll [down]",
    "tab_focus": "tab_focus [number]",
    "goto": "goto [url]",
    "stop": "stop [answer]",
    **{verb: verb for verb in WITHOUT_ARGUMENT},
}
POINTER_FORMS = {
    "drag": "drag [id] [id]",
    "mouse_click": "mouse_click [x] [y]",
    "mouse_drag": "mouse_drag [x] [y] [x] [y]",
}


@dataclass(frozen=True)
class Action:
    """One action of WebArena's set.

    Args:
        verb: "click", "type", "hover", "press", "scroll", "tab_focus", "new_tab", "goto", "go_back", "go_forward",
            "close_tab" or "stop"; or of `POINTER_FORMS`.
        number: the element of click, type, hover and drag, or the tab of tab_focus.
        text: what to type or press, where to scroll or go to, or the answer of stop.
        presses_enter: whether type presses Enter afterwards.
        places: the element that is dragged onto, or the x and y of the mouse's places.
    """

    verb: str
    number: int = -1
    text: str = ""
    presses_enter: bool = False
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class BadAction:
    """A text that is no action; `reason` is what the next observation says."""

    reason: str


def parse(text: str, *, has_pointer: bool = False) -> Action | BadAction:
    """Return the action in a model's text; with `has_pointer` it may also be one of `POINTER_FORMS`.

    It is what follows the last "Action:", or the whole text where there is none, and in that what stands between the
    last pair of triple backticks, where there is one. Text after a complete action is ignored, as in WebArena.
    """
    command = parse_action(text)
    fenced = _FENCE.findall(command)
    command = (fenced[-1] if fenced else command.removeprefix("```")).strip()
    match = re.match(r"[A-Za-z_]+", command)
    verb = match[0].lower() if match else ""
    forms = {**FORMS, **POINTER_FORMS} if has_pointer else FORMS
    if verb not in forms:
        shown = f"{command[:80]!r} is not an action." if command else "There is no action."
        return BadAction(f"{shown} The actions are: {'; '.join(forms.values())}.")
    return _parse_arguments(verb, command[len(verb) :]) or BadAction(f"The form of this action is: {forms[verb]}.")


def _parse_arguments(verb: str, rest: str) -> Action | None:
    """Return the action, or None where its arguments are not in the action's form."""
    if verb in WITHOUT_ARGUMENT:
        return Action(verb)
    if verb in POINTER_FORMS:
        num_places = POINTER_FORMS[verb].count("[")
        match = re.match(num_places * _ID.pattern, rest)
        places = tuple(int(place[:9]) for place in match.groups()) if match else ()
        number = places[0] if verb == "drag" and places else -1
        return Action(verb, number, places=places[1:] if verb == "drag" else places) if places else None
    if verb in ("click", "hover", "tab_focus"):
        match = _ID.match(rest)
        return Action(verb, number=int(match[1][:9])) if match else None
    if verb == "type":
        if match := _TYPE_WITH_ENTER.match(rest):
            return Action(verb, number=int(match[1][:9]), text=match[2], presses_enter=match[3] == "1")
        match = _TYPE.match(rest)
        return Action(verb, number=int(match[1][:9]), text=match[2], presses_enter=True) if match else None
    if verb == "scroll":
        match = _DIRECTION.match(rest)
        return Action(verb, text=match[1].lower()) if match else None
    match = _BRACKETS.match(rest)
    if verb == "stop":
        return Action(verb, text=match[1].strip() if match else "") if match or not rest.strip() else None
    return Action(verb, text=match[1].strip()) if match and match[1].strip() else None


def execute(page: WebPage, action: Action) -> None:
    """Carry out an action other than stop. What goes wrong on the page is in `page.error` afterwards.

    Raises:
        EnvError: the browser is gone.
    """
    match action.verb:
        case "click":
            page.click(action.number)
        case "type":
            page.type(action.number, action.text, presses_enter=action.presses_enter)
        case "hover":
            page.hover(action.number)
        case "press":
            page.press(action.text)
        case "scroll":
            page.scroll(action.text)
        case "tab_focus":
            page.tab_focus(action.number)
        case "goto":
            page.goto(action.text)
        case "drag":
            page.drag(action.number, *action.places)
        case "mouse_click":
            page.mouse_click(*action.places)
        case "mouse_drag":
            page.mouse_drag(*action.places)
        case "new_tab" | "close_tab" | "go_back" | "go_forward":
            getattr(page, action.verb)()
