"""Environments as the rollout loop sees them, reused by reset; and the threads that step them while engines decode."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol, SupportsFloat

import numpy as np

from rllm_gym.errors import EnvError
from rllm_gym.types import AGENT, TokenIds

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0  # how long the end of a run waits for its environments; a hung one must not hang the process


@dataclass(frozen=True)
class EnvStep:
    """What an environment said after a reset or a step.

    Args:
        observations: new token ids by agent.
        rewards: finite floats by agent, acting or waiting.
        to_act: the agents whose actions the next step needs, in the environment's order; empty at the end.
        infos: info dictionaries by agent.
        end_reason: "" while the episode goes on, else "terminated" or "truncated".
    """

    observations: dict[str, TokenIds]
    rewards: dict[str, float]
    to_act: tuple[str, ...]
    infos: dict[str, dict[str, Any]]
    end_reason: str = ""


class EnvAdapter(Protocol):
    """A token-level environment of one or several agents."""

    env_id: str
    agents: tuple[str, ...]
    is_multi_agent: bool

    def stop_ids(self, agent_id: str) -> tuple[int, ...]: ...

    def reset(self, seed: int, item_id: str | int | None) -> EnvStep: ...

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep: ...

    def close(self) -> None: ...


def adapt_env(env: Any) -> EnvAdapter:
    """Wrap a token-level `gymnasium.Env`, or a multi-agent one (recognised by its `possible_agents`)."""
    return MultiAgentAdapter(env) if hasattr(env, "possible_agents") else SingleAgentAdapter(env)


class SingleAgentAdapter:
    """A token-level `gymnasium.Env` as an environment of the one agent `AGENT`."""

    agents: tuple[str, ...] = (AGENT,)
    is_multi_agent = False

    def __init__(self, env: Any):
        self._env = env
        self._stop_ids = tuple(env.get_wrapper_attr("stop_ids"))
        self.env_id = _env_id(env)

    def stop_ids(self, agent_id: str) -> tuple[int, ...]:
        return self._stop_ids

    def reset(self, seed: int, item_id: str | int | None) -> EnvStep:
        ids, info = self._env.reset(seed=seed, options=_options(item_id))
        return EnvStep({AGENT: _ids(ids)}, {}, (AGENT,), {AGENT: info})

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep:
        ids, reward, terminated, truncated, info = self._env.step(actions[AGENT])
        end_reason = "terminated" if terminated else "truncated" if truncated else ""
        rewards = {AGENT: _finite(reward, self.env_id)}
        return EnvStep({AGENT: _ids(ids)}, rewards, () if end_reason else (AGENT,), {AGENT: info}, end_reason)

    def close(self) -> None:
        self._env.close()


class MultiAgentAdapter:
    """A token-level environment with RLlib `MultiAgentEnv`'s dictionaries; whoever is in the last observations acts."""

    is_multi_agent = True

    def __init__(self, env: Any):
        self._env = env
        self.agents = tuple(env.possible_agents)
        self.env_id = _env_id(env)

    def stop_ids(self, agent_id: str) -> tuple[int, ...]:
        return tuple(self._env.stop_ids)

    def reset(self, seed: int, item_id: str | int | None) -> EnvStep:
        observations, infos = self._env.reset(seed=seed, options=_options(item_id))
        return self._env_step(observations, {}, {}, {}, infos)

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep:
        return self._env_step(*self._env.step(dict(actions)))

    def close(self) -> None:
        self._env.close()

    def _env_step(self, observations, rewards, terminateds, truncateds, infos) -> EnvStep:
        is_terminated, is_truncated = terminateds.get("__all__", False), truncateds.get("__all__", False)
        end_reason = "terminated" if is_terminated else "truncated" if is_truncated else ""
        to_act = tuple(a for a in observations if not (end_reason or terminateds.get(a) or truncateds.get(a)))
        if not (end_reason or to_act):
            raise EnvError(f"{self.env_id}: an episode that goes on needs an agent to act; got observations for none.")
        return EnvStep(
            {agent: _ids(ids) for agent, ids in observations.items()},
            {agent: _finite(reward, self.env_id) for agent, reward in rewards.items()},
            to_act,
            {agent: infos[agent] for agent in self.agents if agent in infos},
            end_reason,
        )


def _env_id(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def _options(item_id: str | int | None) -> dict[str, Any] | None:
    return None if item_id is None else {"item_id": item_id}


def _ids(ids: Any) -> TokenIds:
    return np.asarray(ids, np.int64)


def _finite(reward: SupportsFloat, env_id: str) -> float:
    value = float(reward)
    if not math.isfinite(value):
        raise EnvError(f"{env_id}: a reward must be a finite number; got {value}.")
    return value


class _State(Enum):
    QUEUED = auto()
    RUNNING = auto()
    DONE = auto()
    ABANDONED = auto()


@dataclass(eq=False)
class EnvSlot:
    """A place for one environment, made by its first job."""

    env_index: int
    env: EnvAdapter | None = None
    job: EnvJob | None = None


@dataclass(eq=False)
class EnvJob:
    """One reset or step of a slot's environment. `error` is the text of what it raised, `seconds` its wall time."""

    slot: EnvSlot
    owner: Any
    call: Callable[[EnvAdapter], EnvStep]
    result: EnvStep | None = None
    error: str | None = None
    seconds: float = 0.0
    state: _State = _State.QUEUED

    def run(self, make_env: Callable[[int], Any]) -> None:
        start_s = time.perf_counter()
        try:
            if self.slot.env is None:
                self.slot.env = adapt_env(make_env(self.slot.env_index))
            self.result = self.call(self.slot.env)
        except Exception as error:
            # Environments are foreign code: whatever one raises fails its episode, not the run.
            self.error = describe(error)
        finally:
            self.seconds = time.perf_counter() - start_s


def describe(error: BaseException) -> str:
    """Return an exception's type, message and innermost frame in one line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno} in {frame.name})"


class EnvPool:
    """At most `num_envs` environments and `num_workers` threads that step them.

    With no workers jobs run inside `poll`, in the order of submission. With workers an environment is stepped by
    whichever thread is free, so it must not be tied to one.

    Args:
        make_env: environment index -> token-level environment; called in a worker.
        num_envs: environments in use or idle at any time; those abandoned in a hung call are not counted.
        num_workers: threads; 0 runs everything in line.
    """

    def __init__(self, make_env: Callable[[int], Any], *, num_envs: int, num_workers: int):
        self._make_env = make_env
        self._num_envs, self._num_workers = num_envs, num_workers
        self.num_jobs = 0  # calls that are queued or running
        self._in_use: list[EnvSlot] = []
        self._idle: list[EnvSlot] = []  # most recently used last
        self._inline: deque[EnvJob] = deque()
        self._jobs: queue.SimpleQueue[EnvJob | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[EnvJob] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards EnvJob.state
        self._closing: list[threading.Thread] = []
        self._is_closed = False
        for _ in range(num_workers):
            self._start_worker()

    def acquire(self, env_index: int) -> EnvSlot | None:
        """Return an idle slot of this index, or an empty one; None while `num_envs` are in use."""
        if len(self._in_use) >= self._num_envs:
            return None
        slot = next((slot for slot in reversed(self._idle) if slot.env_index == env_index), None)
        if slot is not None:
            self._idle.remove(slot)
        else:
            slot = EnvSlot(env_index)
            if len(self._in_use) + len(self._idle) >= self._num_envs:
                self._close_env(self._idle.pop(0).env)  # another index's: make room
        self._in_use.append(slot)
        return slot

    def release(self, slot: EnvSlot) -> None:
        """Give a slot back; its environment will be used again."""
        self._in_use.remove(slot)
        self._idle.append(slot)

    def discard(self, slot: EnvSlot) -> None:
        """Never use this slot's environment again. It is closed now, or when the call that hangs in it returns."""
        self._in_use.remove(slot)
        job, slot.job = slot.job, None
        if job is not None:
            self.num_jobs -= 1
            with self._lock:
                is_running, job.state = job.state is _State.RUNNING, _State.ABANDONED
            if is_running:
                if not self._is_closed:
                    self._start_worker()  # in the place of the one that hangs, which ends if it ever returns
                return
        self._close_env(slot.env)

    def submit(self, slot: EnvSlot, call: Callable[[EnvAdapter], EnvStep], owner: Any) -> None:
        """Queue a call on the slot's environment."""
        slot.job = job = EnvJob(slot, owner, call)
        self.num_jobs += 1
        if self._num_workers:
            self._jobs.put(job)
        else:
            self._inline.append(job)

    def poll(self, timeout_s: float | None) -> list[EnvJob]:
        """Return the finished jobs; with workers wait up to `timeout_s` (None: for ever) for the first one."""
        done = []
        if self._num_workers:
            try:
                done.append(self._done.get(timeout=timeout_s))
                while True:
                    done.append(self._done.get_nowait())
            except queue.Empty:
                pass
        while self._inline:
            job = self._inline.popleft()
            if job.state is not _State.ABANDONED:
                job.run(self._make_env)
                done.append(job)
        done = [job for job in done if job.state is not _State.ABANDONED]
        for job in done:
            job.slot.job = None
        self.num_jobs -= len(done)
        return done

    def close(self) -> None:
        """Close every environment and end the threads; safe to call twice."""
        self._is_closed = True
        for slot in list(self._in_use):
            self.discard(slot)
        while self._idle:
            self._close_env(self._idle.pop(0).env)
        for _ in range(self._num_workers):
            self._jobs.put(None)
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._closing:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _start_worker(self) -> None:
        threading.Thread(target=self._work, name="env-worker", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                if job.state is _State.ABANDONED:
                    continue
                job.state = _State.RUNNING
            try:
                job.run(self._make_env)
            except BaseException as error:  # sys.exit() or a panic of native code: the loop must hear of it, too
                job.error = describe(error)
            with self._lock:
                is_abandoned = job.state is _State.ABANDONED
                if not is_abandoned:
                    job.state = _State.DONE
            if is_abandoned:
                _close_quietly(job.slot.env)
                return
            self._done.put(job)

    def _close_env(self, env: EnvAdapter | None) -> None:
        """Close an environment; with workers in a thread of its own, since a broken one may hang in `close`, too."""
        if not self._num_workers:
            _close_quietly(env)
            return
        thread = threading.Thread(target=_close_quietly, args=(env,), name="env-close", daemon=True)
        thread.start()
        self._closing = [t for t in self._closing if t.is_alive()] + [thread]


def _close_quietly(env: EnvAdapter | None) -> None:
    try:
        if env is not None:
            env.close()
    except Exception as error:  # Foreign code; what failed is already being thrown away.
        logger.warning("closing an environment failed: %s", describe(error))
