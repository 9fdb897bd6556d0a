"""The one table of sessions, whatever protocol opened them, and the workers that their environments are in."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.server.errors import (
    EnvFailedError,
    FullError,
    NotResetError,
    ServeError,
    TimedOutError,
    UnknownError,
)
from rllm_gym.server.host import FAILED, OK
from rllm_gym.server.workers import Environments, Worker, WorkerDiedError

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0  # for a worker to start, and to make an environment for the first time
REAP_EVERY_S = 1.0
MAX_RESTART_WAIT_S = 30.0  # before another start, where workers die before they have started


@dataclass
class Catalog:
    """The facts about an environment that are known without playing it.

    Args:
        name: what clients call it.
        kind: `TextEnv.name`, like "textcraft".
        description: one line.
        system_prompt: its instruction.
        split: what a plain reset draws from.
        has_expert: it knows what an expert would write.
        splits: item ids by split, in order; empty where its tasks have no ids.
    """

    name: str
    kind: str
    description: str
    system_prompt: str
    split: str | None
    has_expert: bool
    splits: dict[str, list[str]]

    def __post_init__(self) -> None:
        self.known = frozenset(itertools.chain(*self.splits.values()))

    def items(self, split: str) -> list[str]:
        if split not in self.splits:
            raise UnknownError(f"{self.name}: splits are {', '.join(self.splits) or '(none)'}; got {split[:80]!r}.")
        return self.splits[split]

    def item(self, split: str | None, index: int) -> str:
        """Return the item at a place of a split; without one of the split that a plain reset draws from."""
        items = self.items(split or self.split or "train")
        if not 0 <= index < len(items):
            raise UnknownError(f"{self.name}: index must be from 0 to {len(items) - 1}; got {index}.")
        return items[index]

    def check_item(self, item_id: str | None) -> None:
        if item_id is not None and item_id not in self.known:
            raise UnknownError(f"{self.name}: no item has this id; got {item_id[:80]!r}.")


@dataclass(eq=False)
class Session:
    """One client's environment.

    Args:
        id: its number.
        environment: the name of its environment.
        last_used_s: when, by the table's clock.
        worker: where it is; None before the first reset.
        reply: what it said last, see `EnvHost`; None before a reset and after a failure.
        opening: what the episode began with.
        num_steps: of the episode.
        score: sum of the episode's rewards.
    """

    id: int
    environment: str
    last_used_s: float
    worker: Worker | None = None
    reply: dict[str, Any] | None = None
    opening: str = ""
    num_steps: int = 0
    score: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_closed: bool = False


class SessionTable:
    """Opens, plays and closes sessions.

    Args:
        environments: by the name that clients use, the id and the `env_config` of each.
        make_worker: starts a worker.
        num_workers: how many there are at any time.
        max_sessions: open at once.
        session_ttl_s: a session that is idle for longer is closed.
        timeout_s: bounds each call into an environment; a worker with a longer one is killed, and its sessions fail.
        clock: tells the seconds by which sessions are idle.
    """

    def __init__(
        self,
        environments: Environments,
        make_worker: Callable[[Environments], Worker],
        *,
        num_workers: int,
        max_sessions: int,
        session_ttl_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._environments, self._make_worker, self._num_workers = environments, make_worker, num_workers
        self.max_sessions, self.session_ttl_s, self.timeout_s = max_sessions, session_ttl_s, timeout_s
        self.catalogs: dict[str, Catalog] = {}
        self.workers: list[Worker] = []
        self._sessions: dict[int, Session] = {}
        self._num_calls = 0  # in environments
        self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Start the workers, and learn what the environments are.

        Raises:
            ConfigError: an environment cannot be made, or a worker does not start.
        """
        self._loop = asyncio.get_running_loop()
        for _ in range(self._num_workers):
            self._start_worker()
        try:
            for name in self._environments:
                kind, result = await self._answer(self.workers[0], START_TIMEOUT_S, "describe", name)
                if kind != OK:
                    reason = f"it raised {result}; the log says more" if kind == FAILED else result
                    raise ConfigError(f"serve: {name}: {reason}")
                self.catalogs[name] = Catalog(name, **result)
            await self._all_started()
        except BaseException as error:
            await self.close()
            if isinstance(error, ServeError):
                raise ConfigError(f"serve: the environments could not be made: {error}") from error
            raise
        self._spawn(self._reap())

    async def close(self) -> None:
        """Close every environment and end the workers; within the workers' bound."""
        self._is_ending = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *(worker.close() for worker in self.workers), return_exceptions=True)
        self._sessions.clear()
        self.workers.clear()

    async def drain(self, timeout_s: float) -> None:
        """Open no more sessions, and wait for the calls that are under way."""
        self._is_ending = True
        end_s = time.monotonic() + timeout_s
        while self._num_calls and time.monotonic() < end_s:
            await asyncio.sleep(0.02)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def open(self, environment: str) -> Session:
        """Return a new session, which its first reset gives an environment.

        Raises:
            FullError: there are `max_sessions`, or the server is ending.
        """
        if self._is_ending:
            raise FullError("The server is ending. Ask another one.")
        if len(self._sessions) >= self.max_sessions:
            raise FullError(f"All {self.max_sessions} sessions are in use. Close some, or try again.")
        # Whole, as AgentGym's clients want it, exact in JSON, and not to be guessed by another client.
        while (number := secrets.randbits(53)) in self._sessions:
            pass
        session = Session(number, environment, self._clock())
        self._sessions[session.id] = session
        return session

    def get(self, session_id: int, environment: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None or session.environment != environment:
            raise UnknownError(
                f"There is no session {str(session_id)[:20]}: it was never created, or is closed, was idle for too "
                "long, or its environment was lost. Create one."
            )
        return session

    def close_session(self, session: Session) -> None:
        """Close a session, in the background; safe to call twice, and from any thread."""
        self._loop.call_soon_threadsafe(self._close_session, session)

    async def reset(
        self,
        session: Session,
        *,
        seed: int | None = None,
        item_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
    ) -> dict[str, Any]:
        """Begin an episode and return what `EnvHost.reset` does.

        Args:
            seed: of the episode, see `TextEnv.reset`.
            item_id: asks for an item, of whatever split.
            split: what the item is drawn from; None is the split that is served.
            index: asks for the item at this place of the split, in place of `item_id`.

        Raises:
            ServeError: see `step`; or there is no such split or item.
        """
        catalog = self.catalogs[session.environment]
        if index is not None:
            item_id = catalog.item(split, index)
        if split is not None:
            catalog.items(split)
        catalog.check_item(item_id)
        async with session.lock:
            # An item of another split is asked for by its id alone; the environment need not be made anew.
            by_split = split if item_id is None else None
            session.reply = None
            reply = await self._call(session, "reset", session.environment, seed, item_id, by_split)
            session.num_steps, session.score, session.reply, session.opening = 0, 0.0, reply, reply["text"]
            return reply

    async def step(self, session: Session, text: str) -> dict[str, Any]:
        """Carry out an action and return what `EnvHost.step` does.

        Raises:
            NotResetError: there is no episode.
            EnvFailedError: the environment raised; only a reset helps.
            TimedOutError: it took too long, or its worker died; the session is gone.
        """
        async with session.lock:
            self._need_episode(session)
            session.reply, before = None, session.reply
            reply = await self._call(session, "step", text)
            session.reply = {**before, **reply}  # type: ignore[dict-item]
            session.num_steps += 1
            session.score += reply["reward"]
            return session.reply

    async def expert_action(self, session: Session) -> str:
        """Return the next action of the environment's expert."""
        if not self.catalogs[session.environment].has_expert:
            raise UnknownError(f"{session.environment} has no expert.")
        return await self.ask(session, "expert_action")

    async def ask(self, session: Session, method: str) -> Any:
        """Call a method of the text environment that changes nothing."""
        async with session.lock:
            self._need_episode(session)
            return await self._call(session, "ask", method)

    def _need_episode(self, session: Session) -> None:
        if session.reply is None and not session.is_closed:
            raise NotResetError(f"{session.environment}: a step comes after a reset; got a step before any. Reset it.")

    async def _call(self, session: Session, method: str, *args: Any) -> Any:
        if session.worker is None:
            await self._wait_for_a_worker()
        if session.is_closed:
            raise UnknownError("The session is closed: idle for too long, or its environment was lost. Create one.")
        if session.worker is None:
            # One that is being started is as good as another one only where there is no other.
            session.worker = min(self.workers, key=lambda worker: (not worker.started.done(), worker.num_sessions))
            session.worker.num_sessions += 1
        session.last_used_s = self._clock()
        self._num_calls += 1
        try:
            kind, result = await self._answer(session.worker, self.timeout_s, method, session.id, *args)
        except TimedOutError:
            self._close_session(session)
            raise
        finally:
            self._num_calls -= 1
            session.last_used_s = self._clock()
        if kind == OK:
            return result
        if kind == FAILED:
            raise EnvFailedError(f"{session.environment} failed in {method} ({result}). The server's log says more.")
        logger.warning("%s refused a %s: %s", session.environment, method, result)
        raise EnvFailedError(f"{session.environment} cannot be played as it is served. The server's log says why.")

    async def _wait_for_a_worker(self) -> None:
        """Return as soon as there is a worker; after a death there may be none until the next one is started."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self.workers:
            if self._is_ending:
                raise FullError("The server is ending. Ask another one.")
            if time.monotonic() > end_s:
                raise FullError("The workers die before they have started; the server's log says more. Try again.")
            await asyncio.sleep(0.02)

    async def _answer(self, worker: Worker, timeout_s: float, method: str, *args: Any) -> list[Any]:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                if not worker.started.done():
                    await asyncio.wait([worker.started, worker.died], return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(timeout_s):
                return await worker.call(method, *args)
        except TimeoutError as error:
            logger.warning("%s took longer than %g s: its worker is killed", method, timeout_s)
            worker.kill()
            if worker in self.workers:  # no other session may come to it while it dies
                self.workers.remove(worker)
            raise TimedOutError(f"A {method} must return within {timeout_s:g} s; the session is lost.") from error
        except WorkerDiedError as error:
            raise TimedOutError("The environment's process died, and the session with it. Create one.") from error

    def _close_session(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        session.is_closed = True
        if session.worker is not None and not session.worker.died.done():
            session.worker.num_sessions -= 1
            self._spawn(self._close_environment(session))

    def close_idle(self) -> None:
        """Close the sessions that nobody has used for `session_ttl_s`; done now and then by itself."""
        idle_since_s = self._clock() - self.session_ttl_s
        for session in list(self._sessions.values()):
            if session.last_used_s < idle_since_s and not session.lock.locked():
                self._close_session(session)

    async def _close_environment(self, session: Session) -> None:
        async with session.lock:  # after the call that is under way
            with contextlib.suppress(ServeError):
                await self._answer(session.worker, self.timeout_s, "close", session.id)  # type: ignore[arg-type]

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(REAP_EVERY_S, self.session_ttl_s / 4))
            self.close_idle()

    async def _all_started(self) -> None:
        """Wait for every worker, so that the first sessions do not all come to the one that was first."""
        num_started = 0
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while (num_started := sum(worker.started.done() for worker in self.workers)) < self._num_workers:
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise ConfigError(
                f"serve: workers must start within {START_TIMEOUT_S:g} s; {num_started} of {self._num_workers} did. "
                "Ask for fewer, or give the cluster more CPUs."
            ) from error

    def _start_worker(self, wait_s: float = 0.1) -> None:
        """Start a worker; should it die before it has started, the next one waits for `wait_s`."""
        worker = self._make_worker(self._environments)
        self.workers.append(worker)
        self._spawn(self._replace_when_dead(worker, wait_s))

    async def _replace_when_dead(self, worker: Worker, wait_s: float) -> None:
        await asyncio.shield(worker.died)
        lost = [session for session in self._sessions.values() if session.worker is worker]
        for session in lost:
            self._sessions.pop(session.id)
            session.is_closed = True
        if worker in self.workers:
            self.workers.remove(worker)
        logger.warning("a worker has died with %d sessions; another one is started", len(lost))
        if worker.started.done():
            self._start_worker()
        else:
            await asyncio.sleep(wait_s)
            self._start_worker(min(2 * wait_s, MAX_RESTART_WAIT_S))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
