"""The environments of one worker, by session: what a worker process and a Ray actor run."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rllm_gym.envs.contract import has_expert
from rllm_gym.envs.items import SPLITS
from rllm_gym.errors import ConfigError, EnvError, describe
from rllm_gym.rollout.environments import EnvironmentSpec, list_item_ids, make_text_env

# What an answer holds: ["ok", result], or why there is none, for the client and not for the log.
OK, REFUSED, FAILED = "ok", "refused", "failed"


class EnvHost:
    """Makes, resets, steps and closes environments.

    Calls for different sessions may come from different threads at once; those for one session come one by one.

    Args:
        environments: by the name that clients use, the id and the `env_config` of each.
    """

    def __init__(self, environments: Mapping[str, Mapping[str, Any]]) -> None:
        self._specs = {name: EnvironmentSpec(name, **spec) for name, spec in environments.items()}
        self._envs: dict[int, tuple[str | None, Any]] = {}  # by session: its split and its environment
        self._lock = threading.Lock()  # guards _envs
        self._methods: dict[str, Callable[..., Any]] = {
            "describe": self.describe,
            "reset": self.reset,
            "step": self.step,
            "ask": self.ask,
            "close": self.close,
        }

    def answer(self, method: str, *args: Any) -> list[Any]:
        """Call a method; what it raises becomes an answer, of which the full text goes to the log alone."""
        try:
            return [OK, self._methods[method](*args)]
        except ConfigError as error:
            return [REFUSED, str(error)]
        except BaseException as error:
            # Environments are foreign code: whatever one raises, sys.exit() too, fails its session and not the worker.
            print(f"rllm-gym serve: {method} failed: {describe(error)}", file=sys.stderr, flush=True)
            return [FAILED, type(error).__name__]

    def describe(self, name: str) -> dict[str, Any]:
        """Return the description of an environment that clients read before they play; it is made, and never reset."""
        spec = self._specs[name]
        env = make_text_env(spec)
        try:
            text_env = env.unwrapped
            ids = getattr(text_env, "item_ids", None)
            names = () if ids is None else dict.fromkeys((*SPLITS, *(spec.env_config.get("splits") or {})))
            return {
                "kind": getattr(text_env, "name", ""),
                "description": (type(text_env).__doc__ or name).strip().splitlines()[0],
                "system_prompt": getattr(text_env, "system_prompt", ""),
                "split": getattr(text_env, "split", None),
                "has_expert": has_expert(env),
                "splits": {split: ids for split in names if (ids := self._ids(spec, split))},
            }
        finally:
            env.close()

    def reset(self, session: int, name: str, seed: int | None, item_id: str | None, split: str | None) -> Any:
        with self._lock:
            old_split, env = self._envs.get(session, (None, None))
        if env is None or split != old_split:
            if env is not None:
                env.close()
            env = make_text_env(self._specs[name].with_split(split))
            with self._lock:
                self._envs[session] = (split, env)
        observation, info = env.reset(seed=seed, options=None if item_id is None else {"item_id": item_id})
        said = {
            "system_prompt": getattr(env.unwrapped, "system_prompt", ""),
            "preamble": list(getattr(env.unwrapped, "preamble", ())),
        }
        return {**_reply(observation, info), **said}

    def step(self, session: int, text: str) -> dict[str, Any]:
        observation, reward, terminated, truncated, info = self._env(session).step(text)
        if not math.isfinite(reward):
            raise EnvError(f"a reward must be a finite number; got {reward}.")
        reply = _reply(observation, info)
        return {**reply, "reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated)}

    def ask(self, session: int, what: str) -> Any:
        """Call a method without arguments of the text environment; `what` is never a client's word."""
        return getattr(self._env(session).unwrapped, what)()

    def close(self, session: int) -> None:
        with self._lock:
            _, env = self._envs.pop(session, (None, None))
        if env is not None:
            env.close()

    def close_all(self) -> None:
        for session in list(self._envs):
            with contextlib.suppress(Exception):  # the worker ends
                self.close(session)

    def _env(self, session: int) -> Any:
        return self._envs[session][1]

    def _ids(self, spec: EnvironmentSpec, split: str) -> list[str]:
        try:
            return list(list_item_ids(spec, split) or ())
        except ConfigError:  # no item of it passes the environment's own filters
            return []


def _reply(observation: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation as it goes over the wire; of info what JSON has plain values for."""
    info = {k: value.item() if isinstance(value, np.generic) else value for k, value in info.items()}
    plain: dict[str, Any] = {k: value for k, value in info.items() if isinstance(value, int | float) or value is None}
    plain |= {key: _encodable(value) for key, value in info.items() if isinstance(value, str)}
    return {"text": _encodable(observation), "info": plain, "reward": None, "terminated": False, "truncated": False}


def _encodable(text: str) -> str:
    """Return a text with a question mark for each lone surrogate, which UTF-8 has none for."""
    return text.encode("utf-8", "replace").decode()
