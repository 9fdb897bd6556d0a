"""One environment's window: a context of the browser with its tabs. Everything in here runs in the browser's thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rllm_gym.envs.web.browser import Browser, PlaywrightError
from rllm_gym.envs.web.page_scripts import COUNT_REQUESTS
from rllm_gym.envs.web.tab import ImpossibleActionError, PageError, Tab
from rllm_gym.envs.web.tree import Node
from rllm_gym.errors import EnvError

MAX_TABS = 10
NEW_TAB_S = 5.0  # how long a tab that a page has announced is waited for
CLOSING_S = 2.0
BLANK = "about:blank"
HELD_TIME = "2026-01-05T09:00:00Z"  # on a page whose clock is held


class Window:
    """Tabs, the one in front, and what went wrong in the last action."""

    def __init__(self, sites: Sequence[str], *, timeout_s: float, holds_clock: bool, shows_places: bool = False):
        self.sites = frozenset(origin(site) for site in sites)
        self.tabs: list[Tab] = []
        self.error = ""
        self.is_impossible = False  # what that action asked for
        self.nodes: list[Node] = []  # of the last observation
        self.context: Any = None
        self._current = 0
        self._timeout_s = timeout_s
        self._holds_clock = holds_clock
        self._shows_places = shows_places
        self._notes: list[str] = []
        self._num_new_tabs = 0
        self._num_attaching = 0
        self._has_new_tab = asyncio.Event()
        self._has_crashed = False
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps no reference

    @property
    def tab(self) -> Tab:
        if not self.tabs:
            raise EnvError("Web: the browser's window is gone. Reset the environment.")
        return self.tabs[self._current]

    @property
    def current(self) -> int:
        return self._current

    async def open(self, browser: Browser, *, folder: Path | None, **options: Any) -> None:
        self.context = await browser.open_context([] if folder else sorted(self.sites), **options)
        self.context.on("page", self._on_page)
        if folder is not None:
            await self.context.route("**", functools.partial(_serve, folder, self.sites))
        if self._holds_clock:
            await self.context.clock.install(time=HELD_TIME)
            await self.context.clock.pause_at(HELD_TIME)
        else:
            await self.context.add_init_script(COUNT_REQUESTS)
        await self.new_tab()

    async def act(self, action: Callable[[], Awaitable[None]]) -> None:
        """Carry out an action and wait until the page has come to rest; `error` says what went wrong."""
        self.check()
        self._notes, self._num_new_tabs, self.is_impossible = [], 0, False
        await self._have_a_tab()
        tab = self.tab
        tab.num_windows_opened = 0
        errors = []
        for step in (action, lambda: self._rest(tab)):
            try:
                await step()
            except PageError as e:
                errors.append(str(e))
                self.is_impossible = self.is_impossible or isinstance(e, ImpossibleActionError)
            except PlaywrightError:
                self.check()
                if not await _is_closed(tab):
                    raise
        self.check()
        await self._have_a_tab()
        if not self._may_visit(self.tab.url):
            errors = [self._refusal(self.tab.url)]
        self.error = " ".join([*errors[:1], *self._notes])

    def check(self) -> None:
        """Raise EnvError if a page has crashed."""
        if self._has_crashed:
            raise EnvError("Web: a page of this episode crashed. Reset the environment.")

    # Actions of the window; those of a page are Tab's.

    async def on_node(self, id: int, act: Callable[[Tab, Node], Awaitable[None]]) -> None:
        node = next((node for node in self.nodes if node.id == id), None)
        if node is None:
            raise ImpossibleActionError(f"There is no element [{id}] on this page.")
        await act(self.tab, node)

    async def goto(self, url: str) -> None:
        if "://" not in url and not url.startswith(("about:", "data:", "javascript:", "view-source:")):
            url = f"http://{url}"
        if not self._may_visit(url):
            raise ImpossibleActionError(self._refusal(url))
        if self.tab.is_stuck:
            await self._replace_tab()
        await self.tab.goto(url)

    async def new_tab(self) -> None:
        if len(self.tabs) >= MAX_TABS:
            raise ImpossibleActionError(f"There are {MAX_TABS} tabs, and no more are allowed. Close one.")
        num_before = self._num_new_tabs
        await self.context.new_page()
        await self._wait_for_tabs(num_before + 1, self._timeout_s)

    async def tab_focus(self, number: int) -> None:
        if not 0 <= number < len(self.tabs):
            raise ImpossibleActionError(f"There is no tab {number}; the tabs are 0 to {len(self.tabs) - 1}.")
        self._current = number
        await self.tab.page.bring_to_front()

    async def close_tab(self) -> None:
        tab = self.tab
        if len(self.tabs) == 1:
            await self.new_tab()  # a window has at least one
        await tab.page.close()
        self._forget(tab)

    async def observe(self) -> list[Node]:
        """Return the nodes of the tab in front; none where the page does not answer."""
        self.check()
        await self._have_a_tab()
        tab = self.tab
        try:
            self.nodes = await tab.read()
        except PageError as e:
            self.nodes, self.error = [], str(e)
        except PlaywrightError:
            self.check()
            if not await _is_closed(tab):
                raise
            await self._have_a_tab()
            self.nodes = await self.tab.read()
        return self.nodes

    async def look_up(self, url: str, expression: str) -> Any:
        """Return the value of JavaScript on another page, in a tab that is no part of the window."""
        self.context.remove_listener("page", self._on_page)
        page = None
        try:
            page = await self.context.new_page()
            await page.goto(url, wait_until="load", timeout=self._timeout_s * 1000)
            return await asyncio.wait_for(page.evaluate(expression), self._timeout_s)
        except (PlaywrightError, TimeoutError) as e:
            raise PageError(f"{url}: {str(e).partition(chr(10))[0]}") from e
        finally:
            if page is not None:
                await page.close()
            self.context.on("page", self._on_page)

    # What happens without being asked for.

    async def _have_a_tab(self) -> None:
        """Open one where a page has closed the last; in a browser that has died this fails."""
        if not self.tabs:
            await self.new_tab()

    async def _replace_tab(self) -> None:
        """Put a new tab in the place of the one in front, which does not answer any more."""
        stuck, place = self.tab, self._current
        num_new = self._num_new_tabs
        await self.context.new_page()
        await self._wait_for_tabs(num_new + 1, self._timeout_s)
        await stuck.page.close()
        self._forget(stuck)
        self.tabs.insert(place, self.tabs.pop())
        self._current = place

    async def _rest(self, tab: Tab) -> None:
        """Wait for the tab that was acted on, and for the tabs that it has opened."""
        if not tab.page.is_closed():
            await tab.settle()
            await self._wait_for_tabs(tab.num_windows_opened)
        if self.tabs and self.tab is not tab:
            await self.tab.settle()

    async def _wait_for_tabs(self, num_new: int, timeout_s: float = NEW_TAB_S) -> None:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._num_new_tabs < num_new and asyncio.get_running_loop().time() < deadline_s:
            self._has_new_tab.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_new_tab.wait(), 0.2)

    def _on_page(self, page: Any) -> None:
        task = asyncio.ensure_future(self._attach(page))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attach(self, page: Any) -> None:
        """Take in a tab that was opened, by whomever, and bring it to the front."""
        try:
            if len(self.tabs) + self._num_attaching >= MAX_TABS:
                self._notes = [f"The page wanted to open another tab; there are {MAX_TABS} already."]
                await page.close()
                return
            self._num_attaching += 1
            page.on("dialog", self._on_dialog)
            page.on("download", self._on_download)
            page.on("crash", self._on_crash)
            try:
                tab = await Tab.attach(
                    page, timeout_s=self._timeout_s, has_clock=self._holds_clock, shows_places=self._shows_places
                )
            finally:
                self._num_attaching -= 1
            self.tabs.append(tab)
            self._current = len(self.tabs) - 1
            page.on("close", lambda _: self._forget(tab))
        except PlaywrightError:
            pass  # closed again before it was looked at
        finally:
            self._num_new_tabs += 1
            self._has_new_tab.set()

    def _forget(self, tab: Tab) -> None:
        """A tab was closed; in front comes the last one, as in a browser."""
        if tab in self.tabs:
            in_front = self.tab
            self.tabs.remove(tab)
            self._current = self.tabs.index(in_front) if in_front in self.tabs else max(len(self.tabs) - 1, 0)

    async def _on_dialog(self, dialog: Any) -> None:
        # Answered with yes, since the agent has asked for what the page wants confirmed.
        if dialog.type != "beforeunload":
            message = " ".join(dialog.message.split())[:200]
            self._notes.append(f"The page said {message!r} ({dialog.type}), which was accepted.")
        with contextlib.suppress(PlaywrightError):
            await dialog.accept()

    def _on_download(self, download: Any) -> None:
        self._notes.append(f"Downloads are off: {download.suggested_filename[:100]!r}.")

    def _on_crash(self, page: Any) -> None:
        self._has_crashed = True

    def _may_visit(self, url: str) -> bool:
        return url in ("", BLANK) or origin(url) in self.sites

    def _refusal(self, url: str) -> str:
        return f"{url[:200]} is not on one of the task's sites: {', '.join(sorted(self.sites))}."


async def _is_closed(tab: Tab) -> bool:
    """Tell whether a tab that does not answer has been closed, word of which may come a little later."""
    deadline_s = asyncio.get_running_loop().time() + CLOSING_S
    while not tab.page.is_closed() and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(0.05)
    return bool(tab.page.is_closed())


async def _serve(folder: Path, sites: frozenset[str], route: Any) -> None:
    """Answer a request with a file, which the browser then asks no proxy for."""
    path = Path(folder, unquote(urlsplit(route.request.url).path).lstrip("/")).resolve()
    with contextlib.suppress(PlaywrightError):  # nobody waits for the answer any more
        if origin(route.request.url) in sites and path.is_file() and path.is_relative_to(folder.resolve()):
            await route.fulfill(path=path)
        else:
            await route.fulfill(status=404, content_type="text/html", body="<title>Not Found</title><h1>Not Found</h1>")


def origin(url: str) -> str:
    """Return "scheme://host:port" of an address, without the scheme's own port; "" where there is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (
        f":{port}" if port not in (None, 80 if parts.scheme == "http" else 443) else ""
    )
