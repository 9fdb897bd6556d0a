"""Serves the page on this machine alone: episodes and curves as JSON, and the hub's sessions."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.viewer.episode_index import Index
from rllm_gym.viewer.hub import Hub
from rllm_gym.viewer.page import SERVED_POLICY, served_page, static_files

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
# What a browser may call this server. A name that some other site lets point here (DNS rebinding) is none of them.
HOST_NAMES = [HOST, "localhost"]
REFRESH_S = 1.0
MAX_BODY_BYTES = 1 << 20
HEADERS = {
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".md": "text/plain"}


def serve(index: Index, hub: Hub, *, port: int, on_start: Callable[[str], None], has_token: bool = True) -> None:
    """Serve until interrupted.

    Args:
        port: 0 takes a free one.
        on_start: called with the page's address.
        has_token: only who has the address with its token gets in; else any user of this machine does.

    Raises:
        ConfigError: the port is taken.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen()  # from here on a browser waits and is not refused
        except OSError as error:
            raise ConfigError(
                f"view: --port {port} cannot be used ({error.strerror}). Choose another one, or 0 for any free one."
            ) from error
        token = secrets.token_urlsafe(24) if has_token else ""
        # h11 bounds a request's header; httptools keeps all of it.
        config = uvicorn.Config(
            make_app(index, hub, token), http="h11", log_level="warning", access_log=False, lifespan="on"
        )
        on_start(f"http://{HOST}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else ""))
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C, which it raises again once all is closed
            uvicorn.Server(config).run(sockets=[listener])


def make_app(index: Index, hub: Hub, token: str = "") -> Starlette:
    """Return the application; while it runs the index is kept up to date, and idle sessions end.

    Args:
        token: what a request must have; "" lets in every user of this machine.
    """
    files = static_files()

    def page(request: Request) -> Response:
        return HTMLResponse(served_page())

    def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            return _refused("no such file", 404)
        return Response(file.read_bytes(), media_type=_TYPES.get(file.suffix, "text/plain"))

    def state(request: Request) -> Response:
        since, generation = (int(request.query_params.get(key, 0)) for key in ("since", "generation"))
        return _json(index.state(since, generation))

    def episode(request: Request) -> Response:
        number = index.number_of(request.path_params["id"])
        return _refused("no such episode", 404) if number is None else _json(index.episode(number))

    def search(request: Request) -> Response:
        return JSONResponse(index.search(request.query_params.get("text", "")))

    def curves(request: Request) -> Response:
        return JSONResponse(index.curves())

    def hub_offers(request: Request) -> Response:
        return JSONResponse({"environments": hub.environments, "policies": list(hub.policies)})

    async def hub_open(request: Request) -> Response:
        return await _posted(request, lambda wanted: dict(zip(("session", "record"), hub.open(wanted), strict=True)))

    async def hub_call(request: Request) -> Response:
        return await _posted(request, partial(_hub_call, hub, request.path_params["session"]))

    def hub_picture(request: Request) -> Response:
        picture = hub.call(request.path_params["session"], "picture")
        return Response(picture, media_type="image/png") if picture else _refused("it draws none", 404)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name:path}", static),
            Route("/api/state", state),
            Route("/api/episodes/{id}", episode),
            Route("/api/search", search),
            Route("/api/curves", curves),
            Route("/api/hub", hub_offers),
            Route("/api/hub/sessions", hub_open, methods=["POST"]),
            Route("/api/hub/sessions/{session}", hub_call, methods=["POST"]),
            Route("/api/hub/sessions/{session}/picture", hub_picture),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOST_NAMES),
            Middleware(GZipMiddleware, minimum_size=1 << 14, compresslevel=1),
            Middleware(_SafetyHeaders),
            *([Middleware(_Token, token=token)] if token else []),
        ],
        exception_handlers={RllmGymError: _failed, ValueError: _failed, OSError: _failed},
        lifespan=partial(_lifespan, index, hub),
    )


def _hub_call(hub: Hub, session: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    what = wanted.get("do")
    if what == "close":
        hub.close(session)
        return {}
    if what == "reset":
        return {"record": hub.call(session, "reset", seed=int(wanted["seed"]), item_id=wanted.get("item_id"))}
    if what == "act":
        return {"record": hub.call(session, "act", text=str(wanted["text"]))}
    if what == "expert":
        return {"record": hub.call(session, "expert")}
    if what == "model":
        return {"record": hub.call(session, "model", temperature=float(wanted.get("temperature", 1.0)))}
    raise ConfigError(f"hub: do must be reset, act, expert, model or close; got {what!r}.")


async def _posted(request: Request, answer: Callable[[Mapping[str, Any]], Any]) -> Response:
    """Answer JSON that this page has posted. Another site's page cannot send this type without asking for leave."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return _refused("post JSON", 415)
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{request.headers['host']}":
        return _refused("another site's page may not ask for this", 403)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return _refused("too much", 413)
    wanted = json.loads(body)
    if not isinstance(wanted, dict):
        return _refused("post a JSON object", 400)
    try:
        return JSONResponse(await run_in_threadpool(answer, wanted))
    except KeyError as error:
        return _refused(f"{error} is missing", 400)


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _refused(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status)


def _failed(request: Request, error: Exception) -> Response:
    return _refused(" ".join(str(error).split()), 400)


class _Token:
    """Lets in who has the token, at first from the address, then as a cookie, which leaves it out of the address."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        cookie = f"rllm_gym_view_{scope['server'][1]}"  # browsers keep one jar for all ports of a host
        if self._is_right(request.cookies.get(cookie, "")):
            await self._app(scope, receive, send)
        elif self._is_right(request.query_params.get("token", "")):
            response: Response = RedirectResponse(request.url.path, 303)
            response.set_cookie(cookie, self._token, httponly=True, samesite="strict")
            await response(scope, receive, send)
        else:
            await _refused("open the address that rllm-gym view has printed; it has a token", 403)(scope, receive, send)

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


class _SafetyHeaders:
    """Adds `HEADERS` to every answer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((key.lower().encode(), value.encode()) for key, value in HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)


@contextlib.asynccontextmanager
async def _lifespan(index: Index, hub: Hub, app: Starlette) -> AsyncIterator[None]:
    is_over = threading.Event()

    def keep_up() -> None:
        while True:
            try:
                index.refresh()
            except Exception:  # one bad moment of a file system must not end the page's news
                logger.exception("view: the files could not be read; trying again")
            hub.close_idle()
            if is_over.wait(REFRESH_S):
                return

    thread = threading.Thread(target=keep_up, name="index", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        await run_in_threadpool(hub.close_all)
