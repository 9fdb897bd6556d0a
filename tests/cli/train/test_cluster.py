"""The same file on a running cluster of two nodes, with nothing changed but the address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from rllm_gym.checkpoints import newest_checkpoint, read_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXPERIMENT = """\
cluster:
  run: GRPO
  env: rllm_gym/TextCraft-v0
  stop: {{training_iteration: 1}}
  config:
    base_model: tiny
    env_config: {{depth: 1, system_prompt: ""}}
    groups_per_step: 2
    group_size: 2
    num_envs_per_env_runner: 4
    max_model_len: 1024
    max_new_tokens: 4
    max_episode_steps: 1
    engine_options: {{kv_cache_memory_bytes: 67108864}}
    num_env_runners: {num_env_runners}
"""


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one and two logical CPUs: driver and runners can only be placed on both together."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 150 * 2**20})
    cluster.add_node(num_cpus=2, object_store_memory=150 * 2**20)
    yield cluster
    cluster.shutdown()


def train(folder: Path, cluster: Cluster, num_env_runners: int) -> subprocess.CompletedProcess[str]:
    path = folder / "x.yaml"
    path.write_text(EXPERIMENT.format(num_env_runners=num_env_runners))
    command = [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "train", "file", str(path)]
    command += ["--ray-address", cluster.address]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)


def test_two_nodes_train_together(cluster, tmp_path):
    done = train(tmp_path, cluster, num_env_runners=2)
    assert done.returncode == 0, done.stdout + done.stderr
    [trial] = [path.parent for path in (tmp_path / "runs" / "cluster").glob("*/params.json")]
    [result] = read_results(trial)
    assert result["env_runners"]["num_episodes"] == 4
    assert result["fault_tolerance"]["num_healthy_workers"] == 2
    assert newest_checkpoint(trial).training_iteration == 1


def test_a_trial_that_no_cluster_could_hold_is_refused_at_once(cluster, tmp_path):
    done = train(tmp_path, cluster, num_env_runners=7)
    assert done.returncode != 0
    assert "it asks for 8 CPUs, and there are 3" in done.stdout + done.stderr
