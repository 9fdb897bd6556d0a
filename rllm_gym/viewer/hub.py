"""The environment hub: a few sessions, each in a process of its own, that end when they hang or nobody uses them."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.safe_options import check_safe_options
from rllm_gym.viewer.hub_environments import environments
from rllm_gym.viewer.hub_worker import work

MAX_SESSIONS = 4
IDLE_S = 900.0
YIELDING_S = 60.0  # after so long without a call a session makes room for a new one
CALL_TIMEOUT_S = 180.0  # a browser or a virtual machine may have to start, or a model to load
CLOSE_TIMEOUT_S = 10.0
KEYS = ("env", "env_config", "split", "item_id", "seed", "horizon", "policy")


class Hub:
    """All sessions.

    Args:
        policies: {label: checkpoint or model}, what may act beside the expert.
        modules: those that register environments of the user's own.
        env_configs: {environment id: keywords}, which the page cannot change; it can set no path, address or module.
        call_timeout_s: how long a call into an environment or a model may take before its session is ended.
        idle_s: how long a session lives without a call.
        clock: tells the seconds by which sessions are idle.
    """

    def __init__(
        self,
        policies: Mapping[str, str],
        *,
        modules: Sequence[str] = (),
        env_configs: Mapping[str, Mapping[str, Any]] | None = None,
        max_sessions: int = MAX_SESSIONS,
        call_timeout_s: float = CALL_TIMEOUT_S,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policies, self._modules = dict(policies), tuple(modules)
        for module in modules:
            importlib.import_module(module)
        self.environments = environments()
        self._env_configs = dict(env_configs or {})
        self._max_sessions, self._call_timeout_s, self._idle_s = max_sessions, call_timeout_s, idle_s
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def open(self, wanted: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Begin a session and its first task; returns its id and its state.

        Args:
            wanted: what the page asks for, see `KEYS`.

        Raises:
            ConfigError: it cannot be; or too many sessions are open.
            EnvError: the environment failed, or did not answer in time.
        """
        settings, task = self._checked(wanted)
        with self._lock:
            self._close_idle()
            self._make_room()
            if len(self._sessions) >= self._max_sessions:
                raise ConfigError(
                    f"hub: at most {self._max_sessions} sessions at a time. Close one's page, or wait: one that is not "
                    f"used for {YIELDING_S:g} s makes room."
                )
            id = secrets.token_urlsafe(12)
            session = self._sessions[id] = Session(settings, self._call_timeout_s, self._clock)
        try:
            return id, session.call("reset", **task)
        except BaseException:
            self.close(id)
            raise

    def call(self, id: str, name: str, **arguments: Any) -> Any:
        """Let a session do something; one that does not answer is ended.

        Raises:
            ConfigError: there is no such session, or it cannot do this now.
            EnvError: the environment failed, or did not answer in time.
        """
        session = self._sessions.get(id)
        if session is None:
            raise ConfigError("hub: this session has ended. Begin another one.")
        try:
            return session.call(name, **arguments)
        finally:
            if session.is_dead:
                self.close(id)

    def close(self, id: str) -> None:
        """End a session; unknown ones are ignored."""
        session = self._sessions.pop(id, None)
        if session is not None:
            session.close()

    def close_idle(self) -> None:
        with self._lock:
            self._close_idle()

    def close_all(self) -> None:
        for id in list(self._sessions):
            self.close(id)

    def _close_idle(self) -> None:
        now_s = self._clock()
        for id, session in list(self._sessions.items()):
            if now_s - session.used_s > self._idle_s and not session.is_busy:
                self.close(id)

    def _make_room(self) -> None:
        idle = [(session.used_s, id) for id, session in self._sessions.items() if not session.is_busy]
        if len(self._sessions) >= self._max_sessions and idle and min(idle)[0] < self._clock() - YIELDING_S:
            self.close(min(idle)[1])

    def _checked(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        for key in wanted:
            if key not in KEYS:
                raise ConfigError(f"hub: takes {', '.join(KEYS)}; got {key!r}.")
        env = wanted.get("env")
        if not isinstance(env, str) or env not in [known["id"] for known in self.environments]:
            raise ConfigError(f"hub: env must be one of those that are listed; got {env!r}.")
        env_config = wanted.get("env_config") or {}
        if not isinstance(env_config, dict):
            raise ConfigError(f"hub: env_config must be a JSON object; got {env_config!r}.")
        if wanted.get("split"):
            env_config = {**env_config, "split": str(wanted["split"])}
        check_safe_options(
            "hub: env_config",
            env,
            env_config,
            "Give the others on the command line: rllm-gym view --env ID --env-config JSON.",
        )
        env_config = {**env_config, **self._env_configs.get(env, {})}
        policy = wanted.get("policy") or ""
        if policy and policy not in self.policies:
            raise ConfigError(f"hub: policy must be one of {', '.join(self.policies)}; got {policy!r}.")
        horizon, seed = _whole_number(wanted, "horizon", 1), _whole_number(wanted, "seed", 0)
        item_id = wanted.get("item_id")
        if not isinstance(item_id, str | int | None) or isinstance(item_id, bool):
            raise ConfigError(f"hub: item_id must be a text or a number; got {item_id!r}.")
        settings = {
            "modules": self._modules,
            "env": env,
            "env_config": env_config,
            "policy": self.policies.get(policy, ""),
            "horizon": horizon,
        }
        return settings, {"seed": 0 if seed is None else seed, "item_id": item_id or None}


class Session:
    """One worker process. `is_dead`: it has ended, or was ended since it did not answer."""

    def __init__(self, settings: Mapping[str, Any], timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        context = multiprocessing.get_context("spawn")  # a fork would copy the server's threads' locks
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, dict(settings)), daemon=False)
        self._process.start()
        theirs.close()
        self._busy = threading.Lock()
        self.is_dead = False
        self.used_s = self._clock()

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    def call(self, name: str, **arguments: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise ConfigError("hub: this session is busy. Wait for its answer.")
        try:
            self._connection.send((name, arguments))
            if not self._connection.poll(self._timeout_s):
                self.kill()
                raise EnvError(
                    f"hub: every call must return within {self._timeout_s:g} s; {name} did not, and its session has "
                    "been ended."
                )
            is_fine, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self.kill()
            raise EnvError(
                f"hub: the session's process has died ({self._process.exitcode}). Begin another one."
            ) from error
        finally:
            self.used_s = self._clock()
            self._busy.release()
        if not is_fine:
            raise EnvError(str(answer))
        return answer

    def close(self) -> None:
        """Let the environment close; end what has not ended by then."""
        if not self.is_dead and self._busy.acquire(timeout=CLOSE_TIMEOUT_S):
            with contextlib.suppress(OSError, EOFError):
                self._connection.send(("close", {}))
                self._process.join(CLOSE_TIMEOUT_S)
            self._busy.release()
        self.kill()

    def kill(self) -> None:
        """End the process and all that it has started."""
        self.is_dead = True
        if self._process.is_alive() and self._process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # one that has not made its group yet
        self._process.join(CLOSE_TIMEOUT_S)
        self._connection.close()


def _whole_number(wanted: Mapping[str, Any], key: str, least: int) -> int | None:
    value = wanted.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise ConfigError(f"hub: {key} must be a whole number from {least} on; got {value!r}.")
    return value
