"""A model behind an endpoint is evaluated as one of ours is: vLLM's own server, with the shipped model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import requests

from rllm_gym.data import read_episodes
from rllm_gym.evaluation import evaluate
from rllm_gym.evaluation.panel import make_panel
from rllm_gym.models import resolve_base_model
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.types import SamplingParams
from tests.in_process import in_this_process

START_S = 300.0


@pytest.fixture
def served(tmp_path) -> Iterator[str]:
    """vLLM's server on loopback; yields its url."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path / "server.log").open("w")
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(resolve_base_model("tiny"))),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "theirs", "--dtype", "float32"),
        *("--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager"),
    ]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}  # else its threads wait busily
    server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | settings, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                requests.get(f"{url}/health", timeout=1.0).raise_for_status()
                break
            except requests.RequestException:
                assert server.poll() is None and time.monotonic() < deadline_s, (tmp_path / "server.log").read_text()
                time.sleep(1.0)
        yield f"{url}/v1"
    finally:
        server.terminate()
        server.wait(60)
        log.close()


@pytest.mark.slow
def test_the_same_model_behind_an_endpoint_plays_the_same_episodes(engines, served, tmp_path):
    spec = EnvironmentSpec("TextCraft", "rllm_gym:rllm_gym/TextCraft-v0", {"depth": 1})
    greedy = SamplingParams(max_new_tokens=48, temperature=0.0)
    panel = make_panel(spec, split="eval", num_tasks=6, samples=1, seed=3, horizon=4, sampling=greedy)
    sampler = {"max_model_len": 1024, "num_envs_per_env_runner": 4}
    with in_this_process(engines):
        ours = evaluate("tiny", panels=[panel], out=tmp_path / "ours", config=sampler)
    options = {"model": "theirs", "base_url": served, "price": {"prompt": 1.0, "completion": 2.0}}
    endpoint = {"engine": "openai", "engine_options": options}
    with in_this_process(engines):
        theirs = evaluate("tiny", panels=[panel], out=tmp_path / "theirs", config=sampler | endpoint)

    said = [
        {r.item_id: [message["content"] for message in r.messages] for r in read_episodes(tmp_path / name)}
        for name in ("ours", "theirs")
    ]
    assert said[0] == said[1] and len(said[0]) == 6
    assert (theirs["successes"], theirs["errors"]) == (ours["successes"], 0)
    assert theirs["panel_hash"] == ours["panel_hash"]
    assert theirs["model"] == f"theirs at {served}" and "usage" not in ours
    usage = theirs["usage"]
    turns = sum(len(record.turns) for record in read_episodes(tmp_path / "theirs"))
    assert usage["requests"] == turns and usage["completion_tokens"] >= turns
    assert usage["cost"] == pytest.approx((usage["prompt_tokens"] + 2 * usage["completion_tokens"]) / 1e6)
