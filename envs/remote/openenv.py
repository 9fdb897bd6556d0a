"""OpenEnvEnv: an environment on any OpenEnv server; the only file here that imports openenv."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from typing import Any

from rllm_gym.envs.remote.actions import ActionForm, ToolsForm, is_of_tools, make_form, text_of
from rllm_gym.envs.remote.env import NotOpenedError, RemoteEnv, Reply, Tasks, first_answer, now_kept
from rllm_gym.envs.remote.http import NO_ROUTE, Http, StatusError, headers
from rllm_gym.envs.remote.urls import least_used
from rllm_gym.envs.remote.wire import EXPERT
from rllm_gym.errors import EnvError, MachineError

CONNECT_TIMEOUT_S = 10.0


class OpenEnvEnv(RemoteEnv):
    """An environment on an OpenEnv server, of this package (`rllm-gym serve`) or of anyone.

    Task:
        The server's. Its task routes give item ids and splits; a server without tasks is played by seeds alone, so
        that evaluation on another split than `train` is refused.

    Observation:
        Text. A server of this package: as in process, the same for the same seed. Another: `text`, or the one text
        that an observation has, or the result of a tool, or the observation as JSON.

    Action:
        Text. A server of this package gets it as it is. For another the action schema is put into the system prompt:
        one text field gets what follows "Action:"; several fields are a JSON object; MCP tools are called as
        {"name": ..., "arguments": {...}}. What does not parse is answered here, with the reason, and is not sent.

    Reward:
        The server's; 0.0 where it says none.

    Episode end:
        Terminated when the server says `done`; truncated where its metadata say so.

    Info keys:
        `item_id`, `category`, `is_success`, `is_invalid_action` and others, of the observation's metadata. Where they
        do not tell `is_success`, it is an end with a reward of 1 or more.

    Data:
        The server's.

    Version history:
        v0: first version.

    Args:
        url: see `RemoteEnv`.
        token: see `RemoteEnv`.
        timeout_s: see `RemoteEnv`.
        split: see `RemoteEnv`.
        item_ids: see `RemoteEnv`.
        splits: see `RemoteEnv`.
        system_prompt: see `RemoteEnv`.
        render_mode: see `RemoteEnv`.

    Raises:
        ConfigError: see `RemoteEnv`; or openenv is not installed.
        EnvError: see `RemoteEnv`; from `reset` and `step` too, when a session is lost.
    """

    name = "openenv"

    def _read_tasks(self) -> Tasks:
        _client_class()  # what is missing is said now
        return first_answer(
            self._who, least_used(self._urls), lambda url: _tasks_at(url, self._token, self._timeout_s, now_kept())
        )

    def _open_session(self, url: str) -> OpenEnvSession:
        return OpenEnvSession(url, self._token, self._timeout_s)


class OpenEnvSession:
    """One WebSocket, and the environment behind it."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self.url = url
        self._schema = _schema_at(url, token, timeout_s, now_kept())
        self._is_ours = self._schema.get("title") == "TextAction" and "text" in self._schema.get("properties", {})
        self._form: ActionForm | None = (
            None if is_of_tools(self._schema) else make_form(self._schema, is_ours=self._is_ours)
        )
        self._client = _client_class()(
            base_url=url,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            message_timeout_s=timeout_s,
            websocket_ping_interval_s=None,  # a ping draws from Python's `random`, at a moment that no seed decides
            headers=headers(token),
        ).sync()
        try:
            self._client.connect()
        except ConnectionError as error:
            self.close()
            refused = "HTTP 401" in str(error) or "HTTP 403" in str(error)
            kind = EnvError if refused else NotOpenedError
            raise kind(f"{url}: {'the server refuses the token' if refused else 'no WebSocket opens'}") from error

    def reset(self, seed: int, item_id: str | None) -> Reply:
        task = {} if item_id is None else self._task(item_id)
        result = self._call(self._client.reset, seed=seed, **task)
        reply = self._reply(result)
        if self._form is None:
            tools = self._call(self._client.step, {"type": "list_tools"}).observation.get("tools") or []
            self._form = ToolsForm(tools)
        *before, _ = result.observation.get("messages") or [None]
        roles = ("system", "user", "assistant")
        said = {role: [message["content"] for message in before if message.get("role") == role] for role in roles}
        return replace(
            reply,
            system_prompt="\n\n".join(filter(None, [*said["system"], self._form.prompt])),
            preamble=tuple(zip(said["user"], said["assistant"], strict=False)),
        )

    def step(self, action: str) -> Reply:
        assert self._form is not None
        parsed = self._form.parse(action)
        if parsed.action is None:
            return Reply(parsed.problem, is_invalid=True)
        return self._reply(self._call(self._client.step, parsed.action))

    def expert_action(self) -> str:
        if not self._is_ours:
            raise NotImplementedError(f"{self.url} has no expert.")
        try:
            return self._call(self._client.step, {"text": "", "metadata": EXPERT}).observation["text"]
        except EnvError as error:
            if "has no expert" in str(error):
                raise NotImplementedError(str(error)) from error
            raise

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the connection is gone, however it says so
            self._client.close()

    def _task(self, item_id: str) -> dict[str, Any]:
        """Return the keywords by which a reset names a task: its id here; elsewhere OpenEnv's split and index."""
        if self._is_ours:
            return {"item_id": item_id}
        split, _, index = item_id.rpartition("/")
        return {"split": split, "index": int(index)}

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except RuntimeError as error:  # what the server answers
            kind = NotOpenedError if "CAPACITY_REACHED" in str(error) else EnvError
            raise kind(f"{self.url}: {str(error)[:300]}") from error
        except Exception as error:  # a time-out, or whatever the connection's end looks like
            self.close()  # an answer that comes late must not be taken for that to the next call
            raise EnvError(f"{self.url}: the session is lost ({type(error).__name__})") from error

    def _reply(self, result: Any) -> Reply:
        """Return the step in a server's answer. One without a reward earns 0; the last answer must have a reward.

        Raises:
            EnvError: the end without a reward, or a reward or an end that is none.
        """
        observation, info = dict(result.observation), dict(result.metadata or result.observation.get("metadata") or {})
        # Some servers say both inside the observation.
        reward = observation.get("reward") if result.reward is None else result.reward
        done = observation.get("done", result.done) or result.done
        if not isinstance(done, bool | None) or isinstance(reward, bool) or not isinstance(reward, int | float | None):
            raise EnvError(
                f"{self.url}: an answer needs done as a bool and reward as a number; got {done!r}, {reward!r}."
            )
        truncated = bool(info.pop("truncated", False))
        terminated = bool(info.pop("terminated", done and not truncated))
        if reward is None and (terminated or truncated):
            raise EnvError(f"{self.url}: the last answer of an episode needs a reward; got null.")
        return Reply(
            text_of(observation),
            float(reward or 0.0),
            terminated,
            truncated,
            info,
            is_invalid=bool(info.get("is_invalid_action", False)),
        )


@functools.cache
def _client_class() -> Any:
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError as error:
        raise MachineError(
            f'OpenEnv-v0 needs {error.name or "openenv"}: pip install "rllm-gym[server]", and then '
            "pip install --no-deps openenv==0.10.0."
        ) from error

    class OneConnection(GenericEnvClient):
        """OpenEnv's generic client for one connection: on another one another environment would be played."""

        async def _ensure_connected(self) -> None:
            if self._ws is None:
                raise ConnectionError("the connection was lost")

    return OneConnection


@functools.lru_cache(maxsize=16)
def _schema_at(url: str, token: str | None, timeout_s: float, kept: int) -> dict[str, Any]:
    schema = Http(url, token, timeout_s).get("/schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("action"), dict):
        raise EnvError(
            f"{url}: an OpenEnv server says its action schema at /schema; got {str(schema)[:80]!r}. Check url."
        )
    return schema["action"]


@functools.lru_cache(maxsize=16)
def _tasks_at(url: str, token: str | None, timeout_s: float, kept: int) -> Tasks:
    """Return a server's tasks; `kept` is `now_kept()`."""
    http = Http(url, token, timeout_s)
    try:
        is_ours = _schema_at(url, token, timeout_s, kept).get("title") == "TextAction"
        names = http.get("/list_environments")
        splits = [split["name"] for split in http.get(f"/{names[0]}/splits")]
        found = {split: http.post(f"/{names[0]}/tasks", {"split": split})["tasks"] for split in splits}
    except StatusError as error:
        if error.status not in NO_ROUTE:
            raise
        return Tasks({})
    finally:
        http.close()
    if is_ours:
        return Tasks({split: [task["id"] for task in tasks] for split, tasks in found.items()})
    return Tasks({split: [f"{split}/{index}" for index in range(len(tasks))] for split, tasks in found.items()})
