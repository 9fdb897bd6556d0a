"""Records a window's requests to the sites, in the form of a HAR file's entries, while the episode goes on.

Playwright writes such a file only when the context is closed, and the pages are still needed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any

from rllm_gym.envs.web.browser import PlaywrightError
from rllm_gym.envs.web.page import WebPage

WAIT_S = 5.0  # for the answers that are still open; a page may leave one open for ever


class RequestLog:
    """The requests of a window, from now on.

    Args:
        page: the window.
    """

    def __init__(self, page: WebPage) -> None:
        self._page = page
        self._entries: list[dict[str, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        page.watch("request", self._on_request)

    def entries(self) -> list[dict[str, Any]]:
        """Return the requests so far, in the order in which they were sent.

        Raises:
            EnvError: the browser has died.
        """
        self._page.run(self._answered())
        return list(self._entries)

    # In the browser's thread.

    def _on_request(self, request: Any) -> None:
        entry = {
            "request": {"url": request.url, "method": request.method, "headers": _pairs(request.headers)},
            "response": {"status": -1, "headers": [], "cookies": [], "redirectURL": "", "content": {}},
        }
        self._entries.append(entry)
        task = asyncio.ensure_future(_complete(entry, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=WAIT_S)


async def _complete(entry: dict[str, Any], request: Any) -> None:
    """Write into an entry what is known of its request when the response is there."""
    try:
        if request.post_data is not None:
            kind = request.headers.get("content-type", "")
            entry["request"]["postData"] = {"mimeType": kind, "text": request.post_data}
        entry["request"]["headers"] = await request.headers_array()
        response = await request.response()
        if response is None:
            return
        headers = await response.headers_array()
        kind = response.headers.get("content-type", "")
        entry["response"] |= {
            "status": response.status,
            "headers": headers,
            "cookies": _cookies(headers),
            "redirectURL": response.headers.get("location", ""),
        }
        if "json" in kind:  # no evaluator reads the text of a page
            entry["response"]["content"] = {"mimeType": kind, "text": await response.text()}
    except (PlaywrightError, UnicodeDecodeError):
        pass  # the page was left before the answer was read, or the body is no text


def _pairs(headers: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers.items()]


def _cookies(headers: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    cookies = []
    for header in headers:
        if header["name"].lower() == "set-cookie":
            try:
                parsed = SimpleCookie(header["value"])
            except CookieError:
                continue
            cookies += [{"name": name, "value": morsel.value} for name, morsel in parsed.items()]
    return cookies
