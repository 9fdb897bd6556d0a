"""OpenEnv's protocol, on that library's own server classes: sessions on its WebSocket, tasks on its routes."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server.exceptions import SessionCapacityError
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, ServerMode, State
from pydantic import Field

from rllm_gym.envs.base import MAX_TEXT_CHARS
from rllm_gym.envs.remote.wire import EXPERT, package_version
from rllm_gym.server.errors import FullError, ServeError
from rllm_gym.server.sessions import Session, SessionTable

# OpenEnv knows these three kinds of splits; "validation" is its own default.
SPLIT_TYPES = {"train": "train", "eval": "test"}


class TextAction(Action):
    """The model's text."""

    text: str = Field(max_length=MAX_TEXT_CHARS, description="What the model wrote, thought and action.")


class TextObservation(Observation):
    """The environment's words, in two forms."""

    text: str = Field(description="What the environment says.")
    messages: list[dict[str, str]] = Field(
        description="The same as chat messages; after a reset, a system prompt and turns before the task come first."
    )


class TextState(State):
    """Where an episode is."""

    item_id: str | None = Field(default=None, description="The task that is played.")


class TextEnvironment(Environment[TextAction, TextObservation, TextState]):
    """One session of the table, as OpenEnv's server sees it. It is opened by the first reset, or with its connection.

    Its tasks are known without opening it.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_SINGLE_THREAD_EXECUTOR = True  # nothing here blocks, so that one thread makes and closes them all

    def __init__(self, table: SessionTable, name: str) -> None:
        super().__init__()
        self._table, self._catalog = table, table.catalogs[name]
        self._episode_id: str | None = None
        self.session: Session | None = None

    async def reset_async(  # type: ignore[override]
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        item_id: str | None = None,
        **others: Any,
    ) -> TextObservation:
        """Begin an episode; of `split`, at a place of it, or of an item, see `SessionTable.reset`."""
        for what, value, kind in (
            ("seed", seed, int),
            ("split", split, str),
            ("index", index, int),
            ("item_id", item_id, str),
        ):
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise ServeError(f"reset: {what} must be of type {kind.__name__}; got {type(value).__name__}.")
        if seed is not None and seed < 0:
            raise ServeError(f"reset: seed must not be negative; got {seed}.")
        for key in others:
            raise ServeError(f"reset takes seed, episode_id, split, index and item_id; got {key[:80]!r}.")
        if self.session is None:
            self.session = self._table.open(self._catalog.name)
        reply = await self._table.reset(self.session, seed=seed, item_id=item_id, split=split, index=index)
        self._episode_id = episode_id if isinstance(episode_id, str) else None
        before = [{"role": "system", "content": reply["system_prompt"]}] if reply["system_prompt"] else []
        for user, assistant in reply["preamble"]:
            before += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        return _observation(reply, before=before)

    async def step_async(  # type: ignore[override]
        self, action: TextAction, timeout_s: float | None = None, **others: Any
    ) -> TextObservation:
        """Carry out an action; `timeout_s` is the server's own."""
        if self.session is None:
            raise ServeError("A step comes after a reset, on the same WebSocket; got a step before any.")
        if action.metadata == EXPERT:
            text = await self._table.expert_action(self.session)
            return TextObservation(text=text, messages=[{"role": "assistant", "content": text}])
        return _observation(await self._table.step(self.session, action.text))

    def reset(self, *args: Any, **kwargs: Any) -> TextObservation:
        raise NotImplementedError("reset_async")

    def step(self, *args: Any, **kwargs: Any) -> TextObservation:
        raise NotImplementedError("step_async")

    @property
    def state(self) -> TextState:
        session = self.session
        if session is None or session.reply is None:
            return TextState()
        item_id = session.reply["info"].get("item_id")
        return TextState(episode_id=self._episode_id, step_count=session.num_steps, item_id=item_id)

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name=self._catalog.name, description=self._catalog.description, version=package_version(), author="rllm_gym"
        )

    def close(self) -> None:
        if self.session is not None:
            self._table.close_session(self.session)

    # The task routes.

    def list_splits(self) -> list[dict[str, str]]:
        return [{"name": name, "type": SPLIT_TYPES.get(name, "validation")} for name in self._catalog.splits]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def num_tasks(self, split: str) -> int:
        return len(self._catalog.items(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return _task(split, index, self._catalog.item(split, index))

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        items = self._catalog.items(split)
        return [_task(split, index, items[index]) for index in range(len(items))[start:stop]]


def _task(split: str, index: int, item_id: str) -> dict[str, Any]:
    return {"id": item_id, "split": split, "index": index}


def _observation(reply: dict[str, Any], before: Any = ()) -> TextObservation:
    ends = {"terminated": reply["terminated"], "truncated": reply["truncated"]}
    return TextObservation(
        text=reply["text"],
        messages=[*before, {"role": "user", "content": reply["text"]}],
        reward=reply["reward"],
        done=reply["terminated"] or reply["truncated"],
        metadata={**reply["info"], **ends},
    )


class _Server(HTTPEnvServer):
    """OpenEnv's server, whose sessions count in the table from their connection on."""

    def __init__(self, table: SessionTable, name: str) -> None:
        super().__init__(
            functools.partial(TextEnvironment, table, name),
            TextAction,
            TextObservation,
            concurrency_config=ConcurrencyConfig(
                max_concurrent_envs=table.max_sessions, session_timeout=table.session_ttl_s
            ),
            env_name=name,
            state_cls=TextState,
        )
        self._table = table

    async def _create_session(self) -> tuple[str, Environment]:
        try:
            session = self._table.open(self.env_name)
        except FullError as error:
            raise SessionCapacityError(
                self._table.num_sessions, max_sessions=self._table.max_sessions, message=str(error)
            ) from error
        try:
            session_id, environment = await super()._create_session()
        except BaseException:
            self._table.close_session(session)
            raise
        environment.session = session
        return session_id, environment


def openenv_app(table: SessionTable, name: str) -> FastAPI:
    """Return the application of one environment."""
    app = FastAPI(title=f"{name} (OpenEnv)", description=table.catalogs[name].description, version="1.0.0")
    _Server(table, name).register_routes(app, mode=ServerMode.SIMULATION)
    return app
