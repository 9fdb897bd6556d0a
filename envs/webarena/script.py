"""The expert of the embedded tasks: a script of steps, found on the page that the agent sees."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rllm_gym.envs.web.actions import parse

_NODE = re.compile(r"^\t*\[(\d+)\] (.*)$", re.MULTILINE)
_URL = re.compile(r"^URL: (.*)$", re.MULTILINE)
_FOOTER = re.compile(r"^(?:TABS|ERROR): .*\n?|(?: focused: True)", re.MULTILINE)
_CUT_BELOW = "more lines below; scroll [down]"
_GROWS = "StaticText 'Scroll down for more'"  # at the end of a list


@dataclass(frozen=True)
class Step:
    """One step of a script.

    Args:
        verb: "click", "type" or "stop".
        role: of the element, as the tree spells it.
        name: its accessible name.
        text: what to type, or the answer.
        presses_enter: of type.
        after: the element comes after a line with this text, as a button in a row of a list does; an answer is given
            where there is such a line.
        is_navigation: whether a new page comes, so that what was filled in before is gone.
    """

    verb: str
    role: str = ""
    name: str = ""
    text: str = ""
    presses_enter: bool = False
    after: str = ""
    is_navigation: bool = False

    def find(self, observation: str) -> str | None:
        """Return the action, or None where its element is not on the page."""
        label = f"{self.role} {self.name!r}"
        is_after = not self.after
        if self.verb == "stop":
            is_after = is_after or any(self.after in line for _, line in _NODE.findall(observation))
            return f"stop [{self.text}]" if is_after else None
        for number, line in _NODE.findall(observation):
            if is_after and f"{line} ".startswith(f"{label} "):
                if self.verb == "type":
                    return f"type [{number}] [{self.text}] [{int(self.presses_enter)}]"
                return f"click [{number}]"
            is_after = is_after or self.after in line
        return None

    @property
    def thought(self) -> str:
        match self.verb:
            case "click":
                return f"I choose the {self.role} {self.name}."
            case "type":
                return f"I write this into {self.name}."
        return "I have the answer." if self.text else "The task is done."


def follow(name: str) -> Step:
    """Click on a link."""
    return Step("click", "link", name, is_navigation=True)


def push(name: str, after: str = "") -> Step:
    """Click on a button that sends a form."""
    return Step("click", "button", name, after=after, is_navigation=True)


def press(name: str, after: str = "") -> Step:
    """Click on a button that only changes the page it is on."""
    return Step("click", "button", name, after=after)


def suggested(label: str, name: str) -> list[Step]:
    """Type a name and choose it among the suggestions."""
    return [Step("type", "combobox", label, name), Step("click", "option", name)]


def choose(name: str, role: str = "radio") -> Step:
    """Click on a radio button, or on a checkbox."""
    return Step("click", role, name)


def fill(name: str, text: str, *, role: str = "textbox") -> Step:
    return Step("type", role, name, text)


def search(label: str, words: str) -> Step:
    return Step("type", "searchbox", label, words, presses_enter=True, is_navigation=True)


def stop(answer: str = "", *, seen: str = "") -> Step:
    """Give the answer, once the text where it is read has been seen."""
    return Step("stop", text=answer, after=seen)


@dataclass(frozen=True)
class _Plan:
    command: str
    thought: str
    next_index: int  # of the step that follows
    is_navigation: bool


class Script:
    """Follows the steps on what the agent sees, one episode long.

    Where a list has more pages, or the tree is cut, it looks further. After an action that was not its own and changed
    the page, it goes back to the last page that it meant to be on and repeats what it had filled in there. What such an
    action has sent cannot be taken back.

    Plain data: it pickles with the environment.

    Args:
        steps: what to do.
        start: the address where the episode begins, for when there is no other way.
    """

    def __init__(self, steps: tuple[Step, ...], start: str) -> None:
        self._steps = steps
        self._start = start
        self._index = 0  # of the next step
        self._page = (start, 0)  # the page to go back to, and the next step there
        self._is_lost = False
        self._observation = ""

    def observe(self, observation: str, action: str | None = None) -> None:
        """Take in an observation, and the action that led to it."""
        if action is not None:
            plan = self._plan()
            if parse(action) == parse(plan.command):
                self._index = plan.next_index
                self._is_lost = "\nERROR: " in observation
                if plan.is_navigation and not self._is_lost:
                    self._page = (_url(observation) or self._start, plan.next_index)
            elif _body(observation) != _body(self._observation):
                self._is_lost = True
        self._observation = observation

    def action(self) -> str:
        """Return the expert's next text: always a legal action."""
        plan = self._plan()
        return f"Thought: {plan.thought}\nAction: {plan.command}"

    def _plan(self) -> _Plan:
        url, index = self._page
        if self._is_lost:
            return _Plan(f"goto [{url}]", "I go back.", index, False)
        step = self._steps[min(self._index, len(self._steps) - 1)]
        if command := step.find(self._observation):
            return _Plan(command, step.thought, self._index + (step.verb != "stop"), step.is_navigation)
        if _CUT_BELOW in self._observation or _GROWS in self._observation:
            return _Plan("scroll [down]", "I look further down.", self._index, False)
        if command := Step("click", "link", "Next page").find(self._observation):
            return _Plan(command, "I look at the next page.", self._index, False)
        return _Plan(f"goto [{self._start}]", "I begin again.", 0, True)


def _url(observation: str) -> str:
    found = _URL.findall(observation)
    return found[-1] if found else ""


def _body(observation: str) -> str:
    return _FOOTER.sub("", observation)
