"""The server under load: many TextCraft sessions at once, in both protocols, beside a process and a connection each.

    python -m benchmarks.serving_load                     # 1,000 sessions, 100,000 requests, then 64 clients
    python -m benchmarks.serving_load --requests 10000

Prints one JSON line per measurement: requests a second, median and 99th percentile in ms, errors. `clients` ask one
request after the other; with `think_s` they wait in between, as a client whose model writes does. `pattern` is
AgentGym's, one process for all environments and a new connection for every request: on its own server where
AGENTGYM_SRC is a checkout of it, else on this one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiohttp
import websockets

from tools.record_agentgym import agentgyms_textcraft

Step = Callable[[], Awaitable[None]]
ACTION = "inventory"  # AgentGym's own server takes no thought


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "rllm_gym.cli.main", "rllm-gym", "serve", "--env", "TextCraft-v0", "--port", "0"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextlib.asynccontextmanager
async def agentgym(url: str, http: aiohttp.ClientSession) -> AsyncIterator[Step]:
    async def post(path: str, **body: object) -> dict:
        async with http.post(f"{url}/{path}", json=body) as response:
            response.raise_for_status()
            return await response.json()

    session = (await post("create"))["id"]

    async def step() -> None:
        assert "Inventory" in (await post("step", id=session, action=ACTION))["observation"]

    yield step
    await post("close", id=session)


@contextlib.asynccontextmanager
async def openenv(url: str, http: aiohttp.ClientSession) -> AsyncIterator[Step]:
    async with websockets.connect(f"{url.replace('http', 'ws')}/ws", open_timeout=60, ping_interval=None) as socket:

        async def ask(kind: str, data: dict) -> dict:
            await socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(await socket.recv())
            assert answer["type"] == "observation", answer
            return answer["data"]

        await ask("reset", {"seed": 0})

        async def step() -> None:
            assert "Inventory" in (await ask("step", {"text": ACTION}))["observation"]["text"]

        yield step


async def measure(name: str, url: str, opener: Callable, *, clients: int, requests: int, think_s: float = 0.0) -> dict:
    times_s: list[float] = []
    errors = 0
    limit = aiohttp.TCPConnector(limit=0, force_close=name.startswith("pattern"))
    async with aiohttp.ClientSession(connector=limit) as http, contextlib.AsyncExitStack() as stack:
        steps = []
        for first in range(0, clients, 50):  # not all connections in one instant
            opened = (stack.enter_async_context(opener(url, http)) for _ in range(first, min(first + 50, clients)))
            steps += await asyncio.gather(*opened)

        async def play(step: Step) -> None:
            nonlocal errors
            for _ in range(requests // clients):
                if think_s:
                    await asyncio.sleep(random.expovariate(1 / think_s))
                begun_s = time.perf_counter()
                try:
                    await step()
                except (aiohttp.ClientError, AssertionError, OSError, websockets.WebSocketException):
                    errors += 1
                times_s.append(time.perf_counter() - begun_s)

        begun_s = time.perf_counter()
        await asyncio.gather(*map(play, steps))
        seconds = time.perf_counter() - begun_s
    times_s.sort()
    return {
        "what": name,
        "clients": clients,
        "think_s": think_s,
        "requests": len(times_s),
        "errors": errors,
        "per_s": round(len(times_s) / seconds),
        "median_ms": round(1000 * times_s[len(times_s) // 2], 2),
        "p99_ms": round(1000 * times_s[int(0.99 * len(times_s))], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--only-pattern", action="store_true")
    options = parser.parse_args()
    few = options.requests // 10
    for name, opener in (("agentgym", agentgym), ("openenv", openenv)) if not options.only_pattern else ():
        with server("--protocol", name) as url:
            runs = (
                {"clients": options.sessions, "requests": options.requests},
                {"clients": 64, "requests": few},
                {"clients": 64, "requests": few, "think_s": 0.2},
            )
            for run in runs:
                print(json.dumps(asyncio.run(measure(name, url, opener, **run))), flush=True)
    own = agentgyms_textcraft() if "AGENTGYM_SRC" in os.environ else server("--workers", "1", "--protocol", "agentgym")
    with own as url:
        run = {"clients": 64, "requests": few}
        print(json.dumps(asyncio.run(measure("pattern", url, agentgym, **run))), flush=True)


if __name__ == "__main__":
    main()
