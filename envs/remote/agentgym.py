"""AgentGymEnv: an environment on an AgentGym server."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rllm_gym.envs.base import parse_action
from rllm_gym.envs.items import ItemIds
from rllm_gym.envs.remote.env import NotOpenedError, RemoteEnv, Reply, Tasks, first_answer, now_kept
from rllm_gym.envs.remote.http import NO_ROUTE, Http, StatusError
from rllm_gym.envs.remote.urls import least_used
from rllm_gym.envs.searchqa.questions import AGENTGYM_RANGES, SPLIT_OF_SOURCE
from rllm_gym.errors import ConfigError, EnvError, nearest
from rllm_gym.importing import import_object


class Kind(NamedTuple):
    """AgentGym's terms for one of its environments.

    Args:
        id_key: names a session in a request.
        item_key: names the item in `/reset`; item i is `<env_type>_<i>`.
        env: this package's environment with the same items, "module:Class", and the keywords that restrict it to them.
        is_instructed: what its first observation says holds the instruction.
    """

    id_key: str
    item_key: str
    env: str
    env_config: Mapping[str, Any] = {}
    is_instructed: bool = False


KINDS = {
    "textcraft": Kind("id", "data_idx", "rllm_gym.envs.textcraft.env:TextCraftEnv"),
    "babyai": Kind("id", "data_idx", "rllm_gym.envs.babyai.env:BabyAIEnv"),
    "sciworld": Kind("id", "data_idx", "rllm_gym.envs.sciworld.env:SciWorldEnv", {"task_set": "agentgym"}),
    "searchqa": Kind("env_idx", "id", "rllm_gym.envs.searchqa.env:SearchQAEnv", is_instructed=True),
    "webarena": Kind("env_idx", "idx", "rllm_gym.envs.webarena.env:WebArenaEnv"),
}


class AgentGymEnv(RemoteEnv):
    """One of AgentGym's environments, on an AgentGym server.

    Task:
        The server's items, by AgentGym's numbers.

    Observation:
        Text. A server of this package (`rllm-gym serve`): as in process, the same for the same seed. AgentGym's own:
        what its clients see.

    Action:
        Text, see the environment's own page. AgentGym's own server gets what follows "Action:"; SearchQA's the whole
        text; WebArena's the action in triple backticks.

    Reward:
        As in process. Of AgentGym's own servers: what they say; SciWorld's change of max(score, 0) / 100.

    Episode end:
        Terminated when the server says so; truncated where a server of this package says so.

    Info keys:
        `item_id` (like "textcraft_17"), `category`, `is_success`, `is_invalid_action`. AgentGym's own servers tell no
        category and no invalid actions; a success is an end with reward 1 (BabyAI: above 0; SciWorld: a score of 100).

    Data:
        The server's. `train` and `eval` are a server's of this package, and for AgentGym's own those of the
        environment of the same name here.

    Differs from AgentGym's clients: connections are kept, and errors raise.

    Version history:
        v0: first version.

    Args:
        env_type: "textcraft", "babyai", "sciworld", "searchqa" or "webarena".
        url: see `RemoteEnv`; of a server of this package with its path, like "http://127.0.0.1:36001/agentgym".
        token: see `RemoteEnv`.
        timeout_s: see `RemoteEnv`.
        split: see `RemoteEnv`.
        item_ids: see `RemoteEnv`.
        splits: see `RemoteEnv`.
        system_prompt: see `RemoteEnv`; AgentGym's own server has none: None takes that of the environment of the same
            name here, but for SearchQA, whose first observation holds the instruction.
        render_mode: see `RemoteEnv`.

    Raises:
        ConfigError: see `RemoteEnv`; or an unknown `env_type`.
        EnvError: see `RemoteEnv`; from `reset` and `step` too, when a session is lost.
    """

    name = "agentgym"
    safe_options = ("env_type",)

    def __init__(
        self,
        *,
        env_type: str = "textcraft",
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        timeout_s: float = 180.0,
        split: str | None = None,
        item_ids: ItemIds | None = None,
        splits: Mapping[str, ItemIds] | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if env_type not in KINDS:
            raise ConfigError(
                f"AgentGymEnv: env_type must be one of {', '.join(KINDS)}; got {env_type!r}. "
                f"Did you mean {nearest(env_type, KINDS)!r}?"
            )
        self.env_type = env_type
        super().__init__(
            url=url,
            token=token,
            timeout_s=timeout_s,
            split=split,
            item_ids=item_ids,
            splits=splits,
            system_prompt=system_prompt,
            render_mode=render_mode,
        )

    def _read_tasks(self) -> Tasks:
        return first_answer(
            self._who,
            least_used(self._urls),
            lambda url: _tasks_at(url, self._token, self._timeout_s, self.env_type, now_kept()),
        )

    def _open_session(self, url: str) -> AgentGymSession:
        return AgentGymSession(url, self._token, self._timeout_s, self.env_type)


class AgentGymSession:
    """One environment of the server's, and the connection to it."""

    def __init__(self, url: str, token: str | None, timeout_s: float, env_type: str) -> None:
        self.url, self._env_type, self._kind = url, env_type, KINDS[env_type]
        self._http = Http(url, token, timeout_s)
        self._score = 0.0
        self._is_ours = False
        try:
            answer = self._http.post("/create", {"id": 0} if env_type == "searchqa" else {})
            self._id = int(answer[self._kind.id_key] if isinstance(answer, dict) else answer)
        except BaseException as error:
            self._http.close()
            if isinstance(error, KeyError | TypeError | ValueError):
                raise EnvError(f"{url}: /create must answer as AgentGym's {env_type} does. Check url.") from error
            raise

    def reset(self, seed: int, item_id: str | None) -> Reply:
        assert item_id is not None  # every server has items
        number = int(item_id.rpartition("_")[2])
        body = {self._kind.item_key: number, "seed": seed, "rllm_gym": True}
        answer = self._post("/reset", body)
        self._score = 0.0
        self._is_ours = isinstance(answer, dict) and "system_prompt" in answer
        if self._is_ours:
            return _reply(answer)
        reply = self._foreign(answer, {"item_id": item_id})
        prompt = "" if self._kind.is_instructed else import_object("env_type", self._kind.env).default_system_prompt
        return replace(reply, system_prompt=prompt)

    def step(self, action: str) -> Reply:
        if self._is_ours:
            return _reply(self._post("/step", {"action": action, "rllm_gym": True}))
        if self._env_type == "webarena":
            action = f"```{parse_action(action).strip('`').strip()}```"
        elif self._env_type != "searchqa":
            action = parse_action(action)
        return self._foreign(self._post("/step", {"action": action}), {})

    def expert_action(self) -> str:
        if not self._is_ours:
            raise NotImplementedError(f"{self.url} has no expert.")
        answer = self._post("/expert_action", {})
        if answer["text"] is None:
            raise NotImplementedError(f"{self.url} has no expert.")
        return answer["text"]

    def close(self) -> None:
        with contextlib.suppress(EnvError):  # it is lost
            self._post("/close", {})
        self._http.close()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return self._http.post(path, {self._kind.id_key: self._id, **body})
        except NotOpenedError as error:
            if path == "/reset":
                raise  # nothing was played
            raise EnvError(f"the session is lost: {error}") from error

    def _foreign(self, answer: Any, info: Mapping[str, Any]) -> Reply:
        """Return the answer of AgentGym's own server."""
        try:
            if isinstance(answer, str):
                return Reply(answer, info=info)
            text, reward = answer["observation"], float(answer.get("reward") or 0.0)
            is_over = bool(answer.get("done", answer.get("terminated", False)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise EnvError(f"{self.url}: got another answer than AgentGym's: {str(answer)[:80]}. Check url.") from error
        if text == "TimeoutError" and "sites" in answer:
            raise EnvError(f"{self.url}: WebArena's reset timed out; its log says more")
        is_success = is_over and reward >= 1.0
        if self._env_type == "babyai":
            is_success = is_over and reward > 0
        elif self._env_type == "sciworld":
            score = float(answer.get("score") or 0.0)
            reward, self._score = (max(score, 0.0) - max(self._score, 0.0)) / 100, score
            is_success = score >= 100
            if "task_description" in answer:
                text, reward = f"{answer['task_description']}\n{text}", 0.0
        return Reply(text, reward, is_over, info={**info, "is_success": is_success})


def _reply(answer: Mapping[str, Any]) -> Reply:
    """Return the answer of a server of this package."""
    return Reply(
        answer["text"],
        float(answer["reward"] or 0.0),
        answer["terminated"],
        answer["truncated"],
        answer["info"],
        answer["system_prompt"],
        [(user, assistant) for user, assistant in answer.get("preamble", ())],
        bool(answer["info"].get("is_invalid_action", False)),
    )


@functools.lru_cache(maxsize=16)
def _tasks_at(url: str, token: str | None, timeout_s: float, env_type: str, kept: int) -> Tasks:
    """Return a server's tasks, or those of the environment of the same name here; `kept` is `now_kept()`."""
    http = Http(url, token, timeout_s)
    try:
        http.get("/")  # is anybody there?
        try:
            return Tasks(http.get("/tasks"))
        except StatusError as error:
            if error.status not in NO_ROUTE:
                raise
            return Tasks(_agentgym_splits(env_type))
    finally:
        http.close()


def _agentgym_splits(env_type: str) -> dict[str, Sequence[str]]:
    if env_type == "searchqa":
        found: dict[str, list[str]] = {"train": [], "eval": []}
        for (_, source), (begin, end) in AGENTGYM_RANGES.items():
            found[SPLIT_OF_SOURCE[source]] += [f"searchqa_{number}" for number in range(begin, end)]
        return dict(found)
    if env_type == "webarena":
        from rllm_gym.envs.webarena.tasks import split_indices

        return {
            split: [f"webarena_{n}" for n in split_indices("webarena", split)] for split in ("train", "eval", "all")
        }
    kind = KINDS[env_type]
    make = import_object("env_type", kind.env)
    return {split: make(split=split, **kind.env_config).item_ids for split in ("train", "eval", "all")}
