"""Self-play end to end, with real engines: a pool that changes, runners that die, a run that resumes."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.algorithms.grpo import GRPO
from rllm_gym.callbacks.opponents import Opponents
from rllm_gym.data import read_episodes
from rllm_gym.weights.format import AdaptedWeights
from tests.algorithms.algorithm_helpers import distance, equal, module_weights, not_finite, toy_config
from tests.wiring.harness import callback

pytestmark = pytest.mark.slow

POOL = {"opponents": {"player_1": {"pool": {"every": 1, "size": 2, "sampling": "uniform"}}}}


def config_of(base_model, **options):
    game = {"env_config": {"swap_seats": True, "is_lenient": True}, "max_episode_steps": None}
    sizes = {"group_size": 8, "groups_per_step": 4}
    return toy_config(base_model, "take_away", **game, **sizes, advantage="role", filter_groups="off", **options)


def opponent_versions(played):
    turns = [t for e in played for s in e.streams.values() if s.module_id == "opponent_player_1" for t in s.turns]
    return {turn.policy_version for turn in turns}


def test_with_lora_a_pool_is_another_adapter_on_the_policys_engine(tiny_model, build_on_ray):
    pool = {"opponents": {"player_1": {"pool": {"every": 2, "size": 1}}}, "lora": {"r": 4, "lora_alpha": 16}}
    algo = build_on_ray(config_of(tiny_model, **pool | {"lr": 3e-2}))
    kinds = algo.env_runner_group.foreach_env_runner(
        lambda runner: {name: type(engine).__name__ for name, engine in runner.engines.items()}, local_env_runner=False
    )
    assert kinds == [{"default_policy": "VLLMEngine", "opponent_player_1": "VLLMAdapter"}]
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    base = {name: value.clone() for name, value in lm.state_dict().items()}
    for step in range(4):
        theirs = dict(callback(algo, Opponents).pools["player_1"].opponent.weights)
        mine = dict(algo.policy_weights("default_policy")[1])
        algo.train()
        for module, adapter in (("opponent_player_1", theirs), ("default_policy", mine)):
            lm.load_state_dict(dict(AdaptedWeights(base, adapter)))
            streams = [s for e in algo.sampled.played for s in e.streams.values() if s.module_id == module]
            assert max(distance(lm, stream) for stream in streams[:6]) < 1e-3, (step, module)
    assert not equal(theirs, mine)


def test_self_play_with_a_pool_resumes_bit_for_bit_and_survives_a_killed_runner(tiny_model, build_on_ray, tmp_path):
    # Ten engines in all; those of transformers start sooner.
    config = config_of(tiny_model, engine="transformers", num_env_runners=2, save_trajectories=True, **POOL)
    algo = build_on_ray(config)
    for _ in range(2):
        assert not not_finite(algo.train())
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    expected = [algo.train()["opponents"] for _ in range(2)]
    straight, baselines = module_weights(algo), dict(algo.role_baselines)
    assert opponent_versions(algo.sampled.played) <= {2, 3}
    records = list(read_episodes(algo.trajectories_path))
    assert {(r.agent_id, r.module_id) for r in records} == {
        ("player_0", "default_policy"),
        ("player_1", "opponent_player_1"),
    }
    assert {record.role for record in records} == {"first", "second"}

    # Where runners have died, the others and then their successors meet the same opponents, and the steps are the same.
    algo.restore_from_path(path)
    pids = algo.env_runner_group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
    os.kill(pids[0], signal.SIGKILL)
    assert algo.train()["opponents"] == expected[0]
    deadline = time.monotonic() + 120
    while len(algo.samplers.ids) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
        algo.samplers.await_any()
    assert len(algo.samplers.ids) == 2
    assert algo.train()["opponents"] == expected[1]
    assert equal(straight, module_weights(algo))

    restored = GRPO.from_checkpoint(path)
    try:
        assert [restored.train()["opponents"] for _ in range(2)] == expected
        assert equal(straight, module_weights(restored))
        assert restored.role_baselines == baselines
    finally:
        restored.stop()
