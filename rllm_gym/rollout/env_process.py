"""An environment in a process of its own, called from the main thread there.

`python -m rllm_gym.rollout.env_process FD` gets what makes the environment, then calls, one at a time, as pickles on a
socket; both ends are this user's. When the socket is closed, also by the death of the other process, it ends, and what
the environment has started with it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from rllm_gym import errors
from rllm_gym.child_process import end_with_parent, start_module
from rllm_gym.errors import EnvError, describe
from rllm_gym.infos import copy_info
from rllm_gym.rollout.env_adapters import EnvStep, adapt_env, ignore
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import Logps, TokenIds

CLOSE_TIMEOUT_S = 5.0  # for a process to end once its environment is closed
NO_LIMITS: tuple[tuple[str, ...], int | None] = ((), None)  # texts that end a turn, and its most tokens


class EnvProcess:
    """An `EnvAdapter` whose environment is made with the first call, in another process.

    Its calls come from one thread; `abandon` may come from any.

    Args:
        make_env: makes the environment at the token level; pickled by value where it is no module's.
        name: the environment's, until it has said its own.
        chat: its tokenizer.
    """

    def __init__(self, make_env: Callable[[], Any], *, name: str, chat: ChatTokenizer) -> None:
        self.env_id, self._chat = name, chat
        self.agents: tuple[str, ...] = ()
        self.is_multi_agent = self.wants_end = False
        self._stop_ids: Mapping[str, tuple[int, ...]] = {}
        self._turn_limits = NO_LIMITS
        self._takes_logps = False
        self._logp: Logps | None = None
        self._process, ours = start_module("rllm_gym.rollout.env_process", stdout=sys.__stderr__)
        self._connection = Connection(ours.detach())
        self._connection.send_bytes(cloudpickle.dumps(make_env))

    def stop_ids(self, agent_id: str) -> tuple[int, ...]:
        return self._stop_ids[agent_id]

    def turn_length(self, ids: TokenIds) -> int:
        return self._chat.turn_length(ids, self._turn_limits)

    def early_end(self) -> Callable[[Sequence[int]], bool] | None:
        return self._chat.early_end(self._turn_limits)

    def reset(self, seed: int, item_id: str | int | None, seating: int = 0) -> EnvStep:
        return self._ask("reset", seed, item_id, seating)

    def take_logps(self, logp: Logps) -> None:
        self._logp = logp  # any thread calls this; it goes with the next step

    def step(self, actions: Mapping[str, TokenIds]) -> EnvStep:
        if self._takes_logps:
            self._ask("take_logps", self._logp)
        return self._ask("step", dict(actions))

    def cut_short(self) -> EnvStep:
        return self._ask("cut_short")

    def call(self, function: Callable[[Any], Any]) -> Any:
        return self._ask("call", function)

    def close(self) -> None:
        """Close the environment and end its process; safe to call twice."""
        if self._connection.closed:
            return
        try:
            if self._process.poll() is None:
                self._ask("close")
        finally:
            self._connection.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_TIMEOUT_S)
            self.abandon()

    def abandon(self) -> None:
        """End the process and all that it has started; a call that is under way raises `EnvError`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            self._connection.send_bytes(cloudpickle.dumps((method, args)))
            is_done, answer, *said = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            self._connection.close()
            code = self._process.wait()
            raise EnvError(f"{self.env_id}: the environment's process has ended with {code}.") from error
        if said:
            [about] = said
            self.env_id, self.agents, self._stop_ids = about["env_id"], about["agents"], about["stop_ids"]
            self.is_multi_agent, self.wants_end = about["is_multi_agent"], about["wants_end"]
            self._turn_limits, self._takes_logps = about["turn_limits"], about["takes_logps"]
        if is_done:
            return answer
        kind, text = answer
        raise KINDS.get(kind, EnvError)(text)


# Errors that keep their kind; others become an `EnvError` that says where they come from.
KINDS: dict[str, type[Exception]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
} | {"NotImplementedError": NotImplementedError}


# --- in the other process ---


def main(connection: Connection) -> None:
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True, name="end-with-parent").start()
    env: Any = None
    with contextlib.suppress(EOFError, OSError):  # the other end is closed
        make_env = pickle.loads(connection.recv_bytes())
        while True:
            method, args = pickle.loads(connection.recv_bytes())
            answer: tuple[Any, ...]
            try:
                if env is None:
                    env = adapt_env(make_env())
                answer = True, getattr(env, method)(*args), _about(env)
            except BaseException as error:  # an environment may raise anything
                kind = type(error).__name__
                answer = False, (kind, str(error) if kind in KINDS else describe(error))
            connection.send_bytes(_pickled(answer))
    os.killpg(0, signal.SIGKILL)


def _about(env: Any) -> dict[str, Any]:
    return {
        **{name: getattr(env, name) for name in ("env_id", "agents", "is_multi_agent", "wants_end")},
        "stop_ids": {agent_id: env.stop_ids(agent_id) for agent_id in env.agents},
        "turn_limits": env.call(_turn_limits),
        "takes_logps": env.take_logps is not ignore,
    }


def _turn_limits(env: Any) -> tuple[tuple[str, ...], int | None]:
    if hasattr(env, "possible_agents"):
        return getattr(env, "turn_limits", NO_LIMITS)
    return env.get_wrapper_attr("turn_limits") if env.has_wrapper_attr("turn_limits") else NO_LIMITS


def _pickled(answer: tuple[Any, ...]) -> bytes:
    """Return an answer as bytes; of an info, what cannot be sent goes as its text."""
    try:
        return cloudpickle.dumps(answer)
    except Exception as error:
        if not isinstance(answer[1], EnvStep):
            return cloudpickle.dumps((False, ("EnvError", f"the answer cannot be sent: {describe(error)}")))
    infos = {agent_id: copy_info(info) for agent_id, info in answer[1].infos.items()}
    return cloudpickle.dumps((True, replace(answer[1], infos=infos), *answer[2:]))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
