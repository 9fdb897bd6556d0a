"""AgentGym's protocol, with the exact shapes that each of its environments has there.

Source: Xi et al. 2024, arXiv:2406.04151; github.com/WooooDyy/AgentGym at 3ef9235d23e6, `agentenv-*/*/server.py`.

Differs from AgentGym: an error has an HTTP status (404 for an unknown session) and {"error": ...}, where AgentGym
answers 200 with {"error": ...} or 500; actions after the end are answered; /reset takes a `seed`, too. This package's
clients send `rllm_gym: true` and get answers of one form for all environments, with `info`; for them are /tasks, with
the item ids by split, and /expert_action.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from rllm_gym.envs.base import MAX_TEXT_CHARS
from rllm_gym.envs.sciworld.tasks import load_items
from rllm_gym.server.errors import UnknownError
from rllm_gym.server.sessions import Catalog, Session, SessionTable

Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Seed = Annotated[int, Field(ge=0)]
# AgentGym seeds every reset of TextCraft with it, so that a task reads alike each time (environment.py).
SEED = 42
_SITE = re.compile("shopping_admin|shopping|reddit|gitlab|map|wikipedia")
HELLO = {"textcraft": "TextCraft", "babyai": "BabyAI", "sciworld": "ScienceWorld"}


class ById(BaseModel):
    id: int


class StepById(ById):
    action: Text
    rllm_gym: bool = False


class ResetById(ById):
    data_idx: int | None = 0
    seed: Seed = SEED
    rllm_gym: bool = False


class Create(BaseModel):
    """TextCraft's; the first reset overrides all of it, there as here."""

    minecraft_dir: str | None = None
    commands: str | None = None
    goal: str | None = None


class ByIndex(BaseModel):
    env_idx: int


class StepByIndex(ByIndex):
    action: Text
    rllm_gym: bool = False


class CreateSearch(BaseModel):
    id: int


class ResetSearch(ByIndex):
    id: int | None = None
    seed: Seed = SEED
    rllm_gym: bool = False


class ResetWeb(ByIndex):
    idx: int
    seed: Seed | None = SEED
    rllm_gym: bool = False


class Expert(BaseModel):
    """A session, by the key that its environment names it by."""

    id: int | None = None
    env_idx: int | None = None


def agentgym_app(table: SessionTable, name: str) -> FastAPI:
    """Return the application of one environment.

    Those that AgentGym does not have get the shapes of its TextCraft.
    """
    catalog = table.catalogs[name]
    app = FastAPI(title=f"{name} (AgentGym)", description=catalog.description, version="1.0.0")
    {"searchqa": _add_search, "webarena": _add_web}.get(catalog.kind, _add_text)(app, table, catalog)
    _add_own(app, table, catalog)
    return app


def _item(catalog: Catalog, index: int) -> str:
    """Return the item with AgentGym's number, which counts all items."""
    items = catalog.splits.get("all", [])
    if catalog.kind == "textcraft" and items:
        index %= len(items)  # as there
    if f"{catalog.kind}_{index}" in catalog.known:
        return f"{catalog.kind}_{index}"
    if 0 <= index < len(items) and not items[index].endswith(f"_{index}") and not items[0][-1].isdigit():
        return items[index]  # named, not numbered
    raise UnknownError(f"{catalog.name}: no item has the number {str(index)[:20]}.")


async def _reset(table: SessionTable, session: Session, index: int, seed: int | None) -> dict[str, Any]:
    catalog = table.catalogs[session.environment]
    # Without item ids the number is the seed, which alone says what is played.
    item_id = _item(catalog, index) if catalog.splits else None
    return await table.reset(session, seed=seed if item_id is not None else abs(index), item_id=item_id)


def _is_over(reply: dict[str, Any]) -> bool:
    return reply["terminated"] or reply["truncated"]


def _add_text(app: FastAPI, table: SessionTable, catalog: Catalog) -> None:
    """TextCraft, BabyAI, SciWorld."""
    kind = catalog.kind

    def scores(session: Session, reward: float | None) -> dict[str, Any]:
        """Return `reward` and `score` as each environment has them: TextCraft no score, SciWorld both in points."""
        if kind == "sciworld":
            score = (session.reply or {})["info"].get("score", 0)
            return {"reward": round(100 * (reward or 0.0)), "score": score}
        if kind == "babyai":
            return {"reward": reward or 0.0, "score": session.score}
        return {"reward": reward or 0.0}

    def opening(session: Session, reply: dict[str, Any]) -> dict[str, Any]:
        text, payload = reply["text"], {"done": False, **scores(session, None)}
        if kind in ("babyai", "sciworld"):
            payload["deleted"] = False
        if kind == "sciworld":
            task, variation = load_items()[int(reply["info"]["item_id"].rpartition("_")[2])]
            description, _, text = text.partition("\n")
            payload |= {"task_name": task.name, "var_num": variation, "task_description": description}
        return {"observation": text, **payload}

    def last(session_id: int) -> Session:
        session = table.get(session_id, catalog.name)
        if session.reply is None:
            raise UnknownError(f"{catalog.name}: nothing has been observed before a reset. Reset it.")
        return session

    def detail(session: Session) -> dict[str, Any]:
        reply = session.reply or {}
        payload = {"observation": reply["text"], "done": _is_over(reply), **scores(session, reply["reward"])}
        return {**payload, "deleted": False}

    @app.get("/")
    def hello() -> str:
        return f"This is environment {HELLO.get(kind, catalog.name)}."

    @app.post("/create")
    async def create(body: Create | None = None) -> dict[str, Any]:
        session = table.open(catalog.name)
        if kind in ("babyai", "sciworld"):
            return {"id": session.id}
        try:
            reply = await _reset(table, session, session.id % max(1, len(catalog.splits.get("all", ()))), SEED)
        except BaseException:
            table.close_session(session)
            raise
        return {"id": session.id, **opening(session, reply)}

    @app.post("/step")
    async def step(body: StepById) -> dict[str, Any]:
        session = table.get(body.id, catalog.name)
        reply = await table.step(session, body.action)
        if body.rllm_gym:
            return reply
        return {"observation": reply["text"], "done": _is_over(reply), **scores(session, reply["reward"])}

    @app.post("/reset")
    async def reset(body: ResetById) -> dict[str, Any]:
        session = table.get(body.id, catalog.name)
        reply = await _reset(table, session, body.data_idx or 0, body.seed)
        if body.rllm_gym:
            return reply
        payload = opening(session, reply)
        return {"id": session.id, **payload} if kind not in ("babyai", "sciworld") else payload

    @app.get("/observation")
    async def observation(id: int) -> Any:
        session = last(id)
        return detail(session) if kind == "babyai" else detail(session)["observation"]

    @app.get("/detail")
    async def details(id: int) -> dict[str, Any]:
        return detail(last(id))

    @app.post("/close")
    async def close(body: ById) -> bool:
        return _close(table, catalog, body.id)

    if kind == "textcraft":

        @app.get("/goal")
        async def goal(id: int) -> str:
            return "minecraft:" + _task(last(id))[1].replace(" ", "_")

        @app.get("/commands")
        async def commands(id: int) -> str:
            return _task(last(id))[0]

    if kind == "sciworld":

        @app.get("/action_hint")
        async def action_hint(id: int) -> dict[str, Any]:
            actions, objects = await table.ask(last(id), "hints")
            return {"possible_actions": actions, "possible_objects": objects}

        @app.get("/goals")
        async def goals(id: int) -> dict[str, str]:
            return {"goals": await table.ask(last(id), "goals")}


def _add_search(app: FastAPI, table: SessionTable, catalog: Catalog) -> None:
    """SearchQA, whose observation holds the instruction, too."""

    def text_of(session: Session) -> str:
        if session.reply is None:
            raise UnknownError(f"{catalog.name}: nothing has been observed before a reset. Reset it.")
        return f"{session.reply['system_prompt']}\n\n {session.opening}".lstrip("\n ")

    @app.get("/")
    def hello() -> str:
        return "ok"

    @app.post("/create")
    async def create(body: CreateSearch) -> int:
        session = table.open(catalog.name)
        try:
            await _reset(table, session, body.id, SEED)
        except BaseException:
            table.close_session(session)
            raise
        return session.id

    @app.post("/step")
    async def step(body: StepByIndex) -> dict[str, Any]:
        reply = await table.step(table.get(body.env_idx, catalog.name), body.action)
        if body.rllm_gym:
            return reply
        return {"observation": reply["text"], "reward": reply["reward"], "done": _is_over(reply), "info": None}

    @app.get("/observation")
    async def observation(env_idx: int) -> str:
        return text_of(table.get(env_idx, catalog.name))

    @app.post("/reset")
    async def reset(body: ResetSearch) -> str | dict[str, Any]:
        session = table.get(body.env_idx, catalog.name)
        reply = await _reset(table, session, body.id or 0, body.seed)
        return reply if body.rllm_gym else text_of(session)

    @app.post("/close")
    async def close(body: ByIndex) -> bool:
        return _close(table, catalog, body.env_idx)


def _add_web(app: FastAPI, table: SessionTable, catalog: Catalog) -> None:
    """WebArena."""

    @app.get("/")
    def hello() -> str:
        return "ok"

    @app.post("/create")
    async def create() -> dict[str, int]:
        return {"env_idx": table.open(catalog.name).id}

    @app.post("/step")
    async def step(body: StepByIndex) -> dict[str, Any]:
        reply = await table.step(table.get(body.env_idx, catalog.name), body.action)
        if body.rllm_gym:
            return reply
        ends = {"terminated": reply["terminated"], "truncated": reply["truncated"]}
        return {"observation": reply["text"], "reward": reply["reward"], **ends, "info": reply["info"]}

    @app.get("/observation")
    async def observation(env_idx: int) -> str:
        session = table.get(env_idx, catalog.name)
        if session.reply is None:
            raise UnknownError(f"{catalog.name}: nothing has been observed before a reset. Reset it.")
        return session.reply["text"]

    @app.post("/reset")
    async def reset(body: ResetWeb) -> dict[str, Any]:
        session = table.get(body.env_idx, catalog.name)
        reply = await _reset(table, session, body.idx, body.seed)
        if body.rllm_gym:
            return reply
        intent = reply["text"].partition("\n")[0].removeprefix("OBJECTIVE: ")
        return {"observation": reply["text"], "sites": _SITE.findall(reply["info"]["category"]), "object": intent}

    @app.post("/close")
    async def close(body: ByIndex) -> dict[str, str]:
        _close(table, catalog, body.env_idx)
        return {"closed": "closed"}


def _add_own(app: FastAPI, table: SessionTable, catalog: Catalog) -> None:
    """Add what AgentGym's protocol lacks, for this package's clients."""

    @app.get("/tasks")
    def tasks() -> dict[str, list[str]]:
        return catalog.splits

    @app.post("/expert_action")
    async def expert_action(body: Expert) -> dict[str, str | None]:
        if not catalog.has_expert:
            return {"text": None}
        number = body.id if body.id is not None else body.env_idx
        return {"text": await table.expert_action(table.get(-1 if number is None else number, catalog.name))}


def _task(session: Session) -> tuple[str, str]:
    """Return TextCraft's commands, and the name of its goal."""
    commands, _, goal = session.opening.removeprefix("Crafting commands:\n").partition("\n\nGoal: craft ")
    return commands, goal.removesuffix(".")


def _close(table: SessionTable, catalog: Catalog, session_id: int) -> bool:
    try:
        table.close_session(table.get(session_id, catalog.name))
    except UnknownError:
        return False
    return True
