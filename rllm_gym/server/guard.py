"""The guard before every request: who asks, how much, of what version, and texts that no answer could quote."""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response

from rllm_gym.bearer_token import is_own_host
from rllm_gym.envs.remote.wire import VERSION_HEADER, package_version

logger = logging.getLogger(__name__)

MAX_KEYS, MAX_KEY_CHARS, MAX_VALUES = 1000, 200, 10_000  # in one request: an answer may tell a fault of each
SMALL_BYTES = 20_000  # no room for many

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI application around another one.

    Args:
        app: what gets the requests that pass.
        token: what `Authorization: Bearer` must have, or `X-API-Key`, which Anthropic's clients send. None lets in who
            calls this machine by a name of its own, and no page of another site.
        max_bytes: of a request's body; uvicorn's `ws_max_size` does the same for a WebSocket's messages.
        error_body: (path, status, why) -> body, of an application that has errors of a form of its own. It looks after
            its bodies itself: quotes one fault of them at most, and no lone surrogates.
    """

    def __init__(
        self,
        app: App,
        *,
        token: str | None,
        max_bytes: int,
        error_body: Callable[[str, int, str], Any] | None = None,
    ) -> None:
        self._app, self._max_bytes, self._error_body = app, max_bytes, error_body
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._version = package_version()
        self._others: set[str] = set()  # versions that were spoken of

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers") or ())
        self._compare_versions(headers.get(VERSION_HEADER.encode()))
        if self._expected is not None and not hmac.compare_digest(_key_in(headers), self._expected):
            await self._refuse(scope, receive, send, 401, "A bearer token is needed.", {"www-authenticate": "Bearer"})
        elif self._expected is None and not _is_from_here(headers):
            why = "Without a token the server answers this machine alone, by its own names, and no other site's page."
            await self._refuse(scope, receive, send, 403, why)
        elif scope["type"] == "websocket":
            await self._app(scope, _bounded(receive, send), send)
        elif (body := await self._read(receive)) is None:
            await self._refuse(scope, receive, send, 413, f"A request may have {self._max_bytes} bytes.")
        elif self._error_body is None and not _is_readable(body):
            await self._refuse(
                scope, receive, send, 400, "The body must be JSON, and its texts without lone surrogates."
            )
        elif self._error_body is None and not _is_small(body):
            await self._refuse(
                scope, receive, send, 413, f"A request may have {MAX_KEYS} short keys and {MAX_VALUES} values."
            )
        else:
            await self._app(scope, _once(body, receive), self._with_version(send))

    def _compare_versions(self, theirs: bytes | None) -> None:
        other = theirs.decode("latin-1")[:40] if theirs is not None else self._version
        if other != self._version and other not in self._others and len(self._others) < 10:
            self._others.add(other)
            logger.warning("a client has rllm_gym %r, this server %s", other, self._version)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body, or None where it is too large; of that no more is read."""
        parts, num_bytes, more = [], 0, True
        while more:
            message = await receive()
            part = message.get("body", b"")
            num_bytes += len(part)
            if num_bytes > self._max_bytes:
                return None
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _refuse(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        status: int,
        why: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: HTTP 403
            return
        body = {"error": why} if self._error_body is None else self._error_body(scope["path"], status, why)
        response: Response = JSONResponse(body, status, headers)
        await response(scope, receive, self._with_version(send))  # type: ignore[arg-type]

    def _with_version(self, send: Send) -> Send:
        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                version = (VERSION_HEADER.encode(), self._version.encode())
                message["headers"] = [*message.get("headers", ()), version]
            await send(message)

        return send_with_version


def _once(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body, and then what the connection says."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body


def _is_readable(body: bytes) -> bool:
    """Return whether the texts of a JSON body have no lone surrogates: UTF-8 has none, so no answer can quote them."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return True
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _key_in(headers: dict[bytes, bytes]) -> bytes:
    """Return the key of a request, as OpenAI's or Anthropic's clients send it."""
    return headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")


def _is_from_here(headers: dict[bytes, bytes]) -> bool:
    """Return whether a request names this machine, and comes from no other site's page.

    A browser sends any page's requests here. It says where the page is from (Origin); where a name of that site points
    here (DNS rebinding), Host is that name.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    if not is_own_host(re.sub(r":\d*$", "", host)):
        return False
    origin = headers.get(b"origin")
    return origin is None or origin.decode("latin-1") in (f"http://{host}", f"https://{host}")


def _bounded(receive: Receive, send: Send) -> Receive:
    """Return a `receive` that ends a WebSocket whose message has too many parts."""

    async def receive_bounded() -> Message:
        message = await receive()
        body = message.get("text") or message.get("bytes") or b""
        if not _is_small(body.encode("utf-8", "replace") if isinstance(body, str) else body):
            await send({"type": "websocket.close", "code": 1009})
            return {"type": "websocket.disconnect", "code": 1009}
        return message

    return receive_bounded


def _is_small(body: bytes) -> bool:
    """Return whether a JSON body has few enough keys and values."""
    if len(body) <= SMALL_BYTES:
        return True
    try:
        parts = [json.loads(body)]
    except RecursionError:
        return False
    except ValueError:
        return True  # which the application says
    num_keys = num_values = 0
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            num_keys += len(part)
            if num_keys > MAX_KEYS or any(len(key) > MAX_KEY_CHARS for key in part):
                return False
            part = list(part.values())
        if isinstance(part, list):
            num_values += len(part)
            if num_values > MAX_VALUES:
                return False
            parts += part
    return True
