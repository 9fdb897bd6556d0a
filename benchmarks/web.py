"""Steps, resets and memory of 1, 4 and 16 web environments, and of BrowserGym's on the same MiniWoB pages.

A step clicks a check box or a link; environments act at once, each from a thread of its own (BrowserGym's: a process,
since its Playwright is bound to one thread). Memory is the proportional set size of the processes that were started.
CPU time is that of a step in all processes: on a busy machine it says more than the seconds on the clock.
The baseline of the ratio is BrowserGym with one environment, with its waits (0.5 s before each observation, 0.1 s at
each call to the browser) switched off.

BrowserGym pins other versions than ours; it is measured where it can be imported, so install it into a folder:
`pip install --no-deps --target /tmp/browsergym browsergym-core browsergym-miniwob lxml`, and set PYTHONPATH to that.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import multiprocessing
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import psutil
from report import print_row

from rllm_gym.envs.miniwob.tasks import html_folder
from rllm_gym.envs.web.browser import CHROMIUM_ARGS, find_chromium
from rllm_gym.memory import process_tree_bytes

TASKS = ("click-checkboxes-large", "click-option", "click-checkboxes")


class Times(NamedTuple):
    """Seconds."""

    resets: list[float]
    steps: list[float]
    cpu: list[float]  # of steps


class OurMiniWoB:
    """The click on a check box, through the text interface."""

    def __init__(self) -> None:
        self._env = gymnasium.make("rllm_gym:rllm_gym/MiniWoB-v0", obs_type="text")

    def reset(self, seed: int) -> None:
        self._env.reset(seed=seed, options={"item_id": f"miniwob_{TASKS[seed % len(TASKS)]}"})

    def step(self) -> None:
        node = next(node for node in self._env.unwrapped.nodes if node.role in ("checkbox", "radio"))
        observation = self._env.step(f"Action: click [{node.id}]")[0]
        assert "checked: " in observation and "ERROR" not in observation

    def close(self) -> None:
        self._env.close()


class OurWebArena(OurMiniWoB):
    """The expert's action on an embedded site."""

    def __init__(self) -> None:
        self._env = gymnasium.make("rllm_gym:rllm_gym/WebArena-v0", obs_type="text")

    def reset(self, seed: int) -> None:
        self._env.reset(seed=seed)

    def step(self) -> None:
        if self._env.step(self._env.unwrapped.expert_action())[2]:
            self._env.reset()


class BrowserGym:
    """The same click in BrowserGym's environment, with Debian's browser."""

    def __init__(self, has_waits: bool = False) -> None:
        import browsergym.miniwob  # noqa: F401  (registers its tasks)
        from browsergym.core import _get_global_playwright

        chromium = _get_global_playwright().chromium
        if not hasattr(chromium, "is_patched"):  # it passes no path, and would download a browser
            args = {"executable_path": find_chromium()}
            launch = chromium.launch
            chromium.launch = lambda **kwargs: launch(
                **{**kwargs, **args, "args": [*(kwargs.get("args") or []), *CHROMIUM_ARGS]}
            )
            chromium.is_patched = True
        waits = {} if has_waits else {"slow_mo": 0, "pre_observation_delay": 0.0}
        base_url = (html_folder() / "miniwob").as_uri() + "/"
        self._make = partial(gymnasium.make, task_kwargs={"base_url": base_url}, **waits)
        self._env: Any = None

    def reset(self, seed: int) -> None:
        self.close()
        self._env = self._make(f"browsergym/miniwob.{TASKS[seed % len(TASKS)]}", disable_env_checker=True)
        self._observation = self._env.reset(seed=seed)[0]

    def step(self) -> None:
        nodes = self._observation["axtree_object"]["nodes"]
        roles = {node["browsergym_id"]: node["role"]["value"] for node in nodes if node.get("browsergym_id")}
        target = next(id for id, role in roles.items() if role in ("checkbox", "radio"))
        self._observation = self._env.step(f"click({target!r})")[0]  # on a busy machine its half a second may run out

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def play(env: Any, seeds: range, num_steps: int) -> Times:
    """Return the seconds of each reset and of each step, and the CPU seconds of each step."""
    times = Times([], [], [])
    children: dict[int, float] = {}  # those that have ended, too
    for seed in seeds:
        start = time.perf_counter()
        env.reset(seed)
        times.resets.append(time.perf_counter() - start)
        for _ in range(num_steps):
            before, own, start = _children_cpu_s(children), time.process_time(), time.perf_counter()
            env.step()
            times.steps.append(time.perf_counter() - start)
            own = time.process_time() - own
            times.cpu.append(own + _children_cpu_s(children) - before)
    return times


def _children_cpu_s(seen: dict[int, float]) -> float:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seen[process.pid] = sum(process.cpu_times()[:2])
    return sum(seen.values())


def in_threads(make: Any, num_envs: int, seeds: range, num_steps: int) -> tuple[Times, float]:
    environments = [make() for _ in range(num_envs)]
    with ThreadPoolExecutor(num_envs) as pool:
        list(pool.map(lambda env: play(env, range(1), 1), environments))  # warm up
        results = list(pool.map(lambda env: play(env, seeds, num_steps), environments))
        memory = process_tree_bytes(with_root=False) / 1e6
        list(pool.map(lambda env: env.close(), environments))
    return _joined(results), memory


def _joined(results: list[Times]) -> Times:
    return Times(*(list(itertools.chain(*column)) for column in zip(*results, strict=True)))


def in_processes(make: Any, num_envs: int, seeds: range, num_steps: int) -> tuple[Times, float]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(num_envs)]
    workers = [context.Process(target=_work, args=(make, theirs, seeds, num_steps)) for _, theirs in pipes]
    for worker, (_, theirs) in zip(workers, pipes, strict=True):
        worker.start()
        theirs.close()  # or the end of a worker that fails would not be noticed
    results = [mine.recv() for mine, _ in pipes]
    memory = process_tree_bytes(with_root=False) / 1e6
    for (mine, _), worker in zip(pipes, workers, strict=True):
        mine.send(None)
        worker.join()
    return _joined(results), memory


def _work(make: Any, pipe: Any, seeds: range, num_steps: int) -> None:
    env = make()
    play(env, range(1), 1)
    pipe.send(play(env, seeds, num_steps))
    pipe.recv()  # its memory is measured
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--num-episodes", type=int, default=5, help="of each environment")
    parser.add_argument("--num-steps", type=int, default=6, help="in each episode")
    parser.add_argument("--max-browsergym-envs", type=int, default=4)
    args = parser.parse_args()
    seeds = range(1, 1 + args.num_episodes)
    kinds = [("MiniWoB", OurMiniWoB, in_threads), ("WebArena embedded", OurWebArena, in_threads)]
    if importlib.util.find_spec("browsergym"):
        kinds.append(("BrowserGym without waits", BrowserGym, in_processes))
        kinds.append(("BrowserGym", partial(BrowserGym, has_waits=True), in_processes))
    else:
        print("BrowserGym is not installed; see the head of this file.")
    step_ms: dict[str, float] = {}
    print("| environment | number | reset ms | step ms, mean | median | CPU ms | steps/s | MB | MB each |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, make, run in kinds:
        for num_envs in args.num_envs:
            if run is in_processes and num_envs > args.max_browsergym_envs:
                continue
            times, memory = run(make, num_envs, seeds, args.num_steps)
            mean_ms = statistics.mean(times.steps) * 1e3
            # Threads of one process cannot be told apart.
            cpu = f"{statistics.mean(times.cpu) * 1e3:.0f}" if num_envs == 1 else ""
            step_ms.setdefault(name, mean_ms)
            cells = (
                name, num_envs, f"{statistics.mean(times.resets) * 1e3:.0f}", f"{mean_ms:.0f}",
                f"{statistics.median(times.steps) * 1e3:.0f}", cpu, f"{num_envs / statistics.mean(times.steps):.1f}",
                f"{memory:.0f}", f"{memory / num_envs:.0f}",
            )  # fmt: skip
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    baseline = step_ms.get("BrowserGym without waits")
    ratio = baseline / step_ms["MiniWoB"] if baseline else float("nan")
    print_row([*seeds], f"{step_ms['MiniWoB']:.0f} ms a step on MiniWoB, one environment", [ratio])


if __name__ == "__main__":
    main()
