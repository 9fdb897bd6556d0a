"""verifiers' own OpenEnv taskset plays TextCraft's expert, in an installation of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import gymnasium
import pytest

from tests.interop.scripted_model import SEED, endpoint, expert_turns
from tests.serving import ROOT, serving

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(300)]

VF_EVAL = Path(os.environ.get("RLLM_GYM_VERIFIERS", ROOT / ".interop" / "verifiers")) / "bin" / "vf-eval"
CONFIG = """
model = "expert"
push = false
rich = "None"
output_dir = {folder}
[client]
base_url = {model}
api_key_var = "NO_KEY"
[env.taskset]
id = "openenv"
base_url = {url}
resets = {resets}
[env.player]
harness = {{id = "null"}}
runtime = {{type = "subprocess"}}
"""


@pytest.mark.skipif(not VF_EVAL.exists(), reason="verifiers is installed by make test-interop")
def test_verifiers_plays_the_expert_to_success_with_the_rewards_of_gymnasium(tmp_path):
    items = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text", split="eval").unwrapped.item_ids[:6:2]
    resets = ", ".join(f'{{seed = {SEED}, item_id = "{item}"}}' for item in items)
    with serving("--env", "TextCraft-v0", "--workers", "1") as served, endpoint() as model:
        quoted = {
            "folder": json.dumps(str(tmp_path / "out")),
            "model": json.dumps(model),
            "url": json.dumps(served.url),
        }
        config = tmp_path / "vf.toml"
        config.write_text(CONFIG.format(resets=f"[{resets}]", **quoted))
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment["PATH"] = f"{VF_EVAL.parent}{os.pathsep}{environment['PATH']}"  # its harness asks for uv there
        ended = subprocess.run(
            [str(VF_EVAL), "@", str(config)],
            cwd=tmp_path,
            env={**environment, "NO_KEY": "none"},
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = next((tmp_path / "out").rglob("traces.jsonl")).read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    errors = [error["message"] for episode in episodes for error in episode["errors"]]
    assert not errors, errors
    rewards = [episode["traces"][0]["rewards"]["openenv_reward"]["score"] for episode in episodes]
    assert rewards == [sum(reward for _, _, reward in expert_turns(item)) for item in items] == [1.0] * 3
