"""Training against a server: the quickstart, with `env` and `env_config` changed and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rllm_gym.data import read_episodes
from rllm_gym.data.records import CLOCKED
from tests.in_process import config_in, in_this_process
from tests.needs import skip_without
from tests.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICKSTART = Path(__file__).parents[2] / "tuned_examples" / "quickstart.yaml"
SMALLER = {
    "groups_per_step": 2,
    "group_size": 4,
    "num_envs_per_env_runner": 8,
    "max_new_tokens": 32,
    "scaling_inter": {"type": "stepwise", "horizons": [3], "steps_per_stage": 2},
    "evaluation_interval": 2,
    "evaluation_duration": 4,
}


# Of a record: where and how fast it was played.
ELSEWHERE = {"env_id": True, "env_version": True, **CLOCKED}


def train(folder: Path, name: str, **changes: object) -> list[dict]:
    """Train the shortened quickstart for two steps, and return its episodes, without where and how fast they were."""
    [experiment] = yaml.safe_load(QUICKSTART.read_text()).values()
    experiment["config"].update(SMALLER)
    if changes:
        experiment["env"], experiment["config"]["env_config"] = changes["env"], changes["env_config"]
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({name: experiment}))
    algo = config_in(path).build_algo()
    try:
        for _ in range(2):
            algo.train()
    finally:
        algo.stop()
    episodes = [episode.model_dump(exclude=ELSEWHERE) for episode in read_episodes(algo.trajectories_path)]
    return sorted(episodes, key=lambda episode: episode["episode_id"])


def test_the_quickstart_over_the_wire_has_the_same_episodes_token_for_token(tmp_path, engines):
    skip_without("openenv")
    [experiment] = yaml.safe_load(QUICKSTART.read_text()).values()
    keywords = json.dumps(experiment["config"]["env_config"])
    with in_this_process(engines):
        in_process = train(tmp_path, "here")
        assert len(in_process) > 30
        assert any(episode["is_success"] for episode in in_process)
        with serving("--env", experiment["env"], "--env-config", keywords, "--workers", "1") as served:
            openenv = train(tmp_path, "openenv", env="rllm_gym/OpenEnv-v0", env_config={"url": served.url})
            url = f"{served.url}/agentgym"
            agentgym = train(tmp_path, "agentgym", env="rllm_gym/AgentGym-v0", env_config={"url": url})
    assert openenv == in_process
    assert agentgym == in_process
