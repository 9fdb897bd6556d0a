"""Environments: text steps/s and resets/s, alone and with 8 workers, memory, and the ratio to the same behind HTTP.

What is timed is the replay of an expert's episodes (10 items, at most 30 turns); steps and resets are timed apart, and
planning is not timed. Workers are processes, but threads where environments share a process of their own (SciWorld), as
in training. Rates of workers are summed.

The baseline is the same environment in a server of AgentGym's make (FastAPI, uvicorn; Xi et al. 2024,
arXiv:2406.04151): POST /create once, POST /reset and GET /observation for an episode, POST /step for a turn, each in a
connection of its own, as its clients send them. The ratio is steps/s of one environment here to one client of the
server.

Memory is what an environment adds after the first (33 are made and stepped, with the processes that they start), and
what the first takes together with Python and its libraries.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import gymnasium
from report import mean_and_spread, print_row

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.memory import process_tree_bytes

NUM_EPISODES, MAX_TURNS, NUM_WORKERS, NUM_RESIDENT = 10, 30, 8, 33
OPTIONS: dict[str, dict[str, Any]] = {"SciWorld": {"task_set": "agentgym"}}  # genetics takes seconds to plan
SHARED = {"SciWorld"}  # its environments share one Java process, which would need 1.3 GB for each worker

Script = list[tuple[str, list[str]]]  # (item id, actions) of each episode
spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Rates:
    """Of one worker, or summed."""

    steps_per_s: float
    resets_per_s: float

    def __add__(self, other: Rates) -> Rates:
        return Rates(self.steps_per_s + other.steps_per_s, self.resets_per_s + other.resets_per_s)


def make(name: str) -> gymnasium.Env[str, str]:
    return gymnasium.make(f"rllm_gym/{name}-v0", obs_type="text", **OPTIONS.get(name, {}))


def record(name: str, seed: int) -> Script:
    """Return what the expert does, to be replayed."""
    env: Any = make(name)
    script = []
    for k in range(NUM_EPISODES):
        _, info = env.reset(seed=1000 * seed + k)
        actions: list[str] = []
        is_over = False
        while not is_over and len(actions) < MAX_TURNS:
            actions.append(env.unwrapped.expert_action())
            is_over = env.step(actions[-1])[2]
        script.append((info["item_id"], actions))
    env.close()
    return script


def replay(env: Any, script: Script, seconds: float) -> Rates:
    """Play a script over and over, once at least."""
    step_s = reset_s = 0.0
    num_steps = 0
    for num_resets, (item_id, actions) in enumerate(itertools.cycle(script), 1):
        start = time.perf_counter()
        env.reset(options={"item_id": item_id})
        reset_s += time.perf_counter() - start
        for action in actions:
            start = time.perf_counter()
            env.step(action)
            step_s += time.perf_counter() - start
        num_steps += len(actions)
        if num_resets >= len(script) and step_s + reset_s >= seconds:
            return Rates(num_steps / step_s, num_resets / reset_s)
    raise AssertionError("a script has no end")


class Client:
    """An environment behind the server, asked as AgentGym's clients ask."""

    def __init__(self, url: str) -> None:
        import requests

        self._requests, self._url = requests, url
        self._id = requests.post(f"{url}/create", timeout=300).json()["id"]

    def reset(self, options: dict[str, Any]) -> str:
        self._post("reset", {"data_idx": int(options["item_id"].rpartition("_")[2])})
        response = self._requests.get(f"{self._url}/observation?id={self._id}", timeout=300)
        response.raise_for_status()
        return response.json()

    def step(self, action: str) -> dict[str, Any]:
        return self._post("step", {"action": action})

    def close(self) -> None:
        self._post("close", {})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = self._requests.post(f"{self._url}/{path}", json={"id": self._id, **body}, timeout=300)
        response.raise_for_status()
        return response.json()


def serve(name: str, listener: socket.socket) -> None:
    """Run the server; in a process of its own."""
    import uvicorn
    from fastapi import FastAPI

    app, envs, observations = FastAPI(), {}, {}
    ids = itertools.count()

    @app.post("/create")
    def create() -> dict:
        number = next(ids)
        envs[number] = make(name)
        return {"id": number}

    @app.post("/reset")
    def reset(body: dict) -> dict:
        observations[body["id"]], _ = envs[body["id"]].reset(options={"item_id": body["data_idx"]})
        return {"observation": observations[body["id"]], "reward": 0.0, "done": False}

    @app.get("/observation")
    def observation(id: int) -> str:
        return observations[id]

    @app.post("/step")
    def step(body: dict) -> dict:
        observations[body["id"]], reward, done, _, _ = envs[body["id"]].step(body["action"])
        return {"observation": observations[body["id"]], "reward": reward, "done": done}

    @app.post("/close")
    def close(body: dict) -> bool:
        envs.pop(body["id"]).close()
        return True

    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


@contextlib.contextmanager
def server(name: str) -> Iterator[str]:
    """Give the url of a server, which is there for the block."""
    import requests

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = spawn.Process(target=serve, args=(name, listener), daemon=True)
        process.start()
        try:
            deadline = time.monotonic() + 120
            while True:
                with contextlib.suppress(requests.ConnectionError):
                    if requests.get(f"{url}/openapi.json", timeout=10).ok:
                        break
                if time.monotonic() > deadline or not process.is_alive():
                    raise RuntimeError(f"the server of {name} did not start")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.join()


def work(name: str, url: str | None, script: Script, seconds: float, start: Any) -> Rates:
    """One worker: on an environment of its own, here or behind a server."""
    env: Any = Client(url) if url else make(name)
    try:
        env.reset(options={"item_id": script[0][0]})  # what only the first does: imports, a Java process
        start.wait()
        return replay(env, script, seconds)
    finally:
        env.close()


def measure(name: str, url: str | None, script: Script, seconds: float, num_workers: int) -> Rates:
    """Return the summed rates of some workers, which begin together."""
    if name in SHARED:
        start: Any = threading.Barrier(num_workers)
        pool: Executor = ThreadPoolExecutor(num_workers)
    else:
        manager = multiprocessing.Manager()
        start, pool = manager.Barrier(num_workers), ProcessPoolExecutor(num_workers, mp_context=spawn)
    with pool:
        jobs = [pool.submit(work, name, url, script, seconds, start) for _ in range(num_workers)]
        rates = [job.result() for job in jobs]
    if name not in SHARED:
        manager.shutdown()
    return sum(rates[1:], rates[0])


def resident_mb(name: str, script: Script) -> tuple[float, float]:
    """Return what the first environment takes with all around it, and what each further one adds, in MB."""

    def used_mb() -> float:
        gc.collect()
        return process_tree_bytes() / 2**20

    envs, used = [], []
    for k in range(NUM_RESIDENT):
        item_id, actions = script[k % len(script)]
        envs.append(make(name))
        envs[-1].reset(options={"item_id": item_id})
        for action in actions[:5]:
            envs[-1].step(action)
        used.append(used_mb())
    for env in envs:
        env.close()
    return used[0], (used[-1] - used[0]) / (NUM_RESIDENT - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    environments = ["TextCraft", "BabyAI", "SciWorld", "SearchQA", "TextWorld"]
    parser.add_argument(
        "--environments", nargs="+", default=environments, help="names before -v0; default: %(default)s"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    args = parser.parse_args()
    for name in args.environments:
        scripts = {seed: record(name, seed) for seed in args.seeds}
        rates: dict[tuple[str, int], list[Rates]] = {}
        for script in scripts.values():
            with server(name) as url:
                for num_workers in (1, NUM_WORKERS):
                    for place, where in (("here", None), ("http", url)):
                        found = measure(name, where, script, args.seconds, num_workers)
                        rates.setdefault((place, num_workers), []).append(found)
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            first_mb, further_mb = pool.submit(resident_mb, name, scripts[args.seeds[0]]).result()
        steps = {key: [rate.steps_per_s for rate in found] for key, found in rates.items()}
        resets = {key: statistics.mean(rate.resets_per_s for rate in found) for key, found in rates.items()}

        def described(place: str, num_workers: int, steps: dict = steps, resets: dict = resets) -> str:
            key = (place, num_workers)
            return f"{mean_and_spread(steps[key], 0)} steps/s, {resets[key]:.0f} resets/s"

        kind = "threads" if name in SHARED else "processes"
        result = (
            f"{name}: {described('here', 1)}; {NUM_WORKERS} {kind}: {described('here', NUM_WORKERS)}; "
            f"behind HTTP: {described('http', 1)}; {NUM_WORKERS} clients: {described('http', NUM_WORKERS)}; "
            f"{further_mb:.2f} MB an environment, {first_mb:.0f} MB with the first"
        )
        ratios = [here / http for here, http in zip(steps["here", 1], steps["http", 1], strict=True)]
        print_row(args.seeds, result, ratios)


if __name__ == "__main__":
    main()
