"""The browser: finding Chromium, and one process of it that all environments of a Python process share.

`Browser.shared()` starts it for the first user; it ends with the last. Playwright's objects belong to the event loop
of one thread, which the browser has of its own; `browser.run(coroutine)` waits there for a result, from any thread.
A page takes a context (cookies, storage, cache, tabs of its own) from `open_context`, which can reach its sites only.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
import shutil
import sys
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rllm_gym.errors import ConfigError, EnvError, MachineError

PIP_INSTALL = 'pip install "rllm-gym[web]"'
try:
    import psutil
    from playwright.async_api import Error as PlaywrightError
    from playwright.async_api import TimeoutError as PlaywrightTimeoutError
    from playwright.async_api import async_playwright
except ModuleNotFoundError as e:
    raise MachineError(f"Web environments need the {str(e.name).partition('.')[0]} package: {PIP_INSTALL}.") from e

__all__ = ["Browser", "PlaywrightError", "PlaywrightTimeoutError", "find_chromium"]

BROWSER_VARIABLE = "RLLM_GYM_CHROMIUM"  # the path of a browser to use
# The headless shell comes first: a window of the whole browser takes twice the CPU time and more memory.
SYSTEM_NAMES = (
    "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome",
)  # fmt: skip
PLAYWRIGHT_BUILDS = (  # of builds with the same number the last one is taken
    "chromium-*/chrome-linux*/chrome",
    "chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
    "chromium_headless_shell-*/*/*headless*shell",
)
START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 120.0  # a call that bounds every wait inside it by less takes so long only if the browser hangs
PROBE_S = 10.0  # how long the browser may take to say that it is there
DEAD_PROXY = "http://127.0.0.1:9"  # the discard port, where nothing answers
CHROMIUM_ARGS = (
    "--no-sandbox",  # Chromium refuses to run as root otherwise; it sees the task's sites only
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--no-pings",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # the only traffic that would not ask the proxy
    "--js-flags=--max-old-space-size=256",
    "--renderer-process-limit=64",
)

T = TypeVar("T")


def find_chromium(path: str | None = None) -> str:
    """Return the browser's executable: a given path, $RLLM_GYM_CHROMIUM, Playwright's own, or the system's.

    Raises:
        ConfigError: the given one is not there, or there is none.
    """
    for given, what in ((path, "the browser's path"), (os.environ.get(BROWSER_VARIABLE), f"${BROWSER_VARIABLE}")):
        if given:
            if os.access(given, os.X_OK) and Path(given).is_file():
                return str(given)
            raise ConfigError(f"find_chromium: {what} must be an executable file; got {given!r}. Correct it.")
    for found in (_playwrights_own(), *map(shutil.which, SYSTEM_NAMES)):
        if found and Path(found).is_file():
            return str(found)
    raise MachineError(
        "Web environments need a Chromium browser; got none. Run 'apt-get install chromium-headless-shell' as root on "
        f"Debian, or 'playwright install chromium' elsewhere, or set {BROWSER_VARIABLE} to the path of one."
    )


def _playwrights_own() -> str | None:
    """Return the newest Chromium that `playwright install chromium` has put where Playwright looks."""
    cache = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or cache / "ms-playwright")
    builds = [build for pattern in PLAYWRIGHT_BUILDS for build in folder.glob(pattern)]
    builds.sort(key=lambda build: int(build.relative_to(folder).parts[0].rpartition("-")[2]))
    return str(builds[-1]) if builds else None


class Browser:
    """One Chromium process, Playwright's driver, and the thread with the event loop that talks to them.

    Raises:
        ConfigError: no browser is installed.
        EnvError: it does not start.
    """

    _shared: Browser | None = None
    _lock = threading.RLock()  # reentrant: a finalizer may run anywhere
    _abandoned: list[Browser] = []  # noqa: RUF012  (those of a parent process, which must never be collected)

    def __init__(self, path: str | None = None):
        self.path = find_chromium(path)
        self.owner_pid = os.getpid()
        self.num_users = 0
        self._is_dead = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="web-browser", daemon=True)
        self._thread.start()
        self._playwright: Any = None
        self._chromium: Any = None
        self._session: Any = None  # with the browser as a whole
        self._process: psutil.Process | None = None
        try:
            self.run(self._start(), START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    @classmethod
    def shared(cls) -> Browser:
        """Return this process's browser, a new one where there is none or it has died, and count one more user."""
        with cls._lock:
            browser = cls._shared
            if browser is None or not browser.is_alive:
                browser = cls._shared = Browser()
            browser.num_users += 1
            return browser

    def release(self) -> None:
        """Count one user less; with the last the process ends."""
        with Browser._lock:
            self.num_users -= 1
            if self.num_users > 0 or self.owner_pid != os.getpid():
                return
            if Browser._shared is self:
                Browser._shared = None
        self.kill()

    @property
    def is_alive(self) -> bool:
        if self._is_dead or self.owner_pid != os.getpid() or self._process is None:
            return False
        return self._chromium.is_connected() and self._process.is_running()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Wait for a coroutine in the browser's thread, and return its result.

        Raises:
            EnvError: the browser has died or hangs.
        """
        if self._is_dead or self.owner_pid != os.getpid():
            coroutine.close()
            raise EnvError("Web: the browser of this episode is gone. Reset the environment.")
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, timeout_s), self._loop)
        try:
            return future.result()
        except PlaywrightError as e:
            if not self._answers():
                self.kill()
                raise EnvError("Web: the browser died. Reset the environment.") from e
            raise EnvError(f"Web: the browser failed: {_first_line(e)}. Reset the environment.") from e
        except TimeoutError as e:
            self.kill()
            raise EnvError(f"Web: the browser must answer within {timeout_s:g} s; got nothing. Reset it.") from e
        except BaseException:  # Ctrl-C
            future.cancel()
            raise

    def _answers(self) -> bool:
        """Ask the browser itself; that it is connected Playwright also says when its own driver has died."""
        if self._session is None:
            return False
        try:
            asyncio.run_coroutine_threadsafe(self._session.send("Browser.getVersion"), self._loop).result(PROBE_S)
        except (PlaywrightError, TimeoutError):
            return False
        return True

    async def open_context(
        self,
        sites: Sequence[str],
        *,
        server: str | None = None,
        storage_state: Any = None,
        viewport: tuple[int, int] = (1280, 720),
    ) -> Any:
        """Return a new context of Playwright's that reaches some sites and nothing else.

        It asks a proxy for everything but what it may reach: a dead one, so that nothing else answers; or `server`,
        which then answers for all sites under any name. Chromium itself holds to it, for every kind of request.

        Args:
            sites: origins like "http://127.0.0.1:7770".
            server: "host:port" of a local server that answers for the sites, as an HTTP proxy does: it is asked with
                absolute URLs, and must refuse other hosts.
            storage_state: cookies and local storage to begin with, as Playwright saves them.
            viewport: width and height in pixels.
        """
        proxy = {"server": f"http://{server}"} if server else {"server": DEAD_PROXY, "bypass": _bypass(sites)}
        return await self._chromium.new_context(
            proxy=proxy,
            accept_downloads=False,
            service_workers="block",
            storage_state=storage_state,
            viewport={"width": viewport[0], "height": viewport[1]},
            locale="en-US",
            timezone_id="UTC",
            reduced_motion="reduce",
        )

    def soon(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the browser's thread without waiting, as finalizers must."""
        if not self.is_alive:
            coroutine.close()
            return
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(_quietly(coroutine), loop=self._loop))

    def kill(self) -> None:
        """End the process, the driver and the thread; safe to call twice."""
        with Browser._lock:
            if self._is_dead or self.owner_pid != os.getpid():
                return
            self._is_dead = True
            if Browser._shared is self:
                Browser._shared = None
        if threading.current_thread() is self._thread:  # a finalizer, in the loop that it would wait for
            threading.Thread(target=self._end, name="web-browser-end").start()
        else:
            self._end()

    def _end(self) -> None:
        future = asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        with contextlib.suppress(Exception):  # what does not stop is killed
            future.result(timeout=10)
        if self._process is not None:
            with contextlib.suppress(psutil.Error):  # most often it has ended
                self._process.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()

    async def _start(self) -> None:
        state = random.getstate()  # Playwright names its calls with the generator that belongs to the user
        self._playwright = await async_playwright().start()
        random.setstate(state)
        try:
            self._chromium = await self._playwright.chromium.launch(
                executable_path=self.path,
                args=list(CHROMIUM_ARGS),
                proxy={"server": DEAD_PROXY},
                handle_sigint=False,  # Ctrl-C is for the program, which closes its environments
                timeout=START_TIMEOUT_S * 1000,
            )
            self._session = await self._chromium.new_browser_cdp_session()
            processes = (await self._session.send("SystemInfo.getProcessInfo"))["processInfo"]
            pid = next(process["id"] for process in processes if process["type"] == "browser")
            self._process = psutil.Process(pid)
        except PlaywrightError as e:
            raise EnvError(f"Web: {self.path} does not start: {_first_line(e)}.") from e

    async def _stop(self) -> None:
        if self._chromium is not None:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                await asyncio.wait_for(self._chromium.close(), 5)
        if self._playwright is not None:
            await asyncio.wait_for(self._playwright.stop(), 5)


async def _quietly(coroutine: Coroutine[Any, Any, Any]) -> None:
    with contextlib.suppress(PlaywrightError):
        await coroutine


def _bypass(sites: Sequence[str]) -> str:
    """Return Chromium's rules for the hosts that need no proxy."""
    rules = []
    for site in sites:
        parts = urlsplit(site)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        rules.append(f"{parts.scheme}://{host}:{port}")
    return ",".join(rules)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _after_fork_in_child() -> None:
    Browser._lock = threading.RLock()  # another thread of the parent may have held it
    if Browser._shared is not None:
        Browser._abandoned.append(Browser._shared)
    Browser._shared = None


@atexit.register
def _at_exit() -> None:
    if Browser._shared is not None:
        Browser._shared.kill()


os.register_at_fork(after_in_child=_after_fork_in_child)
