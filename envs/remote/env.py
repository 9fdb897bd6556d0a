"""RemoteEnv: what the environments that are played over HTTP share, whatever the protocol."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rllm_gym.bearer_token import token_for
from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.envs.items import SPLITS, ItemIds
from rllm_gym.envs.remote.urls import check_urls, count, least_used
from rllm_gym.envs.remote.wire import package_version
from rllm_gym.errors import ConfigError, EnvError, MachineError, nearest

OPEN_TIMEOUT_S = 60.0  # for a session, where all servers are full or are being started
FIRST_WAIT_S, MAX_WAIT_S = 0.2, 5.0
TASKS_KEPT_S = 60  # how long a server's list of tasks is not asked for again


@dataclass(frozen=True)
class Reply:
    """A server's answer to a reset or a step; `info` is that of the class docstring."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str = ""
    preamble: Sequence[tuple[str, str]] = ()
    is_invalid: bool = False


class NotOpenedError(EnvError):
    """A server has no session to give, or does not answer; nothing was played, so that another may be asked."""


class RemoteSession(Protocol):
    """One session on one server. Every call is bounded and raises `EnvError` where it fails; none is sent twice."""

    url: str

    def reset(self, seed: int, item_id: str | None) -> Reply: ...

    def step(self, action: str) -> Reply: ...

    def expert_action(self) -> str: ...

    def close(self) -> None: ...


class Tasks:
    """The item ids that a server publishes, by split; none where it numbers no tasks.

    Args:
        splits: in the server's order.
    """

    def __init__(self, splits: Mapping[str, Sequence[str]]) -> None:
        self.splits = {name: tuple(ids) for name, ids in splits.items() if ids}
        every = self.splits.get("all") or [item for ids in self.splits.values() for item in ids]
        self.ids = tuple(dict.fromkeys([*every, *(item for ids in self.splits.values() for item in ids)]))
        self.numbers = {item: number for number, item in enumerate(self.ids)}
        self.by_suffix = {item.rpartition("_")[2]: number for number, item in enumerate(self.ids)}

    def indices(self, split: str) -> tuple[int, ...]:
        return tuple(self.numbers[item] for item in self.splits.get(split, ()))


class RemoteEnv(TextEnv):
    """A text environment on a server.

    A subclass reads the server's tasks and opens sessions. A session that is lost, by the server's end, its time limit
    or the connection's, raises `EnvError`, and the next reset opens another one: nothing is played on, and nothing
    that may have acted is sent again. A copy in mid-episode opens a session of its own and repeats the actions.

    A reset without a seed draws one from `np_random`, so that episodes repeat whoever has used the server before.

    Args:
        url: of the server, or of several, over which sessions are spread.
        token: bearer token that the server asks for; None reads `RLLM_GYM_TOKEN`.
        timeout_s: bounds every call.
        split: see `TextEnv`; of the splits that the server has.
        item_ids: see `TextEnv`.
        splits: see `TextEnv`.
        system_prompt: see `TextEnv`; None takes the server's.
        render_mode: see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; or an option that cannot be used.
        EnvError: no server answers, or one does not speak the protocol.
    """

    def __init__(
        self,
        *,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        timeout_s: float = 180.0,
        split: str | None = None,
        item_ids: ItemIds | None = None,
        splits: Mapping[str, ItemIds] | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._urls = check_urls(self._who, url)
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ConfigError(f"{self._who}: timeout_s must be a number above 0; got {timeout_s!r}. Correct it.")
        self._token = token if token is not None else token_for(*self._urls)
        self._timeout_s = float(timeout_s)
        self._session: RemoteSession | None = None
        self._pid = os.getpid()
        self._seed: int | None = None
        self._begun: tuple[int, str | None] | None = None  # the episode's reset; None where there is no episode
        self._turns: list[tuple[str, str]] = []  # (action, reply) of the episode
        self._info_there: Mapping[str, Any] = {}
        self._has_prompt = system_prompt is not None
        self._tasks = self._read_tasks()
        self.num_items = max(1, len(self._tasks.ids))
        own = {name: ids for name, ids in self._tasks.splits.items() if name not in SPLITS}
        if split is None and item_ids is None and "train" not in (*self._tasks.splits, *(splits or ())):
            split = next(iter(self._tasks.splits), None)
        super().__init__(
            split=split,
            item_ids=item_ids,
            splits={**own, **(splits or {})} if item_ids is None and (own or splits) else splits,
            system_prompt=system_prompt,
            render_mode=render_mode,
        )

    # What a protocol writes.

    def _read_tasks(self) -> Tasks:
        """Ask a server for its tasks."""
        raise NotImplementedError

    def _open_session(self, url: str) -> RemoteSession:
        """Open a session.

        Raises:
            NotOpenedError: another server may be asked.
        """
        raise NotImplementedError

    # What it gets.

    @property
    def item_ids(self) -> list[str] | None:  # type: ignore[override]
        """The items that a plain reset draws from; None where the server has none, and seeds tell its tasks apart."""
        return super().item_ids if self._tasks.ids else None

    @property
    def category(self) -> str:
        return str(self._info_there.get("category", ""))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def split_indices(self, split: str) -> Sequence[int]:
        if not self._tasks.ids:
            return (0,)
        if split == "all":
            return self._tasks.indices("all") or range(len(self._tasks.ids))
        return self._tasks.indices(split)

    def reset_item(self, index: int) -> str:
        seed = self._seed if self._seed is not None else int(self.np_random.integers(1 << 31))
        begun = (seed, self._tasks.ids[index] if self._tasks.ids else None)
        self._begun, self._turns = None, []
        reply = self._begin(begun)
        self._begun = begun
        self._take(reply)
        if not self._has_prompt:
            self.system_prompt = reply.system_prompt
        self.preamble = reply.preamble
        return reply.text

    def act(self, action: str) -> StepResult:
        text = action.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
        with self._lost_on_error() as session:
            reply = session.step(text)
        self._turns.append((text, reply.text))
        self._take(reply)
        return StepResult(reply.text, reply.reward, reply.terminated, reply.is_invalid, reply.truncated)

    def expert_action(self) -> str:
        """Return the next text of the server's expert.

        Raises:
            NotImplementedError: the server has none.
        """
        with self._lost_on_error() as session:
            return session.expert_action()

    def close(self) -> None:
        self._end_session()
        self._begun = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        there = {key: value for key, value in self._info_there.items() if key not in info}
        return {**there, **info}

    def _item_id(self, index: int) -> str:
        return self._tasks.ids[index] if self._tasks.ids else str(self._info_there.get("item_id") or self.name)

    def _parse_item_id(self, item_id: Any) -> int:
        tasks = self._tasks
        index = tasks.numbers.get(str(item_id), tasks.by_suffix.get(str(item_id)))
        if index is None:
            known = tasks.ids or ("",)
            hint = f"Did you mean {nearest(item_id, known)!r}?" if tasks.ids else "It numbers none: use seeds."
            raise ConfigError(f"{self._who}: an item id must be one of the server's; got {item_id!r}. {hint}")
        return index

    def _take(self, reply: Reply) -> None:
        self._info_there = dict(reply.info)
        self.is_success = bool(self._info_there.get("is_success", reply.terminated and reply.reward >= 1.0))

    def _begin(self, begun: tuple[int, str | None]) -> Reply:
        """Reset the session, or one that is opened for it; wait for one where all servers are full."""
        if self._session is not None and self._pid == os.getpid():
            with self._lost_on_error(needs_episode=False) as session:
                return session.reset(*begun)
        tenacity: Any = need("tenacity", self._who)
        retry = tenacity.Retrying(
            stop=tenacity.stop_after_delay(OPEN_TIMEOUT_S),
            wait=tenacity.wait_exponential(
                multiplier=FIRST_WAIT_S, max=MAX_WAIT_S
            ),  # no jitter: it draws from `random`
            retry=tenacity.retry_if_exception_type(NotOpenedError),
            reraise=True,
        )
        try:
            return retry(self._begin_anywhere, begun)
        except NotOpenedError as error:
            raise EnvError(f"{self._who}: no server gave a session within {OPEN_TIMEOUT_S:g} s: {error}") from error

    def _begin_anywhere(self, begun: tuple[int, str | None]) -> Reply:
        for url in least_used(self._urls):
            try:
                return self._begin_at(url, begun)
            except NotOpenedError as error:
                last = error
        raise last

    def _begin_at(self, url: str, begun: tuple[int, str | None]) -> Reply:
        session = self._open_session(url)
        try:
            reply = session.reset(*begun)
        except BaseException:
            session.close()
            raise
        self._session, self._pid = session, os.getpid()
        count(url, 1)
        return reply

    @contextlib.contextmanager
    def _lost_on_error(self, *, needs_episode: bool = True) -> Any:
        """Give the episode's session, opened again in a copy or a forked process; end it where a call fails."""
        if needs_episode and self._begun is None:
            raise EnvError(f"{self._who}: the session was lost, or there was no reset. Reset it.")
        if needs_episode and (self._session is None or self._pid != os.getpid()):
            self._session = None  # after a fork it is the parent's
            self._repeat()
        assert self._session is not None
        try:
            yield self._session
        except NotImplementedError:
            raise
        except BaseException:  # Ctrl-C, too: the answer would be taken for that of the next call
            self._begun = None
            self._end_session()
            raise

    def _repeat(self) -> None:
        assert self._begun is not None
        self._begin(self._begun)
        for action, text in self._turns:
            if self._session is None or self._session.step(action).text != text:
                raise EnvError(f"{self._who}: a copied episode must repeat; {action[:80]!r} differed. Reset it.")

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._pid == os.getpid():
            count(session.url, -1)
            session.close()


def need(package: str, who: str) -> Any:
    """Return a package of the extra `server`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MachineError(f'{who} needs {error.name or package}: pip install "rllm-gym[server]".') from error


@functools.cache
def warn_of_version(url: str, theirs: str) -> None:
    """Say once that a server has another version of this package."""
    ours = package_version()
    if theirs != ours:
        warnings.warn(f"{url} has rllm_gym {theirs}, this is {ours}; episodes may differ.", stacklevel=2)


def now_kept() -> int:
    """Return a number that is the same for `TASKS_KEPT_S`: a key of caches of what servers say."""
    return int(time.monotonic() / TASKS_KEPT_S)


def first_answer(who: str, urls: Iterable[str], ask: Any) -> Any:
    """Return the answer of the first server that is there."""
    problems = []
    for url in urls:
        try:
            return ask(url)
        except NotOpenedError as error:
            problems.append(str(error))
    raise EnvError(f"{who}: a server must answer; {'; '.join(problems)}. Start it with rllm-gym serve, or correct url.")
