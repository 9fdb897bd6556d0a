"""The HTTP endpoint that programs take for OpenAI's server, and the one of a process, where each episode has a key."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import os
import queue
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rllm_gym.envs.program import anthropic_messages, chat_completions, responses
from rllm_gym.envs.program.requests import MAX_DEPTH, Call, Form, ModelRequest, RequestError, is_deep

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 16 << 20
MODEL = "rllm-gym"
SESSION = "x-session-id"  # the header that names a session
FORMS: Mapping[str, Form] = {
    "/v1/chat/completions": chat_completions.FORM,
    "/v1/responses": responses.FORM,
    "/v1/messages": anthropic_messages.FORM,
}


def error_body(path: str, error: RequestError) -> Any:
    """Return an error in the form of a path's SDK."""
    form = anthropic_messages.FORM if path.startswith("/v1/messages") else chat_completions.FORM
    return form.error(error)


class Session:
    """One episode at the endpoint.

    Args:
        max_parallel: requests that may wait at once.
        name: for clients, which get it with every answer; "" is none.

    Attributes:
        key: what the requests of a program have.
        reward_token: what a program posts its reward with.
        events: what has come: requests, and None for the end of the episode.
        refusal: answers every request from then on; `end` sets it.
        posted: the reward that was posted.
        num_waiting: requests that have no answer yet; the endpoint's thread alone counts these and the next ones.
        num_refused: requests that were answered with an error.
        last_refused: why the last of them was.
    """

    def __init__(self, max_parallel: int, name: str = "") -> None:
        self.name = name
        self.key, self.reward_token = f"sk-{secrets.token_hex(24)}", secrets.token_hex(24)
        self.events: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self.refusal: RequestError | None = None
        self.posted: Any = None
        self._max_parallel = max_parallel
        self._lock = threading.Lock()  # no request comes in behind the last look at them
        self.num_waiting = self.num_refused = 0
        self.last_refused = ""

    def enter(self) -> None:
        """Take in a request, whether it has been read or not, until it leaves."""
        if self.num_waiting >= self._max_parallel:
            error = RequestError(
                f"at most {self._max_parallel} requests may wait at once (max_parallel).", 429, "too_many_requests"
            )
            self.count_refused(error)
            raise error
        self.num_waiting += 1

    def count_refused(self, error: RequestError) -> None:
        self.num_refused += 1
        self.last_refused = str(error)

    def submit(self, call: Call) -> None:
        """Let a call wait for its answer."""
        with self._lock:
            if self.refusal is not None:
                raise self.refusal
            self.events.put(call)

    def end(self, refusal: RequestError) -> None:
        """Answer every request that comes yet with an error."""
        with self._lock:
            self.refusal = refusal

    def refuse_all(self) -> None:
        """Answer what waits as `end` has said."""
        assert self.refusal is not None
        with contextlib.suppress(queue.Empty):
            while True:
                if (call := self.events.get_nowait()) is not None:
                    call.refuse(self.refusal)

    def leave(self) -> None:
        """Let go of a request that has its answer, or gets none."""
        self.num_waiting -= 1


class Endpoint:
    """The application: OpenAI's and Anthropic's paths, and the rewards. Subclasses say which session a request is of.

    Attributes:
        app: for a server.
        model: the name of the one model; any other is answered alike.
    """

    model = MODEL

    def __init__(self) -> None:
        routes = [Route(path, self._complete, methods=["POST"]) for path in FORMS]
        routes += [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/reward", self._take_reward, methods=["POST"]),
        ]
        handlers: Any = {HTTPException: _not_found, RequestError: _refused, Exception: _broken}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def admit(self, request: Request, *, is_reward: bool = False) -> None:
        """Refuse a request whose body need not be read."""

    def enter(self, request: Request) -> Session | None:
        """Return the session of a request that is not read yet, which it enters; None where its body must tell."""
        return None

    def enter_by(self, request: Request, asked: ModelRequest) -> Session:
        """Return the session of a request that has been read, which it enters."""
        raise NotImplementedError

    def take_reward(self, request: Request, reward: Any) -> None:
        """Take what was posted as a session's reward."""
        raise NotImplementedError

    async def _complete(self, request: Request) -> Response:
        form = FORMS[request.url.path]
        session = self.enter(request)
        try:
            call = Call(form.read(await _json(request)))
            session = session or self.enter_by(request, call.request)
            session.submit(call)
            choices, usage = await _unless_gone(request, call)
        except RequestError as error:
            if session is not None:
                session.count_refused(error)
            raise
        finally:
            if session is not None:
                session.leave()
        headers = {SESSION: session.name} if session.name else {}
        if call.request.is_streamed:
            events = form.events(call.request, choices, usage)
            text = "".join(_event(name, data) for name, data in events)
            return Response(text, media_type="text/event-stream", headers=headers)
        return JSONResponse(form.answer(call.request, choices, usage), headers=headers)

    async def _models(self, request: Request) -> Response:
        from openai.types import Model

        self.admit(request)
        model = Model(id=self.model, created=0, object="model", owned_by="rllm-gym")
        return JSONResponse({"object": "list", "data": [model.model_dump(mode="json")]})

    async def _take_reward(self, request: Request) -> Response:
        self.admit(request, is_reward=True)
        self.take_reward(request, await _json(request, of=(dict, int, float)))
        return JSONResponse({"ok": True})


class ProgramEndpoint(Endpoint):
    """A server on a free port of 127.0.0.1, in a thread of its own; it starts with the first session and stays."""

    def __init__(self) -> None:
        super().__init__()
        self._sessions: dict[bytes, Session] = {}  # by the hash of their keys
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_level="error", access_log=False, lifespan="off", http="h11", ws="none")
        serve_in_thread(config, self._socket)

    def open(self, max_parallel: int) -> Session:
        """Begin a session."""
        session = Session(max_parallel)
        with self._lock:
            self._sessions[_hash(session.key)] = self._sessions[_hash(session.reward_token)] = session
        return session

    def close(self, session: Session) -> None:
        """Answer whatever waits or comes yet with an error."""
        session.end(RequestError("the episode has ended.", 410, "episode_ended"))
        with self._lock:
            for key in (session.key, session.reward_token):
                self._sessions.pop(_hash(key), None)
        session.refuse_all()

    def admit(self, request: Request, *, is_reward: bool = False) -> None:
        self._session(request, is_reward=is_reward)

    def enter(self, request: Request) -> Session:
        session = self._session(request)
        session.enter()
        return session

    def take_reward(self, request: Request, reward: Any) -> None:
        session = self._session(request, is_reward=True)
        if session.posted is not None:
            raise RequestError("the reward is posted once; got it a second time.", 409, "posted_twice")
        session.posted = reward

    def _session(self, request: Request, *, is_reward: bool = False) -> Session:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.headers.get("x-api-key", "")
        with self._lock:
            session = self._sessions.get(_hash(token))
        expected = session and (session.reward_token if is_reward else session.key)
        if session is None or not hmac.compare_digest(token.encode(), str(expected).encode()):
            raise RequestError("a request must have the key of an episode that is played.", 401, "invalid_api_key")
        return session


def serve_in_thread(config: uvicorn.Config, listening: socket.socket) -> Callable[[], None]:
    """Serve at a socket in a thread of its own; return what ends that."""
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined, method-assign]
    serve = server.serve(sockets=[listening])
    thread = threading.Thread(target=lambda: asyncio.run(serve), name="program-endpoint", daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join()

    return end


_endpoint: ProgramEndpoint | None = None
_lock = threading.Lock()


def endpoint() -> ProgramEndpoint:
    """Return this process's endpoint."""
    global _endpoint
    with _lock:
        if _endpoint is None:
            _endpoint = ProgramEndpoint()
        return _endpoint


def _after_fork_in_child() -> None:
    global _endpoint, _lock
    _endpoint, _lock = None, threading.Lock()  # its thread is the parent's


os.register_at_fork(after_in_child=_after_fork_in_child)


def _hash(key: str) -> bytes:
    """Return a key's hash, by which sessions are found, so that the time which it takes tells nothing of the key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _event(name: str | None, data: Any) -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


async def _json(request: Request, of: Any = dict) -> Any:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_REQUEST_BYTES:
                raise RequestError(f"a request may have {MAX_REQUEST_BYTES >> 20} MiB.", 413, "too_large")
            parts.append(part)
    except ClientDisconnect as error:
        raise RequestError("the client has gone.", 499, "gone") from error
    raw = b"".join(parts)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body must be JSON ({error}).") from error
    if is_deep(body):
        raise RequestError(f"the body may be nested {MAX_DEPTH} deep.")
    if b"\\ud" in raw.lower():  # perhaps half of a surrogate pair: it has no UTF-8 form, in which answers quote it
        body = json.loads(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
    if not isinstance(body, of) or isinstance(body, bool):
        raise RequestError(f"the body must be a JSON object; got {body!r:.100}.")
    return body


async def _unless_gone(request: Request, call: Call) -> Any:
    """Return the answer to a call; where its client has hung up, nobody need sample it any more."""
    waiting: Future[Any] = call.answer
    answer = asyncio.wrap_future(waiting)
    while not answer.done():
        await asyncio.wait({answer}, timeout=1.0)
        if not answer.done() and await request.is_disconnected():
            call.is_gone = True
            raise RequestError("the client has gone.", 499, "gone")
    return answer.result()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {"retry-after": "1"} if error.status in (429, 503) else {"x-should-retry": "false"}
    return JSONResponse(error_body(request.url.path, error), error.status, headers)


async def _broken(request: Request, error: Exception) -> Response:
    return await _refused(request, RequestError("the endpoint itself has failed; its log says how.", 500, "internal"))


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join((*FORMS, "/v1/models"))
    why = f"{request.method} {request.url.path} is not supported; there are {known}."
    return await _refused(request, RequestError(why, error.status_code, "unsupported"))
