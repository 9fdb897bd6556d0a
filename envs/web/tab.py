"""One tab of the browser: its document's tree, input to it, and waiting until it has come to rest.

Everything in here runs in the browser's thread. What an agent can cause and must learn to recover from (an element that
is gone, a page that does not load) is a `PageError`, whose text the next observation shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from rllm_gym.envs.web.browser import PlaywrightError
from rllm_gym.envs.web.layout import Layout, read_layout
from rllm_gym.envs.web.page_scripts import CHOOSE, CLICK, LOAD_IMAGES, NEXT_FRAME, SCROLL, SELECT_ALL, SET_VALUE
from rllm_gym.envs.web.tree import Node, read_tree

REQUEST_GRACE_S = 1.0  # after which a navigation that was asked for and has not begun (a download) is given up
STUCK_TIMEOUT_S = 0.5  # instead of the page's, until it answers again
SETTLE_S = 3.0  # how long requests of a page's scripts are waited for
CLOCK_MS = 1000  # what an action takes on a page whose clock is held
MAX_TYPED_CHARS = 200  # longer texts are pasted
MOVES_OF_A_DRAG = 10  # scripts follow a mouse on its way
ERROR_PAGE = "chrome-error://"

T = TypeVar("T")


class PageError(Exception):
    """Something the agent is told and goes on from."""


class ImpossibleActionError(PageError):
    """The action asks for something that is not there or cannot be used; nothing has happened."""


class Tab:
    """A tab, its title, and the numbers of its elements."""

    def __init__(self, page: Any, session: Any, *, timeout_s: float, has_clock: bool, shows_places: bool = False):
        self.page = page
        self.title = ""
        self.nodes: list[Node] = []
        self.layout = Layout()
        self.num_windows_opened = 0  # by this tab, of which the context tells later
        self.requested_url = ""
        self.is_scrolled = False
        self.is_stuck = False  # has not answered in time
        self._session = session
        self._timeout_s = timeout_s
        self._has_clock = has_clock
        self._shows_places = shows_places
        self._numbers: dict[int | str, int] = {}  # Chromium's number of a DOM node -> the agent's, in this document
        self._main_frame = ""
        self._loading: set[str] = set()
        self._requested_at: float | None = None
        self._changed = asyncio.Event()

    @classmethod
    async def attach(cls, page: Any, **options: Any) -> Tab:
        session = await page.context.new_cdp_session(page)
        tab = cls(page, session, **options)
        session.on("Page.frameRequestedNavigation", tab._on_requested)
        session.on("Page.windowOpen", tab._on_window)
        session.on("Page.frameStartedLoading", tab._on_started)
        session.on("Page.frameStoppedLoading", tab._on_stopped)
        session.on("Page.frameDetached", tab._on_stopped)
        session.on("Page.frameNavigated", tab._on_navigated)
        await session.send("Page.enable")
        tree = await session.send("Page.getFrameTree")
        tab._main_frame = tree["frameTree"]["frame"]["id"]
        # A tab that a page has opened may have begun to load, of which nothing was told.
        state = await session.send("Runtime.evaluate", {"expression": "document.readyState"})
        if state["result"].get("value") != "complete":
            tab._loading.add(tab._main_frame)
        return tab

    @property
    def url(self) -> str:
        url: str = self.page.url
        return self.requested_url if url.startswith(ERROR_PAGE) else url

    # What the agent does.

    async def goto(self, url: str) -> None:
        self.requested_url = url
        try:
            await self.page.goto(url, wait_until="load", timeout=self._timeout_s * 1000)
        except PlaywrightError as e:
            raise PageError(_reason(e, f"{url} cannot be opened")) from e

    async def go(self, delta: int) -> None:
        history = await self._send("Page.getNavigationHistory")
        index = history["currentIndex"] + delta
        entries = history["entries"]
        if not 0 <= index < len(entries) or entries[index]["url"] == "about:blank":
            raise ImpossibleActionError(f"There is no page to go {'back' if delta < 0 else 'forward'} to.")
        self.requested_url = entries[index]["url"]
        self._requested_at = time.monotonic()
        await self._send("Page.navigateToHistoryEntry", entryId=entries[index]["id"])

    async def click(self, node: Node) -> None:
        if node.role in ("option", "menuitem") and await self._call(node, CHOOSE_IF_OPTION):
            return
        point = await self._point(node)
        if point is None:  # nothing to aim at, such as a checkbox that a picture stands for
            await self._call(node, CLICK)
        else:
            await self._bounded(self.page.mouse.click(*point))

    async def hover(self, node: Node) -> None:
        point = await self._point(node)
        if point is None:
            raise ImpossibleActionError(f"Element [{node.id}] is not visible.")
        await self._bounded(self.page.mouse.move(*point))

    async def drag(self, node: Node, target: Node) -> None:
        await self._point(target)  # scrolls to it, as far as the other one stays in view
        start = await self._point(node)
        quad = await self._quad(target)
        if start is None or quad is None:
            raise ImpossibleActionError(f"Element [{(node if start is None else target).id}] is not visible.")
        await self.mouse_drag(start, (sum(quad[0::2]) / 4, sum(quad[1::2]) / 4))

    async def mouse_drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at a place and release it at another, which may be the same."""
        size = self.page.viewport_size
        for x, y in (start, end):
            if not (0 <= x < size["width"] and 0 <= y < size["height"]):
                raise ImpossibleActionError(
                    f"The place {x:g}, {y:g} is outside of the page's {size['width']} x {size['height']} pixels."
                )
        mouse = self.page.mouse
        await self._bounded(mouse.move(*start))
        await self._bounded(mouse.down())
        if end != start:
            await self._bounded(mouse.move(*end, steps=MOVES_OF_A_DRAG))
        await self._bounded(mouse.up())

    async def type(self, node: Node, text: str, *, presses_enter: bool) -> None:
        await self._point(node)  # scrolls to it
        kind = await self._call(node, SELECT_ALL)
        if kind == "select":
            if not await self._call(node, CHOOSE, text):
                raise ImpossibleActionError(f"Element [{node.id}] has no option {text!r}.")
        elif kind == "value":
            if not await self._call(node, SET_VALUE, text):
                raise ImpossibleActionError(f"Element [{node.id}] does not take the value {text!r}.")
        elif kind == "none":
            raise ImpossibleActionError(f"Element [{node.id}] takes no text.")
        else:
            await self._type_text(text, has_selection=kind == "text")
        if presses_enter:
            await self._bounded(self.page.keyboard.press("Enter"))

    async def _type_text(self, text: str, *, has_selection: bool) -> None:
        keyboard = self.page.keyboard
        if not text:
            if has_selection:
                await self._bounded(keyboard.press("Delete"))
        elif len(text) <= MAX_TYPED_CHARS and text.isprintable():
            await self._bounded(keyboard.type(text))
        else:
            await self._bounded(keyboard.insert_text(text))

    async def press(self, keys: str) -> None:
        try:
            await self._bounded(self.page.keyboard.press(keys))
        except PlaywrightError as e:
            if "Unknown key" not in str(e):
                raise
            raise ImpossibleActionError(f"There is no key {keys!r}.") from e

    async def scroll(self, direction: int, *, limit_node: Node | None = None) -> None:
        """Scroll by a screen, or up to a node that has not been shown yet."""
        limit = 0.0
        if limit_node is not None:
            quad = await self._quad(limit_node)
            limit = min(quad[1::2]) if quad else 0.0
        self.is_scrolled = await self._bounded(self.page.evaluate(SCROLL, [direction, limit]))
        if not self._has_clock:  # one that is held brings the frame about by itself
            await self._bounded(self.page.evaluate(NEXT_FRAME))

    # What the agent sees.

    async def read(self) -> list[Node]:
        """Return the nodes of the page; on a page that could not be opened there is but the root."""
        if self.page.url.startswith(ERROR_PAGE):
            self.title, self.nodes = "", [Node(1, "RootWebArea", "The page could not be opened")]
            return self.nodes
        if self._has_clock:  # such a page reads alike however busy the machine is
            with contextlib.suppress(PlaywrightError):  # a navigation took the document away
                await self._bounded(self.page.evaluate(LOAD_IMAGES))
        # Asked for at once and answered in this order: the tree brings the page's layout up to date, and a snapshot
        # takes what there is.
        tree, frames, snapshot = await asyncio.gather(
            self._send("Accessibility.getFullAXTree"),
            self._send("Page.getFrameTree"),
            self._send("DOMSnapshot.captureSnapshot", computedStyles=[]),
        )
        raw = tree["nodes"]
        for frame_id in _child_frames(frames["frameTree"]):
            raw += await self._read_frame(frame_id, raw)
        self.layout = read_layout(snapshot, with_places=self._shows_places)
        self.nodes = read_tree(raw, self._number, self.layout)
        self.title = self.nodes[0].name if self.nodes else ""
        return self.nodes

    async def _read_frame(self, frame_id: str, raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the nodes of a frame in the page, after hanging them into its place in the tree `raw`."""
        try:
            owner = (await self._send("DOM.getFrameOwner", frameId=frame_id))["backendNodeId"]
            nodes: list[dict[str, Any]] = (await self._send("Accessibility.getFullAXTree", frameId=frame_id))["nodes"]
        except PlaywrightError:
            return []  # gone, or of another site, which has a process of its own
        place = next((node for node in raw if node.get("backendDOMNodeId") == owner), None)
        if place is None or not nodes:
            return []
        place["childIds"] = [nodes[0]["nodeId"]]
        nodes[0]["parentId"] = place["nodeId"]
        return nodes

    async def evaluate(self, expression: str, arg: Any) -> Any:
        try:
            return await self._bounded(self.page.evaluate(expression, arg))
        except PlaywrightError as e:
            raise PageError(str(e).partition("\n")[0]) from e

    def _number(self, key: int | str) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    # Waiting.

    async def settle(self) -> None:
        """Wait until the page has loaded and its scripts have got what they asked for.

        Raises:
            PageError: that takes too long.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            # The answer comes after the events of what an action has begun.
            await self._send("Page.getFrameTree")
            if not await self._wait_for_loads(deadline_s):
                raise PageError(f"The page has not finished loading after {self._timeout_s:g} seconds.")
            if self.page.url.startswith(ERROR_PAGE):
                raise PageError(f"{self.requested_url} cannot be opened.")
            try:
                await self._wait_for_scripts()
            except PlaywrightError as e:
                if "crashed" in str(e) or self.page.is_closed() or time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.01)  # a navigation took the document away
                continue
            if not self._is_loading:
                return

    @property
    def _is_loading(self) -> bool:
        return bool(self._loading) or self._requested_at is not None

    async def _wait_for_loads(self, deadline_s: float) -> bool:
        while self._is_loading:
            now = time.monotonic()
            if now > deadline_s:
                return False
            until = deadline_s
            if self._requested_at is not None:
                until = min(until, self._requested_at + REQUEST_GRACE_S)
                if now >= until:
                    self._requested_at = None
                    continue
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), until - now + 0.001)
            except TimeoutError:
                continue
        return True

    async def _wait_for_scripts(self) -> None:
        if self._has_clock:
            await self._bounded(self.page.clock.run_for(CLOCK_MS))
            return
        deadline_s = time.monotonic() + min(SETTLE_S, self._timeout_s)
        while await self._bounded(self.page.evaluate("window.__pendingRequests || 0")):
            if time.monotonic() > deadline_s:
                return  # a page may keep a request open for ever
            await asyncio.sleep(0.02)

    def _on_requested(self, event: dict[str, Any]) -> None:
        if event.get("disposition") == "currentTab":
            if event["frameId"] == self._main_frame:
                self.requested_url = event["url"]
            self._requested_at = time.monotonic()
        self._changed.set()

    def _on_window(self, event: dict[str, Any]) -> None:
        self.num_windows_opened += 1
        self._changed.set()

    def _on_started(self, event: dict[str, Any]) -> None:
        self._loading.add(event["frameId"])
        self._requested_at = None
        self._changed.set()

    def _on_stopped(self, event: dict[str, Any]) -> None:
        self._loading.discard(event["frameId"])
        self._requested_at = None
        self._changed.set()

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if "parentId" not in event["frame"]:
            self._main_frame = event["frame"]["id"]
            self._numbers = {}
            self.is_scrolled = False
        self._requested_at = None
        self._changed.set()

    # Talking to Chromium.

    async def _bounded(self, call: Awaitable[T]) -> T:
        """Await an answer, which a page that is busy for ever does not give."""
        try:
            answer = await asyncio.wait_for(call, STUCK_TIMEOUT_S if self.is_stuck else self._timeout_s)
            self.is_stuck = False
            return answer
        except TimeoutError as e:
            self.is_stuck = True
            raise PageError(f"The page has not answered within {self._timeout_s:g} seconds.") from e

    async def _send(self, method: str, **params: Any) -> Any:
        return await self._bounded(self._session.send(method, params))

    async def _call(self, node: Node, function: str, *args: Any) -> Any:
        """Call a JavaScript function with an element as `this`."""
        try:
            resolved = await self._send("DOM.resolveNode", backendNodeId=node.backend_id)
            object_id = resolved["object"]["objectId"]
            answer = await self._send(
                "Runtime.callFunctionOn",
                functionDeclaration=function,
                objectId=object_id,
                arguments=[{"value": arg} for arg in args],
                returnByValue=True,
                userGesture=True,
            )
            return answer["result"].get("value")
        except PlaywrightError as e:
            raise ImpossibleActionError(f"Element [{node.id}] is no longer on the page.") from e

    async def _point(self, node: Node) -> tuple[float, float] | None:
        """Scroll to an element and return the middle of its first box, or None where it has none."""
        try:
            await self._send("DOM.scrollIntoViewIfNeeded", backendNodeId=node.backend_id)
        except PlaywrightError as e:
            if "detached" in str(e) or "No node" in str(e) or "Could not find node" in str(e):
                raise ImpossibleActionError(f"Element [{node.id}] is no longer on the page.") from e
            return None
        quad = await self._quad(node)
        return (sum(quad[0::2]) / 4, sum(quad[1::2]) / 4) if quad else None

    async def _quad(self, node: Node) -> list[float] | None:
        """Return the corners of an element's first box with an area: x1, y1, x2, y2, ..."""
        try:
            quads = (await self._send("DOM.getContentQuads", backendNodeId=node.backend_id))["quads"]
        except PlaywrightError:
            return None
        for quad in quads:
            if max(quad[0::2]) - min(quad[0::2]) >= 1 and max(quad[1::2]) - min(quad[1::2]) >= 1:
                return list(quad)
        return None


CHOOSE_IF_OPTION = f"function () {{ return this.tagName === 'OPTION' && ({CHOOSE}).call(this, null); }}"


def _child_frames(tree: dict[str, Any]) -> list[str]:
    """Return the ids of all frames in a page, outer ones first."""
    children = tree.get("childFrames", [])
    return [child["frame"]["id"] for child in children] + [id for child in children for id in _child_frames(child)]


def _reason(error: PlaywrightError, what: str) -> str:
    """Return one line for a navigation that failed."""
    text = str(error)
    if "Timeout" in text:
        return f"{what}: it has not loaded in time."
    if "Download" in text:
        return f"{what}: downloads are off."
    start = text.find("net::")
    return f"{what}: {text[start:].split()[0]}." if start >= 0 else f"{what}."
