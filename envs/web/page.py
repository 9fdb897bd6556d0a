"""WebPage: an agent's browser window for callers in any thread: actions, what it looks like, what evaluators ask."""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.web.browser import Browser
from rllm_gym.envs.web.tab import PageError, Tab
from rllm_gym.envs.web.tree import Node, estimate_tokens, render
from rllm_gym.envs.web.window import Window

__all__ = ["PageError", "WebPage"]

T = TypeVar("T")
MAX_URL_CHARS = 300
MAX_TITLE_CHARS = 60
MAX_ERROR_CHARS = 700
MIN_ERROR_CHARS = 100  # where the budget is small
KEY_NAMES = {
    "ctrl": "Control", "control": "Control", "alt": "Alt", "option": "Alt", "shift": "Shift", "meta": "Meta",
    "cmd": "Meta", "command": "Meta", "win": "Meta", "enter": "Enter", "return": "Enter", "esc": "Escape",
    "escape": "Escape", "tab": "Tab", "space": "Space", "backspace": "Backspace", "del": "Delete",
    "delete": "Delete", "insert": "Insert", "home": "Home", "end": "End", "pageup": "PageUp", "pagedown": "PageDown",
    "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight", "arrowup": "ArrowUp",
    "arrowdown": "ArrowDown", "arrowleft": "ArrowLeft", "arrowright": "ArrowRight",
}  # fmt: skip


class WebPage:
    """A browser window with tabs of its own, in the shared browser.

    Every action waits until the page has come to rest. What goes wrong on the page is no exception: `error` holds one
    line about the last action, or "".

    Args:
        sites: the origins that the window reaches, like "http://shop.test"; everything else is refused.
        server: "host:port" of a local server that answers for all sites, whatever their names; see
            `Browser.open_context`. None: the sites answer under their own names.
        folder: answers for the sites with its files, whatever their names.
        storage_state: cookies and local storage to begin with: Playwright's dict, or the path of a JSON file with it.
        viewport: width and height in pixels.
        shows_places: the tree shows where elements are (`box: x,y,width,height`, in pixels of the viewport), and shapes
            and what can be dragged, too.
        holds_clock: the page's clock stands still but for a second at each action, which takes no real time: pages
            with timers and animations repeat exactly.
        timeout_s: how long a page may take to load or to answer.

    Raises:
        ConfigError: there is no browser.
        EnvError: the browser does not start; from any method, when it has died.
    """

    def __init__(
        self,
        sites: Sequence[str],
        *,
        server: str | None = None,
        folder: Path | None = None,
        storage_state: Any = None,
        viewport: tuple[int, int] = (1280, 720),
        shows_places: bool = False,
        holds_clock: bool = False,
        timeout_s: float = 30.0,
    ):
        self._unseen: Node | None = None  # the first that the last observation has cut
        self._timeout_s = timeout_s
        self._window = Window(sites, timeout_s=timeout_s, holds_clock=holds_clock, shows_places=shows_places)
        self._browser = Browser.shared()
        self._end = weakref.finalize(self, _end, self._browser, self._window)
        try:
            self._browser.run(
                self._window.open(
                    self._browser, folder=folder, server=server, storage_state=storage_state, viewport=viewport
                )
            )
        except BaseException:
            self._end()
            raise

    # The agent's actions.

    def click(self, id: int) -> None:
        """Click on the middle of an element; an option of a list is chosen."""
        self._on_node(id, Tab.click)

    def hover(self, id: int) -> None:
        self._on_node(id, Tab.hover)

    def type(self, id: int, text: str, *, presses_enter: bool) -> None:
        """Replace what a field holds; of a list, choose the option with this text."""
        self._on_node(id, lambda tab, node: tab.type(node, text, presses_enter=presses_enter))

    def drag(self, id: int, target: int) -> None:
        """Press the mouse in the middle of an element, move it to the middle of another, and release it."""
        self._on_node(id, lambda tab, node: self._window.on_node(target, lambda tab, to: tab.drag(node, to)))

    def mouse_click(self, x: int, y: int) -> None:
        """Click at a place of the viewport."""
        self._act(lambda: self._window.tab.mouse_drag((x, y), (x, y)))

    def mouse_drag(self, x: int, y: int, to_x: int, to_y: int) -> None:
        """Press the mouse at a place, move it to another, and release it."""
        self._act(lambda: self._window.tab.mouse_drag((x, y), (to_x, to_y)))

    def press(self, keys: str) -> None:
        """Press a key, or several held together: "Enter", "Control+a", "ctrl+A"."""
        names = [KEY_NAMES.get(key.strip().lower(), key.strip()) for key in keys.split("+")]
        self._act(lambda: self._window.tab.press("+".join(names)))

    def scroll(self, direction: str) -> None:
        """Scroll a screen "up" or "down", but not beyond what the last observation has cut."""
        sign, limit = (1, self._unseen) if direction == "down" else (-1, None)
        self._act(lambda: self._window.tab.scroll(sign, limit_node=limit))

    def goto(self, url: str) -> None:
        self._act(lambda: self._window.goto(url))

    def go_back(self) -> None:
        self._act(lambda: self._window.tab.go(-1))

    def go_forward(self) -> None:
        self._act(lambda: self._window.tab.go(1))

    def new_tab(self) -> None:
        self._act(self._window.new_tab)

    def tab_focus(self, number: int) -> None:
        self._act(lambda: self._window.tab_focus(number))

    def close_tab(self) -> None:
        """Close the tab in front; the last one leaves an empty one."""
        self._act(self._window.close_tab)

    # What it looks like.

    @property
    def is_mine(self) -> bool:
        """Whether this process opened it; a forked child must open its own."""
        return self._browser.owner_pid == os.getpid()

    @property
    def url(self) -> str:
        """The address of the tab in front."""
        return self._window.tab.url

    @property
    def tabs(self) -> list[tuple[str, str]]:
        """Address and title of each tab."""
        return [(tab.url, tab.title) for tab in self._window.tabs]

    @property
    def current_tab(self) -> int:
        return self._window.current

    @property
    def error(self) -> str:
        """The fault of the last action, in one line; "" if there was none."""
        return self._window.error

    @error.setter
    def error(self, text: str) -> None:
        self._window.error, self._window.is_impossible = text, False

    @property
    def is_impossible(self) -> bool:
        """Whether the last action asked for something that is not there or cannot be used."""
        return self._window.is_impossible

    @property
    def nodes(self) -> list[Node]:
        """The whole tree of the last observation."""
        return self._window.nodes

    def node(self, id: int) -> Node | None:
        """Return an element of the last observation."""
        return next((node for node in self.nodes if node.id == id), None)

    def observe(
        self,
        *,
        max_tokens: int = 2048,
        count_tokens: Callable[[str], int] = estimate_tokens,
        frame: Callable[[], tuple[str, str]] | None = None,
    ) -> str:
        """Return the tree, then the address, the tabs and the last error, as text of at most `max_tokens`.

        What does not fit is cut from the tree, which then says how many lines are missing and where; it begins with
        the first line that is not scrolled out of view.

        Args:
            max_tokens: of all of it.
            count_tokens: of a text.
            frame: called once the page is read; returns what stands before the tree and, in place of all the rest,
                behind it.
        """
        nodes = self._browser.run(self._window.observe())
        header, footer = frame() if frame is not None else ("", f"\n{self._footer(MAX_ERROR_CHARS)}")
        if frame is None and count_tokens(footer) > max_tokens // 2:
            footer = f"\n{self._footer(MIN_ERROR_CHARS)}"
        budget = max_tokens - count_tokens(header + footer)
        text, num_shown = render(nodes, max_tokens=budget, count_tokens=count_tokens)
        if num_shown < len(nodes) and self._window.tab.is_scrolled:
            above = self._window.tab.layout.above
            below = [node for node in nodes if node.depth == 0 or node.backend_id not in above]
            num_above = len(nodes) - len(below)
            nodes = below
            text, num_shown = render(nodes, max_tokens=budget, count_tokens=count_tokens, num_above=num_above)
        self._unseen = nodes[num_shown] if num_shown < len(nodes) else None
        return header + text + footer

    def _footer(self, max_error_chars: int) -> str:
        names = [
            f"Tab {i}{' (current)' if i == self.current_tab else ''}: {_cut(title or url, MAX_TITLE_CHARS)}"
            for i, (url, title) in enumerate(self.tabs)
        ]
        lines = [f"URL: {_cut(self.url, MAX_URL_CHARS)}", f"TABS: {' | '.join(names)}"]
        if self.error:
            lines.append(f"ERROR: {_cut(self.error, max_error_chars)}")
        return "\n".join(lines)

    def screenshot(self) -> npt.NDArray[np.uint8]:
        """Return the visible part of the tab in front: uint8, height x width x 3."""
        from PIL import Image

        png = self._browser.run(self._window.tab.page.screenshot(type="png", timeout=self._timeout_s * 1000))
        return np.array(Image.open(io.BytesIO(png)).convert("RGB"))

    # What evaluators ask.

    def evaluate(self, expression: str, arg: Any = None) -> Any:
        """Return the value of a JavaScript expression or function in the tab in front.

        Raises:
            PageError: the script raises, or the page does not answer.
        """
        return self._browser.run(self._window.tab.evaluate(expression, arg))

    def look_up(self, url: str, expression: str = "document.documentElement.outerHTML") -> Any:
        """Return the value of JavaScript on another page, opened with the agent's cookies in a tab it does not see.

        Raises:
            PageError: the page cannot be opened, or the script raises.
        """
        return self._browser.run(self._window.look_up(url, expression))

    def watch(self, event: str, handler: Callable[[Any], None]) -> None:
        """Call a function at each event of Playwright's context, like "request", in the browser's thread."""
        self._window.context.on(event, handler)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that is run in the browser's thread.

        Raises:
            EnvError: the browser has died.
        """
        return self._browser.run(coroutine)

    def close(self) -> None:
        """Close the window; safe to call twice."""
        self._end()

    def _on_node(self, id: int, act: Callable[[Tab, Node], Awaitable[None]]) -> None:
        self._act(lambda: self._window.on_node(id, act))

    def _act(self, action: Callable[[], Awaitable[None]]) -> None:
        self._browser.run(self._window.act(action))


def _end(browser: Browser, window: Window) -> None:
    """Close a window that was closed or garbage-collected, in whatever thread."""
    if window.context is not None:
        browser.soon(window.context.close())
    browser.release()


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
