"""What stands before every request: the token, the size limit, the versions, and texts that no answer could quote."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse, Response

from rllm_gym.envs.remote.wire import VERSION_HEADER, package_version

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI application around another one.

    Args:
        app: what gets the requests that pass.
        token: what `Authorization: Bearer` must have; None lets everyone in.
        max_bytes: of a request's body; uvicorn's `ws_max_size` does the same for a WebSocket's messages.
    """

    def __init__(self, app: App, *, token: str | None, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._version = package_version()
        self._others: set[str] = set()  # versions that were spoken of

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers") or ())
        self._compare_versions(headers.get(VERSION_HEADER.encode()))
        if self._expected is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})  # before it is accepted: HTTP 403
            else:
                await self._refuse(
                    scope, receive, send, 401, "A bearer token is needed.", {"www-authenticate": "Bearer"}
                )
        elif scope["type"] == "websocket":
            await self._app(scope, receive, send)
        elif (body := await self._read(receive)) is None:
            await self._refuse(scope, receive, send, 413, f"A request may have {self._max_bytes} bytes.")
        elif not _is_readable(body):
            await self._refuse(
                scope, receive, send, 400, "The body must be JSON, and its texts without lone surrogates."
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
        response: Response = JSONResponse({"error": why}, status, headers)
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
