"""Workers, in which environments run: processes on this machine, or Ray actors on any."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from rllm_gym.child_process import start_module
from rllm_gym.errors import RllmGymError
from rllm_gym.server.host import EnvHost

Environments = Mapping[str, Mapping[str, Any]]

MAX_LINE_BYTES = 1 << 28  # the item ids of the largest environment take some megabytes
CLOSE_TIMEOUT_S = 10.0  # for a worker to close its environments, browsers among them
ACTOR_THREADS = 64


class WorkerDiedError(RllmGymError):
    """The worker has ended, and its sessions with it."""


class Worker(Protocol):
    """Where some sessions' environments are.

    `started` is done when calls are answered, `died` when it has ended; `num_sessions` is the caller's count.
    """

    started: asyncio.Future[None]
    died: asyncio.Future[None]
    num_sessions: int

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Let the worker's `EnvHost` answer a call.

        Raises:
            WorkerDiedError: there is no answer.
        """

    def kill(self) -> None: ...

    async def close(self) -> None:
        """Let it close its environments, then end it; within `CLOSE_TIMEOUT_S`."""


class ProcessWorker:
    """A worker in a process of its own."""

    def __init__(self, environments: Environments) -> None:
        self._process, ours = start_module("rllm_gym.server.worker", stdout=sys.stderr)
        ours.sendall(json.dumps(environments).encode() + b"\n")
        ours.setblocking(False)
        self._socket = ours
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[list[Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self.started, self.died = _futures()
        self.num_sessions = 0
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, method: str, *args: Any) -> list[Any]:
        if self._writer is None or self.died.done():
            raise WorkerDiedError("the worker has ended")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(json.dumps([number, method, *args]).encode() + b"\n")
            return await answer
        finally:
            self._waiting.pop(number, None)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the processes of its environments

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        try:
            await asyncio.wait_for(asyncio.to_thread(self._process.wait), CLOSE_TIMEOUT_S)
        except TimeoutError:
            self.kill()
            self._process.wait()
        self._reading.cancel()

    async def _read(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=MAX_LINE_BYTES)
        try:
            if await reader.readline():
                self.started.set_result(None)
            while line := await reader.readline():
                number, *answer = json.loads(line)
                future = self._waiting.get(number)
                if future is not None and not future.done():
                    future.set_result(answer)
        except ConnectionError:
            pass  # it has died
        finally:
            self._writer.close()
            self.kill()
            if not self.died.done():
                self.died.set_result(None)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(WorkerDiedError("the worker has ended"))
            await asyncio.to_thread(self._process.wait)


class RayWorker:
    """A worker in a Ray actor, which Ray places on any node with a free CPU."""

    def __init__(self, environments: Environments) -> None:
        import ray

        self._ray = ray
        actor = ray.remote(num_cpus=1, max_concurrency=ACTOR_THREADS, scheduling_strategy="SPREAD")(_Actor)
        self._actor = actor.remote({name: dict(spec) for name, spec in environments.items()})
        self.started, self.died = _futures()
        self.num_sessions = 0
        self._watching = asyncio.create_task(self._watch())

    async def call(self, method: str, *args: Any) -> list[Any]:
        try:
            return await self._actor.answer.remote(method, *args)
        except self._ray.exceptions.RayError as error:
            raise WorkerDiedError("the worker has ended") from error

    def kill(self) -> None:
        self._ray.kill(self._actor)

    async def close(self) -> None:
        self._watching.cancel()
        with contextlib.suppress(WorkerDiedError, TimeoutError, self._ray.exceptions.RayError):
            await asyncio.wait_for(self._actor.close_all.remote(), CLOSE_TIMEOUT_S)
        self.kill()

    async def _watch(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            await self._actor.ready.remote()
            self.started.set_result(None)
            await self._actor.wait_for_ever.remote()
        if not self.died.done():
            self.died.set_result(None)


class _Actor(EnvHost):
    def ready(self) -> None:
        """Return when it is there."""

    def wait_for_ever(self) -> None:
        """Return never: who waits for the answer learns of the actor's death."""
        threading.Event().wait()


def _futures() -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    loop = asyncio.get_running_loop()
    return loop.create_future(), loop.create_future()
