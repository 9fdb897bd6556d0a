"""Measures what it takes to look at a large run: `python benchmarks/viewer.py`, which needs a browser.

Writes 50,000 episodes of the size of the tiny model's on TextCraft, serves them, and opens the list in headless
Chromium: until its first rows are drawn, until a filter, a sort and a search for a text have been applied, and until an
episode has opened. All but the index are what a person waits for.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import uvicorn
from playwright.sync_api import Page, expect, sync_playwright
from trajectories import make_episode, peak_memory_mb

from rllm_gym.data import TrajectoryWriter, make_records
from rllm_gym.envs.web.browser import CHROMIUM_ARGS, find_chromium
from rllm_gym.viewer.episode_index import Index
from rllm_gym.viewer.hub import Hub
from rllm_gym.viewer.server import make_app

TIMEOUT_MS = 60_000


def write(folder: Path, num_episodes: int) -> None:
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, number) for number in range(1024)]
    given = {"env_version": "v0", "max_episode_steps": 4, "split": "train"}
    with TrajectoryWriter(folder / "trajectories") as writer:
        for start in range(0, num_episodes, 64):
            step = start // 64
            records = []
            for number in range(start, min(start + 64, num_episodes)):
                [record] = make_records(episodes[number % len(episodes)], train_step=step, **given)
                key = [0, step, number // 8 % 8]
                changes = {"group": key, "member": number % 8, "episode_id": f"0-{step}-{number % 64}"}
                records.append(record.model_copy(update={**changes, "is_success": number % 3 == 0}))
            writer.append(records)


def measure(page: Page, address: str, num_episodes: int) -> dict[str, float]:
    """Return seconds by what was done."""
    found, shown = {}, page.locator("#num-shown")

    def timed(name: str, act, wait) -> None:
        begin = time.perf_counter()
        act()
        wait()
        found[name] = time.perf_counter() - begin

    def has(number: int):
        return lambda: expect(shown).to_have_text(f"{number:,}", timeout=TIMEOUT_MS)

    def open_list() -> None:
        page.goto(address)
        page.locator("a.row").first.wait_for(timeout=TIMEOUT_MS)

    timed("open the list", open_list, has(num_episodes))
    num_solved = len(range(0, num_episodes, 3))
    timed("filter by outcome", lambda: page.select_option("select[name=outcome]", "success"), has(num_solved))
    timed("no filter", lambda: page.select_option("select[name=outcome]", ""), has(num_episodes))
    newest = page.locator("a.row .c-step").first

    def is_first_step() -> None:
        expect(newest).to_have_text("0", timeout=TIMEOUT_MS)

    timed("sort by step", lambda: [page.get_by_role("button", name="Step").click() for _ in range(2)], is_first_step)
    searched = page.locator("input[name=text]")
    timed("search for a text", lambda: searched.fill("xyz-is-nowhere"), has(0))
    searched.fill("")
    has(num_episodes)()
    opened = page.locator(".exchange").first
    timed("open an episode", page.locator("a.row").first.click, lambda: opened.wait_for(timeout=TIMEOUT_MS))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is printed")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="viewer_"))
    try:
        write(folder, args.episodes)
        begin = time.perf_counter()
        index = Index([folder])
        index.refresh()
        print(f"index of {args.episodes} episodes  {time.perf_counter() - begin:.2f} s")
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app(index, Hub({})), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        rounds = []
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_ARGS))
            for _ in range(args.rounds):
                page = browser.new_page()
                rounds.append(measure(page, f"http://127.0.0.1:{listener.getsockname()[1]}/", args.episodes))
                page.close()
            browser.close()
        server.should_exit = True
        thread.join()
        for name in rounds[0]:
            print(f"{name:<26}{np.median([found[name] for found in rounds]):.2f} s")
        print(f"peak memory of the server {peak_memory_mb():.0f} MB, with what wrote the episodes")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
