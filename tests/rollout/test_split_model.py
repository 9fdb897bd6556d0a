"""A sampler's model split over processes (`tensor_parallel_size`): new weights, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from rllm_gym.checkpoints import read_results
from rllm_gym.errors import EngineDiedError
from rllm_gym.rollout.engines.vllm import VLLMEngine
from tests.rollout.engine_helpers import forward_logp, make_request, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPLIT = {"kv_cache_memory_bytes": 2**26, "tensor_parallel_size": 2}


def parts_below(pid):
    return [p for p in psutil.Process(pid).children(recursive=True) if "Worker_TP" in "".join(p.cmdline())]


def test_new_weights_reach_every_part_and_no_process_is_left(tiny_model, other_model):
    others = VLLMEngine(str(tiny_model), max_model_len=256, options={"kv_cache_memory_bytes": 2**26})
    others.close()  # from the first engine on, vLLM reads its environment variables no more
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    engine = VLLMEngine(str(tiny_model), max_model_len=256, max_num_seqs=4, options=SPLIT)
    parts = parts_below(os.getpid())
    prompt = list(range(20, 90))
    try:
        executor = engine._engine.engine_core.engine_core.model_executor
        assert executor.collective_rpc(lambda worker: torch.get_num_threads()) == [1, 1]
        for version, folder in enumerate((other_model, tiny_model)):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            engine.load_weights(dict(model.state_dict()), policy_version=version)
            [completion] = run(engine, make_request(f"{version}", prompt=prompt))
            expected = forward_logp(model, prompt, completion.token_ids)
            np.testing.assert_allclose(completion.logp, expected, atol=2e-4)
        parts[0].kill()
        with pytest.raises(EngineDiedError, match="a process that held a part of the model has ended"):
            run(engine, make_request("orphan", prompt=prompt))
    finally:
        engine.close()
        torch.set_num_threads(num_threads)
    assert len(parts) == 2
    assert not psutil.wait_procs(parts, timeout=30)[1]


EXPERIMENT = {
    "run": "GRPO",
    "env": "rllm_gym/TextCraft-v0",
    "stop": {"training_iteration": 2},
    "config": {
        "env_config": {"depth": 1, "system_prompt": ""},
        "base_model": "tiny",
        "seed": 0,
        "engine_options": SPLIT,
        "num_envs_per_env_runner": 8,
        "num_env_workers": 0,
        "groups_per_step": 2,
        "group_size": 4,
        "filter_groups": "off",
        "lr": 1e-3,
        "old_logp": "recompute",
        "max_model_len": 1024,
        "max_new_tokens": 48,
        "max_episode_steps": 4,
    },
}


def train(folder):
    file = folder / "split.yaml"
    file.write_text(yaml.safe_dump({"split": EXPERIMENT}))
    return subprocess.Popen(
        [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "train", "file", str(file)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("killed", ["sampler", "part"])
def test_it_trains_and_a_sampler_that_dies_or_loses_a_part_leaves_nothing_and_is_replaced(tmp_path, killed):
    process = train(tmp_path)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step 1/2"):
            break
    parts = parts_below(process.pid)
    assert len(parts) == 2, lines
    [runner] = {part.parent() for part in parts}
    os.kill(runner.pid if killed == "sampler" else parts[0].pid, signal.SIGKILL)
    assert not psutil.wait_procs([runner, *parts], timeout=120)[1]
    lines += process.communicate(timeout=400)[0].splitlines()
    assert process.returncode == 0, lines
    assert any("EnvRunner 1 ends: VLLMEngine: a process" in line for line in lines) == (killed == "part"), lines
    # Sampler and trainer agree, before and after an update.
    rows = read_results(next((tmp_path / "runs" / "split").glob("*_*/")))
    differences = [row["learners"]["default_policy"]["logp_difference_max"] for row in rows]
    assert len(differences) == 2 and max(differences) < 1e-3
