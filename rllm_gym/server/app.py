"""The server: one application of all environments and protocols, and its life from the first worker to the last."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from rllm_gym.server.errors import FullError, ServeError
from rllm_gym.server.guard import Guard
from rllm_gym.server.protocol_agentgym import agentgym_app
from rllm_gym.server.sessions import SessionTable

KEEP_ALIVE_S = 75  # longer than a model thinks about a turn
MAX_QUOTED, MAX_QUOTED_CHARS = 10, 200  # of a refused request's faults


@dataclass(frozen=True)
class Binding:
    """Where a server listens, and whom it lets in.

    Args:
        host: address.
        port: 0 takes a free one.
        token: see `Guard`.
        max_bytes: of one request or message.
        drain_s: how long the calls under way may take at the end.
    """

    host: str
    port: int
    token: str | None
    max_bytes: int
    drain_s: float


def make_app(table: SessionTable, protocol: str) -> Starlette:
    """Return the application: OpenEnv at /, AgentGym at /agentgym/, or at / where it is alone.

    Where there are several environments, each is under its name, like /TextCraft-v0/ and /agentgym/TextCraft-v0/.

    Args:
        table: after its start.
        protocol: openenv, agentgym or both.
    """
    routes: list[Any] = []
    names = list(table.catalogs)
    if protocol != "openenv":
        prefix = "/agentgym" if protocol == "both" else ""
        apps = {name: with_errors(agentgym_app(table, name)) for name in names}
        routes += [Mount(f"{prefix}/{name}", app) for name, app in apps.items()]
        if len(names) == 1:
            routes.append(Mount(prefix or "/", apps[names[0]]))
    if protocol != "agentgym":
        from rllm_gym.server.protocol_openenv import openenv_app  # AgentGym's protocol does without that library

        apps = {name: with_errors(openenv_app(table, name)) for name in names}
        if len(names) == 1:  # under its name are its task routes
            routes.append(Mount("/", apps[names[0]]))
        else:
            routes += [Mount(f"/{name}", app) for name, app in apps.items()]
    if len(names) > 1:

        async def index(request: Request) -> JSONResponse:
            return JSONResponse({"environments": {name: f"/{name}/" for name in names}, "protocol": protocol})

        routes.append(Route("/", index))
    return Starlette(routes=routes)


def with_errors(app: FastAPI) -> FastAPI:
    """Have an application answer errors with {"error": ...}, and quote nothing that a client has sent."""

    @app.exception_handler(ServeError)
    async def refused(request: Request, error: ServeError) -> JSONResponse:
        headers = {"retry-after": str(error.retry_after_s)} if isinstance(error, FullError) else None
        return JSONResponse({"error": str(error)}, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _invalid(error.errors())

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 422 and isinstance(error.detail, list):
            return _invalid(error.detail)
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    return app


def _invalid(errors: Sequence[Any]) -> JSONResponse:
    found = [
        {
            "loc": [str(part)[:MAX_QUOTED_CHARS] for part in error["loc"][:MAX_QUOTED]],
            "msg": error["msg"][:MAX_QUOTED_CHARS],
        }
        for error in errors[:MAX_QUOTED]
    ]
    return JSONResponse({"error": "The request has another form than /openapi.json says.", "detail": found}, 422)


class _Protocol(H11Protocol):
    """Uvicorn's, which also closes a connection on which no request has come in time, whoever has opened it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(KEEP_ALIVE_S, self._close_unless_asked)

    def _close_unless_asked(self) -> None:
        if self.scope is None and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """At the first signal it waits for the calls under way; at the second it ends at once."""

    def __init__(self, config: uvicorn.Config, table: SessionTable, drain_s: float) -> None:
        super().__init__(config)
        self._table, self._drain_s = table, drain_s
        self._draining: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain())
        else:
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        await self._table.drain(self._drain_s)
        self.should_exit = True


async def serve(table: SessionTable, protocol: str, binding: Binding, *, say: Any = print) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: an environment cannot be made.
        OSError: the address cannot be listened on.
    """
    with listen(binding) as (listening, url):
        await table.start()
        try:
            app = make_app(table, protocol)
            async with _openenv_reapers(app):
                say(f"serving {', '.join(table.catalogs)} at {url}")
                await _Server(guarded(app, binding), table, binding.drain_s).serve(sockets=[listening])
        finally:
            await table.close()


@contextlib.contextmanager
def listen(binding: Binding) -> Iterator[tuple[socket.socket, str]]:
    """Give a socket that listens, and its URL.

    Raises:
        OSError: the address cannot be listened on.
    """
    family, _, _, _, address = socket.getaddrinfo(binding.host, binding.port, type=socket.SOCK_STREAM)[0]
    # Named TCP: else asyncio would not switch off Nagle's algorithm, which costs 40 ms an answer.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
        host, port = listening.getsockname()[:2]
        yield listening, f"http://{host}:{port}"


def guarded(app: Any, binding: Binding, *, error_body: Any = None) -> uvicorn.Config:
    """Return how uvicorn serves an application behind the guard.

    Args:
        error_body: see `Guard`.
    """
    return uvicorn.Config(
        Guard(app, token=binding.token, max_bytes=binding.max_bytes, error_body=error_body),  # type: ignore[arg-type]
        http=_Protocol,  # it bounds a request's header; httptools keeps all of it
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws_max_size=binding.max_bytes,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(binding.drain_s)),
    )


@contextlib.asynccontextmanager
async def _openenv_reapers(app: Starlette) -> Any:
    """Run what OpenEnv's applications have for their start and end: they reap the sessions of its own table."""
    apps: list[Any] = [mount.app for mount in app.routes if isinstance(mount, Mount)]
    routers = {id(app): app.router for app in apps}
    for router in routers.values():
        for start in router.on_startup:
            await start()
    try:
        yield
    finally:
        for router in routers.values():
            for end in router.on_shutdown:
                await end()
