"""With LoRA each kind of method trains its adapters alone; the samplers and the export have the merged model."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from rllm_gym.algorithms.agent_evol import AgentEvolConfig
from rllm_gym.algorithms.dpo import DPOConfig
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.export import export_adapter, export_policy
from tests.algorithms.algorithm_helpers import distance, module_weights, not_finite, toy_config
from tests.algorithms.offline_helpers import offline_config

pytestmark = pytest.mark.slow

LORA = {
    "lora": {"r": 8, "lora_alpha": 32}, "lr": 1e-2, "env_config": {"num_turns": 2}, "groups_per_step": 4,
    "engine": "transformers",
}  # fmt: skip
KL_IN_REWARD = {"kl_coeff": 0.1, "kl_in": "reward"}  # the reference is the model without its adapter


def config_of(method: str, base_model):
    if method == "DPO":
        options = {"num_sampled_groups": 8, "group_size": 8, "pairs_within": "group", "samples_per_step": 4}
        return offline_config(DPOConfig(), base_model, **LORA, **options, zero_stage=3, save_trajectories=True)
    if method == "AgentEvol":  # every generation goes back to an adapter that never was trained
        options = {"group_size": 8, "keep": "reward", "num_generation_epochs": 2}
        return offline_config(AgentEvolConfig(), base_model, **LORA, **options, zero_stage=3, save_trajectories=True)
    options = {"group_size": 8, "zero_stage": 3 if method == "ReinforcePP" else 2}
    return toy_config(base_model, method=method, **LORA, **options, **KL_IN_REWARD)


PROMISES = [pytest.param(method, marks=pytest.mark.promise) for method in ("ReinforcePP", "PPO")]


@pytest.mark.parametrize("method", [*PROMISES, "DPO", "AgentEvol"])
def test_adapters_alone_are_trained_and_samplers_and_export_have_the_merged_model(tiny_model, build, tmp_path, method):
    algo = build(config_of(method, tiny_model))
    before = module_weights(algo)
    results = [algo.train() for _ in range(2)]
    after = module_weights(algo)
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {
        name for name in before if "lora_" in name
    }
    assert all(result["learners"]["default_policy"]["gradient_norm"] > 0 for result in results)
    assert not [name for result in results for name in not_finite(result)]

    checkpoint = Path(algo.save_to_path(str(tmp_path / "checkpoint")))
    export_policy(checkpoint, tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    export_adapter(checkpoint, tmp_path / "adapter")
    merged = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").merge_and_unload()
    assert [name for name, weight in merged.state_dict().items() if not weight.equal(exported.state_dict()[name])] == []
    with pytest.raises(ConfigError, match="the folder must be empty"):
        export_adapter(checkpoint, tmp_path / "adapter")
    algo.sync_weights()  # DPO does so when it is to play
    played, _ = algo.sample(algo.task_sampler.groups(9, 1), max_episode_steps=algo.horizons)
    streams = [stream for episode in played for stream in episode.streams.values()]
    assert max(distance(exported, stream) for stream in streams) < 1e-3
    assert max(distance(base, stream) for stream in streams) > 0.05
