"""OpenEnv's protocol, as that library's own client, validator and routes see it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import subprocess
import sys
import threading
import time

import gymnasium
import pytest
import requests

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.contract import play
from rllm_gym.server.app import Binding, serve
from rllm_gym.server.sessions import SessionTable
from tests.needs import skip_without
from tests.serving import serving

ODD = "tests.server.odd_env:odd/Odd-v0"


@pytest.fixture(scope="module")
def url():
    skip_without("openenv")
    with serving("--env", "TextCraft-v0", "--workers", "2") as served:
        yield served.url


@pytest.fixture(scope="module")
def two():
    skip_without("openenv")
    arguments = ("--env", "TextCraft-v0", "--env", ODD, "--workers", "1", "--timeout", "1")
    with serving(*arguments) as served:
        yield served.url


@pytest.mark.promise
def test_openenvs_own_client_plays_the_expert_and_gets_what_gymnasium_gives(url):
    from openenv.core import GenericEnvClient

    env = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text", split="eval")
    with GenericEnvClient(base_url=url).sync() as client:
        for seed in range(5):
            opening, *turns = play(env, seed)
            item_id = opening[1]["item_id"]
            result = client.reset(seed=seed, item_id=item_id)
            assert result.observation["text"] == opening[0]
            assert result.observation["messages"] == [
                {"role": "system", "content": env.unwrapped.system_prompt},
                {"role": "user", "content": opening[0]},
            ]
            assert (result.reward, result.done, result.metadata["item_id"]) == (None, False, item_id)
            assert client.state() == {"episode_id": None, "step_count": 0, "item_id": item_id}
            for action, text, reward, terminated, _, info in turns:
                result = client.step({"text": action})
                assert (result.observation["text"], result.reward, result.done) == (text, reward, terminated)
                assert result.observation["messages"] == [{"role": "user", "content": text}]
                assert result.metadata == {**info, "terminated": terminated, "truncated": False}
            assert result.done and result.reward == 1.0
            assert client.state()["step_count"] == len(turns)


def test_an_item_is_asked_for_by_split_and_index(url):
    from openenv.core import GenericEnvClient

    items = requests.post(f"{url}/TextCraft-v0/tasks", json={"split": "eval"}, timeout=10).json()["tasks"]
    with GenericEnvClient(base_url=url).sync() as client:
        for index in (0, 7, 99):
            assert client.reset(split="eval", index=index).metadata["item_id"] == items[index]["id"]
        assert client.reset(split="eval", seed=3).metadata["item_id"] in {item["id"] for item in items}


def test_sessions_are_apart(url):
    from openenv.core import GenericEnvClient

    async def play_many(number: int) -> list[str]:
        clients = [GenericEnvClient(base_url=url) for _ in range(number)]
        await asyncio.gather(*(client.connect() for client in clients))
        await asyncio.gather(*(client.reset(seed=n, item_id="textcraft_0") for n, client in enumerate(clients)))
        await asyncio.gather(*(client.step({"text": f"get {n + 1} acacia logs"}) for n, client in enumerate(clients)))
        results = await asyncio.gather(*(client.step({"text": "inventory"}) for client in clients))
        await asyncio.gather(*(client.close() for client in clients))
        return [result.observation["text"] for result in results]

    assert asyncio.run(play_many(50)) == [f"Inventory: [acacia logs] ({n + 1}) " for n in range(50)]


def test_the_task_routes_tell_the_splits_and_items_that_the_environment_has(url):
    splits = requests.get(f"{url}/TextCraft-v0/splits", timeout=10).json()
    assert splits == [
        {"name": "train", "type": "train"},
        {"name": "eval", "type": "test"},
        {"name": "all", "type": "validation"},
    ]

    def ask(route: str, **body):
        return requests.post(f"{url}/TextCraft-v0/{route}", json=body, timeout=10).json()

    for split in ("train", "eval", "all"):
        ids = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text", split=split).unwrapped.item_ids
        assert [task["id"] for task in ask("tasks", split=split)["tasks"]] == ids
        assert ask("num_tasks", split=split) == {"num_tasks": len(ids)}
    assert ask("task", split="eval", index=3)["task"] == {"id": ask("tasks", split="eval")["tasks"][3]["id"]} | {
        "split": "eval",
        "index": 3,
    }
    assert [task["index"] for task in ask("task_range", split="eval", start=2, stop=5)["tasks"]] == [2, 3, 4]
    assert requests.get(f"{url}/list_environments", timeout=10).json() == ["TextCraft-v0"]


@pytest.mark.slow
def test_openenv_validate_passes(url):
    command = [sys.executable, "-m", "openenv.cli", "validate", "--url", url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"})
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_schema_asks_for_one_text(url):
    schema = requests.get(f"{url}/schema", timeout=10).json()
    assert schema["action"]["required"] == ["text"]
    assert set(schema["observation"]["properties"]) == {"text", "messages", "reward", "done", "metadata"}


def test_several_environments_are_each_under_its_name(two):
    from openenv.core import GenericEnvClient

    assert requests.get(two, timeout=10).json()["environments"] == {
        "TextCraft-v0": "/TextCraft-v0/",
        "Odd-v0": "/Odd-v0/",
    }
    with GenericEnvClient(base_url=f"{two}/Odd-v0").sync() as client:
        assert client.reset(item_id="odd_2").observation["text"] == "item 2"
        assert client.step({"text": "end"}).done
    created = requests.post(f"{two}/agentgym/TextCraft-v0/create", json={}, timeout=10).json()
    assert created["observation"].startswith("Crafting commands:")
    # A session of one environment is unknown to another.
    assert requests.post(f"{two}/agentgym/Odd-v0/step", json={"id": created["id"], "action": ""}).status_code == 404


@pytest.mark.parametrize(
    ("action", "message"), [("sleep 60", "within 1 s"), ("raise", "failed in step"), ("die", "died")]
)
def test_a_failure_is_an_error_message_and_the_episode_is_over(two, action, message):
    from openenv.core import GenericEnvClient

    with GenericEnvClient(base_url=f"{two}/Odd-v0").sync() as client:
        client.reset(seed=0)
        with pytest.raises(RuntimeError, match=message) as raised:
            client.step({"text": action})
        assert "/" not in str(raised.value).replace("Odd-v0", "")
        with pytest.raises(RuntimeError):
            client.step({"text": "hello"})
    wait_for_workers(two)


class Worker:
    """A worker in this process, whose environment says one thing."""

    num_sessions = 0

    def __init__(self, environments):
        loop = asyncio.get_running_loop()
        self.started, self.died = loop.create_future(), loop.create_future()
        self.started.set_result(None)

    async def call(self, method, *args):
        if method == "describe":
            names = ("description", "system_prompt")
            facts = {"kind": "odd", "split": None, "has_expert": False, "splits": {}, **dict.fromkeys(names, "")}
            return ["ok", facts]
        said = {"text": "hello", "info": {}, "reward": 0.0, "terminated": False, "truncated": False}
        return ["ok", {**said, "system_prompt": "", "preamble": []}]

    async def close(self):
        pass


@contextlib.contextmanager
def served_here(**options):
    """Serve in a thread; yield the table, its event loop and the URL."""
    ready = queue.Queue()

    async def run():
        table = SessionTable({"odd": {}}, Worker, num_workers=1, timeout_s=20, **options)
        here = asyncio.get_running_loop(), asyncio.current_task()
        binding = Binding("127.0.0.1", 0, None, max_bytes=1 << 20, drain_s=0)
        with contextlib.suppress(asyncio.CancelledError):
            await serve(table, "openenv", binding, say=lambda line: ready.put((table, *here, line.split()[-1])))

    thread = threading.Thread(target=asyncio.run, args=[run()])
    thread.start()
    table, loop, task, url = ready.get(timeout=60)
    try:
        yield table, loop, url
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)


def test_an_idle_connection_loses_its_session():
    skip_without("openenv")
    from openenv.core import GenericEnvClient

    seconds = [0.0]
    with served_here(max_sessions=2, session_ttl_s=600.0, clock=lambda: seconds[0]) as (table, loop, url):
        with GenericEnvClient(base_url=url).sync() as idle, GenericEnvClient(base_url=url).sync() as used:
            idle.reset(seed=0)
            seconds[0] = 500.0
            used.reset(seed=0)
            seconds[0] = 700.0
            loop.call_soon_threadsafe(table.close_idle)
            with pytest.raises(RuntimeError, match="closed: idle"):
                idle.step({"text": "hello"})
            assert used.step({"text": "hello"}).observation["text"] == "hello"
        deadline_s = time.monotonic() + 20
        while table.num_sessions:  # a closed connection frees its session
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def wait_for_workers(url: str) -> None:
    for _ in range(100):
        answer = requests.post(f"{url}/agentgym/TextCraft-v0/create", json={}, timeout=10)
        if answer.status_code == 200:
            requests.post(f"{url}/agentgym/TextCraft-v0/close", json={"id": answer.json()["id"]}, timeout=10)
            return
    raise AssertionError("no worker came back")
