"""Sessions and workers: what is slow, stuck, broken, idle or too much troubles its own session and nobody else's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import signal
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import requests

from rllm_gym.server.errors import FullError, TimedOutError, UnknownError
from rllm_gym.server.sessions import SessionTable
from tests.needs import skip_without
from tests.serving import serving

ODD = ("--env", "tests.server.odd_env:odd/Odd-v0", "--protocol", "agentgym")


@pytest.fixture(scope="module")
def odd() -> Iterator[Any]:
    """A server of one worker, which tests may kill, and no more."""
    with serving(*ODD, "--workers", "1") as served:
        yield served


class Client:
    """AgentGym's requests, plainly."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = requests.Session()
        created = self._http.post(f"{url}/create", json={}, timeout=30)
        self.created = created
        self.id = created.json().get("id")

    def post(self, path: str, **body):
        return self._http.post(f"{self._url}/{path}", json={"id": self.id, **body}, timeout=30)

    def step(self, action: str):
        return self.post("step", action=action)


def test_a_slow_environment_delays_no_other_and_a_stuck_one_is_killed_alone():
    with serving(*ODD, "--workers", "2", "--timeout", "2") as served:
        stuck, beside, other = (Client(served.url) for _ in range(3))  # the third is in the first's worker
        workers = children(served.process.pid)
        assert stuck.post("reset", data_idx=1).json()["observation"] == "item 1"
        with concurrent.futures.ThreadPoolExecutor() as pool:
            hanging = pool.submit(stuck.step, "sleep 60")
            slowest_s = 0.0
            for _ in range(20):
                for client in (beside, other):
                    begun_s = time.perf_counter()
                    assert client.step("hello").json()["observation"] == "did hello"
                    slowest_s = max(slowest_s, time.perf_counter() - begun_s)
            assert slowest_s < 0.5
            answer = hanging.result()
        assert answer.status_code == 504
        assert "within 2 s" in answer.json()["error"]
        assert stuck.step("hello").status_code == 404  # its environment is gone
        assert beside.step("hello").status_code == 200
        deadline_s = time.perf_counter() + 20
        again = Client(served.url)
        while again.created.status_code != 200:  # the new worker may still be starting
            assert time.perf_counter() < deadline_s
            again = Client(served.url)
        assert again.step("hello").json()["observation"] == "did hello"
        while sum(is_alive(worker) for worker in workers) != 1:  # one that is killed ends when the system comes to it
            assert time.perf_counter() < deadline_s
            time.sleep(0.05)


class SlowStarter:
    """A worker that answers only after some time."""

    def __init__(self, start_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.started, self.died, self.num_sessions = loop.create_future(), loop.create_future(), 0
        loop.call_later(start_s, self.started.set_result, None)

    async def call(self, method: str, *args: object) -> list[object]:
        facts = {"kind": "odd", "description": "", "system_prompt": "", "split": None, "has_expert": False}
        return ["ok", {**facts, "splits": {}} if method == "describe" else {"text": ""}]

    def kill(self) -> None: ...

    async def close(self) -> None: ...


def test_the_first_sessions_are_spread_over_all_workers_also_where_one_starts_late():
    async def play() -> list[int]:
        times_s = iter([0.0, 0.2])
        table = SessionTable(
            {"odd": {}},
            lambda environments: SlowStarter(next(times_s)),
            num_workers=2,
            max_sessions=4,
            session_ttl_s=60,
            timeout_s=2,
        )
        await table.start()
        for _ in range(2):
            await table.reset(table.open("odd"))
        numbers = [worker.num_sessions for worker in table.workers]
        await table.close()
        return numbers

    assert asyncio.run(play()) == [1, 1]


class SlowToDie(SlowStarter):
    """A worker that is stuck in every step, and lives on for a moment when it is killed."""

    def __init__(self) -> None:
        super().__init__(0.0)

    async def call(self, method: str, *args: object) -> list[object]:
        if method == "step":
            await asyncio.sleep(60)
        return await super().call(method, *args)

    def kill(self) -> None:
        asyncio.get_running_loop().call_later(0.3, self.died.set_result, None)


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_reset_waits_for_the_worker_that_comes_after_the_only_one(is_ending):
    async def play() -> dict[str, object]:
        table = SessionTable(
            {"odd": {}}, lambda _: SlowToDie(), num_workers=1, max_sessions=4, session_ttl_s=60, timeout_s=0.1
        )
        await table.start()
        stuck, other = table.open("odd"), table.open("odd")
        await table.reset(stuck)
        with pytest.raises(TimedOutError, match="must return within"):
            await table.step(stuck, "hello")
        assert not table.workers
        resetting = asyncio.create_task(table.reset(other))
        await asyncio.sleep(0.1)
        if is_ending:
            await table.drain(1.0)
        try:
            return await resetting
        finally:
            await table.close()

    if is_ending:
        with pytest.raises(FullError, match="The server is ending"):
            asyncio.run(play())
    else:
        assert asyncio.run(play()) == {"text": ""}


def test_a_python_loop_does_not_keep_other_sessions_of_its_worker_waiting(odd):
    busy, other = Client(odd.url), Client(odd.url)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        spinning = pool.submit(busy.step, "spin 1.5")
        times_s = []
        while not spinning.done():
            begun_s = time.perf_counter()
            assert other.step("hello").status_code == 200
            times_s.append(time.perf_counter() - begun_s)
        assert spinning.result().status_code == 200
    assert len(times_s) > 10
    assert sorted(times_s)[len(times_s) // 2] < 0.1


def test_an_environment_that_raises_fails_its_episode_without_a_word_of_the_servers_files(odd):
    client = Client(odd.url)
    for action in ("raise", "exit", "nan"):
        answer = client.step(action)
        assert answer.status_code == 500
        assert "secret" not in answer.text and "/" not in answer.json()["error"]
        assert client.step("hello").status_code == 409  # nothing is played on
        assert client.post("reset", data_idx=0).status_code == 200
    assert client.step("surrogate").json()["observation"] == "half ? a character"
    assert client.step("hello").json() == {"observation": "did hello", "done": False, "reward": 0.0}


def test_a_killed_worker_comes_back(odd):
    client = Client(odd.url)
    (worker,) = children(odd.process.pid)
    os.kill(worker, signal.SIGKILL)
    assert client.step("hello").status_code in (404, 504)
    deadline_s = time.perf_counter() + 20
    while (client := Client(odd.url)).created.status_code != 200:
        assert client.created.status_code in (503, 504)
        assert time.perf_counter() < deadline_s
    assert client.step("hello").status_code == 200
    assert client.step("die").status_code == 504
    assert children(odd.process.pid) != [worker]


def test_what_a_killed_worker_leaves_goes_with_the_server(tmp_path):
    with serving(*ODD, "--workers", "1", env={"TMPDIR": str(tmp_path)}) as served:
        client = Client(served.url)
        assert client.step("litter").status_code == 200
        assert client.step("die").status_code == 504
        assert list(tmp_path.glob("**/tmp*"))
    assert not list(tmp_path.iterdir())


def test_a_full_server_says_when_to_come_back_and_closed_sessions_are_unknown():
    with serving(*ODD, "--workers", "1", "--max-sessions", "2") as served:
        first, _ = Client(served.url), Client(served.url)
        third = Client(served.url)
        assert third.created.status_code == 503
        assert int(third.created.headers["retry-after"]) > 0
        assert first.post("close").json() is True
        assert first.post("close").json() is False
        answer = first.step("hello")
        assert answer.status_code == 404 and "idle" in answer.json()["error"]
        assert Client(served.url).created.status_code == 200


def test_a_session_that_nobody_uses_is_closed_and_leaves_its_place():
    async def play() -> None:
        seconds = [0.0]
        table = SessionTable(
            {"odd": {}},
            lambda _: SlowStarter(0.0),
            num_workers=1,
            max_sessions=2,
            session_ttl_s=0.04,
            timeout_s=2,
            clock=lambda: seconds[0],
        )
        await table.start()
        idle, used = table.open("odd"), table.open("odd")
        with pytest.raises(FullError):
            table.open("odd")
        await table.reset(idle)
        seconds[0] = 0.03
        await table.reset(used)
        seconds[0] = 0.05
        async with asyncio.timeout(20):
            while table.num_sessions == 2:  # it looks for them by itself, whatever the clock says
                await asyncio.sleep(0.01)
        with pytest.raises(UnknownError, match="idle for too long"):
            await table.reset(idle)
        assert await table.reset(used) == {"text": ""}
        table.open("odd")
        await table.close()

    asyncio.run(play())


def test_sigterm_waits_for_the_calls_under_way_and_leaves_no_process():
    with serving(*ODD, "--workers", "2", "--drain", "5") as served:
        clients = [Client(served.url) for _ in range(2)]
        workers = children(served.process.pid)
        assert len(workers) == 2
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = [pool.submit(client.step, "sleep 1") for client in clients]
            time.sleep(0.3)
            served.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            refused = requests.post(f"{served.url}/create", json={}, timeout=10)
            assert refused.status_code == 503
            assert [answer.result().json()["observation"] for answer in answers] == ["did sleep 1"] * 2
        assert served.process.wait(15) == 0
        assert not any(is_alive(worker) for worker in workers)


def test_sigterm_ends_also_what_hangs_within_its_bound():
    with serving(*ODD, "--workers", "1", "--drain", "1") as served:
        client = Client(served.url)
        workers = children(served.process.pid)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            hanging = pool.submit(client.step, "sleep 100")
            time.sleep(0.3)
            begun_s = time.perf_counter()
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(30) == 0
            assert time.perf_counter() - begun_s < 20
            assert hanging.exception() is not None or hanging.result().status_code >= 500
        assert not any(is_alive(worker) for worker in workers)


def test_a_killed_server_takes_its_workers_along():
    with serving(*ODD, "--workers", "2") as served:
        Client(served.url)
        workers = children(served.process.pid)
        served.process.kill()
        deadline_s = time.perf_counter() + 10
        while any(is_alive(worker) for worker in workers):
            assert time.perf_counter() < deadline_s
            time.sleep(0.05)
        served.process.wait()
        served.process.returncode = 0  # what `serving` asks for at the end


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_sessions_leave_memory_flat():
    skip_without("openenv")
    with serving("--env", "TextCraft-v0", "--workers", "2") as served:
        from websockets.sync.client import connect

        address = served.url.removeprefix("http://")

        def cycles(number: int) -> None:
            http = HTTPConnection(address, timeout=30)  # requests would take most of the time

            def post(path: str, **body: int) -> Any:
                http.request("POST", f"/agentgym/{path}", json.dumps(body), {"Content-Type": "application/json"})
                answer = http.getresponse()
                assert answer.status == 200
                return json.loads(answer.read())

            for index in range(number):
                session = post("create")["id"]
                assert post("reset", id=session, data_idx=index)["observation"]
                assert post("close", id=session) is True
            http.close()

        def connections(number: int) -> None:
            for _ in range(number):
                with connect(f"ws://{address}/ws") as socket:
                    socket.send(json.dumps({"type": "reset", "data": {"seed": 0}}))
                    assert json.loads(socket.recv())["data"]["observation"]["text"]

        cycles(1_000)
        connections(100)
        before = memory_kb(served.process.pid)
        cycles(9_000)
        connections(1_000)
        growth = memory_kb(served.process.pid) - before
        print(f"10,000 sessions: {growth / 10_000:.3f} kB each")
        assert growth < 10_000


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory_kb(pid: int) -> int:
    def own(pid: int) -> int:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

    return own(pid) + sum(own(child) for child in children(pid))
