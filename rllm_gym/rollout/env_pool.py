"""Environments that are reused by reset, and the threads, one for life, that call them while engines decode."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rllm_gym.errors import EnvError, describe
from rllm_gym.rollout.env_adapters import EnvAdapter, adapt_env
from rllm_gym.rollout.env_process import EnvProcess

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0  # how long the end of a run waits for its environments; a hung one must not hang the process


class _State(Enum):
    QUEUED = auto()
    RUNNING = auto()
    DONE = auto()
    ABANDONED = auto()


@dataclass(eq=False)
class EnvSlot:
    """A place for one environment, made by its first job, in the thread in which all its calls are made."""

    env_index: int
    worker: _Worker
    env: EnvAdapter | None = None
    job: EnvJob | None = None
    is_hung: bool = False  # a call of it has not come back

    @property
    def name(self) -> str:
        return f"environment {self.env_index}" if self.env is None else self.env.env_id


@dataclass(eq=False)
class EnvJob:
    """One call into a slot's environment.

    `call` is what it is in: `make`, `reset`, `step`, `call` or `close`. `error` is the text of what it raised, or that
    it timed out, or `is_lost`: its thread hangs in another environment. `seconds` is its wall time.
    """

    slot: EnvSlot
    owner: Any
    method: str
    args: tuple[Any, ...] = ()
    call: str = ""
    call_begun_s: float = math.inf
    result: Any = None
    error: str | None = None
    is_timed_out: bool = False
    is_lost: bool = False
    seconds: float = 0.0
    state: _State = _State.QUEUED

    def run(self, make_env: Callable[[int], Any]) -> None:
        start_s = time.perf_counter()
        try:
            if self.slot.env is None:
                self._begin("make")
                self.slot.env = adapt_env(make_env(self.slot.env_index))
            self._begin(self.method)
            self.result = getattr(self.slot.env, self.method)(*self.args)
        except BaseException as error:
            # Environments are foreign code: whatever one raises, sys.exit() too, fails its episode and not the run.
            if self.state is not _State.ABANDONED:  # else it was told already
                self.error = describe(error)
            if self.call == "close":
                logger.warning("closing %s failed: %s", self.slot.name, describe(error))
        if self.state is not _State.ABANDONED:
            self.seconds = time.perf_counter() - start_s

    def _begin(self, call: str) -> None:
        self.call, self.call_begun_s = call, time.perf_counter()


class _Worker:
    """A thread and the environments that live in it; `is_hung` once one of them does not come back."""

    def __init__(self, make_env: Callable[[int], Any], done: queue.SimpleQueue[EnvJob], lock: threading.Lock) -> None:
        self._make_env, self._done, self._lock = make_env, done, lock
        self._jobs: queue.SimpleQueue[EnvJob | None] = queue.SimpleQueue()
        self.slots: list[EnvSlot] = []
        self.is_hung = False
        threading.Thread(target=self._work, name="env-worker", daemon=True).start()

    def give(self, job: EnvJob | None) -> None:
        """Queue a job; None ends the thread after those that it has."""
        self._jobs.put(job)

    def _work(self) -> None:
        while not self.is_hung and (job := self._jobs.get()) is not None:
            with self._lock:
                if job.state is _State.ABANDONED:
                    continue
                job.state = _State.RUNNING
            job.run(self._make_env)
            with self._lock:
                is_abandoned = job.state is _State.ABANDONED
                if not is_abandoned:
                    job.state = _State.DONE
            if not is_abandoned:
                self._done.put(job)
        if self.is_hung:  # the call has come back, and nobody waits for it
            for slot in self.slots:
                if slot.env is not None:
                    EnvJob(slot, None, "close").run(self._make_env)


class EnvPool:
    """At most `num_envs` environments and the threads that call them.

    All calls of an environment, its making and closing too, come from one thread: that with the fewest environments
    when it was made. A thread cannot be killed: where a call takes longer than `timeout_s`, the environment and its
    thread are abandoned, and the thread's other environments with them, since no other thread may call them. What is
    played in these ends with `EnvJob.is_lost`. Should the call ever return, its thread closes them all and ends. An
    environment in a process of its own (`env_process.py`) is killed instead, and its thread goes on.

    Args:
        make_env: environment index -> token-level environment; called in a worker.
        num_envs: environments in use or idle at any time; those abandoned are not counted.
        num_workers: threads. 0 is one, which works only while `poll` waits for it, on one job after the other in the
            order of submission.
        timeout_s: bounds every call into an environment: making, resetting, stepping and closing it. None is no bound.
    """

    def __init__(
        self, make_env: Callable[[int], Any], *, num_envs: int, num_workers: int, timeout_s: float | None = None
    ):
        self._make_env = make_env
        self._num_envs = num_envs
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._in_order: deque[EnvJob] | None = None if num_workers else deque()
        self.num_jobs = 0  # calls that are queued or running
        self._in_use: list[EnvSlot] = []
        self._idle: list[EnvSlot] = []  # most recently used last
        self._given: list[EnvJob] = []  # what the workers have got and not done
        self._done: queue.SimpleQueue[EnvJob] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards EnvJob.state
        self._is_closed = False
        self._workers = [self._new_worker() for _ in range(min(max(1, num_workers), num_envs))]

    def acquire(self, env_index: int) -> EnvSlot | None:
        """Return an idle slot of this index, or an empty one; None while `num_envs` are in use."""
        if len(self._in_use) >= self._num_envs:
            return None
        num_in_use = Counter(id(slot.worker) for slot in self._in_use)
        fitting = [slot for slot in reversed(self._idle) if slot.env_index == env_index]
        if fitting:  # whose thread has the least to do; of these the one that was used last
            slot = min(fitting, key=lambda slot: num_in_use[id(slot.worker)])
            self._idle.remove(slot)
        else:
            if len(self._in_use) + len(self._idle) >= self._num_envs:
                self._close_env(self._idle.pop(0))  # another index's: make room
            worker = min(self._workers, key=lambda worker: len(worker.slots))
            slot = EnvSlot(env_index, worker)
            worker.slots.append(slot)
        self._in_use.append(slot)
        return slot

    def release(self, slot: EnvSlot) -> None:
        """Give a slot back; its environment will be used again, unless its thread hangs."""
        self._in_use.remove(slot)
        if not slot.worker.is_hung:
            self._idle.append(slot)

    def discard(self, slot: EnvSlot) -> None:
        """Never use this slot's environment again. It is closed now, or when what hangs in its thread returns."""
        self._in_use.remove(slot)
        job, slot.job = slot.job, None
        if job is not None:
            self.num_jobs -= 1
            self._abandon(job)
            self._given = [given for given in self._given if given is not job]
        self._close_env(slot)

    def submit(self, slot: EnvSlot, owner: Any, method: str, *args: Any) -> None:
        """Queue `reset` or `step` of the slot's environment."""
        slot.job = job = EnvJob(slot, owner, method, args)
        self.num_jobs += 1
        if self._in_order is None:
            self._give(job)
        else:
            self._in_order.append(job)

    def poll(self, timeout_s: float | None) -> list[EnvJob]:
        """Return the finished and the timed-out jobs; with workers wait up to `timeout_s` (None: for ever) for one."""
        if self._in_order is None:
            done = self._await_answers(math.inf if timeout_s is None else timeout_s)
        else:
            done = []
            while self._in_order and not any(job.is_timed_out for job in done):  # which may end the run
                job = self._in_order.popleft()
                if job.state is not _State.ABANDONED:
                    self._give(job)
                    done += self._await_answers(math.inf)
        for job in done:
            job.slot.job = None
        self.num_jobs -= len(done)
        return done

    def call(self, slot: EnvSlot, function: Callable[[Any], Any]) -> Any:
        """Call a function with the environment of a slot that has no job, in its thread; return what it returns.

        Raises:
            EnvError: the function raised, or did not return in time.
        """
        job = EnvJob(slot, None, "call", (function,))
        self._give(job)
        [done] = self._await_answers(math.inf)
        if done.error is not None:
            raise EnvError(done.error)
        return done.result

    def close(self) -> None:
        """Close every environment and end the threads; safe to call twice."""
        self._timeout_s = min(self._timeout_s, CLOSE_TIMEOUT_S)
        self._is_closed = True
        for slot in list(self._in_use):
            self.discard(slot)
        while self._idle:
            self._close_env(self._idle.pop(0))
        end_s = time.perf_counter() + CLOSE_TIMEOUT_S
        while self._given and time.perf_counter() < end_s:
            self._await_answers(end_s - time.perf_counter())
        for worker in self._workers:
            worker.give(None)

    def _close_env(self, slot: EnvSlot) -> None:
        """Have its worker close an environment; nobody waits for it, but where all is in order."""
        if slot.worker.is_hung:
            return
        slot.worker.slots.remove(slot)
        if slot.env is not None and not slot.is_hung:
            self._give(EnvJob(slot, None, "close"))
            if self._in_order is not None and not self._is_closed:
                self._await_answers(math.inf)

    def _give(self, job: EnvJob) -> None:
        self._given.append(job)
        if job.slot.worker.is_hung:
            self._lose(job)
        else:
            job.slot.worker.give(job)

    def _lose(self, job: EnvJob) -> None:
        """Answer a job whose environment nobody can call any more."""
        job.state, job.is_lost = _State.DONE, True
        job.error = f"EnvPool: {job.slot.name} is made anew, since another environment hangs in its thread."
        self._done.put(job)

    def _await_answers(self, timeout_s: float) -> list[EnvJob]:
        """Return the resets and steps that have ended or take too long; wait up to `timeout_s` for the first."""
        end_s = time.perf_counter() + timeout_s
        while True:
            now_s = time.perf_counter()
            # A call that has not begun cannot be overdue before a whole timeout has gone by.
            due_s = min((job.call_begun_s for job in self._given), default=math.inf) + self._timeout_s
            wait_s = max(0.0, min(end_s, due_s, now_s + self._timeout_s) - now_s)
            done = []
            with contextlib.suppress(queue.Empty):
                done.append(self._done.get(timeout=None if wait_s == math.inf else wait_s))
                while True:
                    done.append(self._done.get_nowait())
            done = [job for job in done if job.state is _State.DONE]
            done += [job for job in self._given if self._give_up_if_overdue(job)]
            self._given = [job for job in self._given if job not in done]
            answers = [job for job in done if job.method != "close"]
            if answers or not self._given or time.perf_counter() >= end_s:
                return answers

    def _give_up_if_overdue(self, job: EnvJob) -> bool:
        """Abandon a call that takes too long; return whether it does."""
        seconds = time.perf_counter() - job.call_begun_s
        if seconds < self._timeout_s or not self._abandon(job, only_if_running=True):
            return False
        job.seconds, job.is_timed_out = seconds, True
        job.error = (
            f"EnvPool: every call into an environment must return within env_timeout_s = {self._timeout_s:g}; got "
            f"{seconds:.1f} s in {job.call} of {job.slot.name}, which is abandoned. Raise env_timeout_s if its calls "
            "may take longer."
        )
        logger.warning(job.error)
        return True

    def _abandon(self, job: EnvJob, *, only_if_running: bool = False) -> bool:
        """Never take a job's answer; return whether it is under way.

        Then its process is killed, if it has one, and else its thread replaced.
        """
        with self._lock:
            is_running = job.state is _State.RUNNING
            if is_running or not only_if_running:
                job.state = _State.ABANDONED
            if is_running:
                slot = job.slot
                slot.is_hung = True
                slot.worker.is_hung = not isinstance(slot.env, EnvProcess)  # which ends, and its call with it
        if is_running:
            with contextlib.suppress(Exception):  # it may mean something else by that name
                if slot.env is not None:
                    slot.env.abandon()
            if slot.worker.is_hung:
                self._replace(slot.worker)
        return is_running

    def _replace(self, worker: _Worker) -> None:
        """Put a new worker in the place of one that hangs; all that is queued for its environments is lost."""
        self._workers[self._workers.index(worker)] = self._new_worker()
        self._idle = [slot for slot in self._idle if slot.worker is not worker]
        for job in self._given:
            if job.slot.worker is worker and job.state is _State.QUEUED:
                self._lose(job)

    def _new_worker(self) -> _Worker:
        return _Worker(self._make_env, self._done, self._lock)
