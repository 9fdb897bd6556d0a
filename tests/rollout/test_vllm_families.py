"""New weights reach all of vLLM's parameters, whatever the model: experts, tied heads, transformers' own code."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from rllm_gym.models import choose_attention
from rllm_gym.rollout.engines.vllm import VLLMEngine, _empty_model, model_fault, parse_reason
from rllm_gym.rollout.policies import EngineWeights
from rllm_gym.weights.checkpoint_form import checkpoint_items
from rllm_gym.weights.format import LORA_A, LORA_B
from tests.families import BFLOAT16_ALONE, FAMILIES, make_family
from tests.rollout.engine_helpers import forward_logp, make_request, run

pytestmark = pytest.mark.xdist_group("vllm")

PROMPT = list(range(40, 80))


def make_engine(folder, dtype="float32"):
    options = {"kv_cache_memory_bytes": 2**26}
    return VLLMEngine(str(folder), dtype=dtype, max_model_len=256, max_num_seqs=8, options=options)


def load(folder, dtype="float32"):
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).float()
    if choose_attention(lm.config):
        lm.set_attn_implementation("eager")
    return lm.eval()


def change(lm, dtype="float32"):
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
            parameter.copy_(parameter.to(getattr(torch, dtype)))


def off_by(engine, lm, of=np.max):
    [completion] = run(engine, make_request("r", prompt=PROMPT, seed=1))
    return of(abs(forward_logp(lm, PROMPT, completion.token_ids) - completion.logp))


QUICK = ("Qwen3Moe", "GptOss", "Gemma2")


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.promise if f in QUICK else pytest.mark.slow) for f in FAMILIES]
)
def test_new_weights_reach_vllm(family, tmp_path):
    if "text_config" in FAMILIES[family] and importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed: vLLM imports it for models with images")
    dtype, of, most = ("bfloat16", np.mean, 0.25) if family in BFLOAT16_ALONE else ("float32", np.max, 1e-4)
    lm, engine = load(make_family(family, tmp_path), dtype), make_engine(tmp_path, dtype)
    try:
        assert off_by(engine, lm, of) < most
        for version in (1, 2):
            change(lm, dtype)
            engine.load_weights(lm.state_dict(), version)
            assert off_by(engine, lm, of) < most
            assert not engine.unloaded
    finally:
        engine.close()


@pytest.mark.slow
def test_policies_with_and_without_experts_share_a_process_in_any_order(tmp_path):
    pairs = [(load(make_family(f, tmp_path / f)), make_engine(tmp_path / f)) for f in ("Qwen2", "Mixtral", "Olmo2")]
    try:
        for lm, engine in pairs:
            change(lm)
            engine.load_weights(lm.state_dict(), 1)
        assert [off_by(engine, lm) < 1e-4 for lm, engine in pairs] == [True] * 3
    finally:
        for _, engine in pairs:
            engine.close()


def test_what_vllm_leaves_as_it_was_is_named_and_has_its_old_value(tmp_path, monkeypatch):
    lm, engine = load(make_family("Gemma2", tmp_path)), make_engine(tmp_path)
    name = "model.layers.1.pre_feedforward_layernorm.weight"
    try:
        change(lm)
        old = engine._live.apply_model(lambda model: model.get_parameter(name).clone())[0]
        monkeypatch.setattr(
            "rllm_gym.rollout.engines.vllm.checkpoint_items",
            lambda lm, weights: (item for item in checkpoint_items(lm, weights) if item[0] != name),
        )
        engine._reload_all(lm.state_dict())
        assert list(engine.unloaded) == [name]
        assert torch.equal(engine._live.apply_model(lambda model: model.get_parameter(name))[0], old)
    finally:
        engine.close()


def test_a_lora_policy_is_loaded_beside_a_model_that_vllm_runs_by_transformers_code(tmp_path):
    engine = make_engine(make_family("Olmo2", tmp_path))
    weights = EngineWeights({"p": engine}, {"p": str(tmp_path)}, dtype="float32", opponents={}, adapter_hosts={})
    name = "model.layers.0.self_attn.q_proj.weight"
    try:
        weights.load_policies({"p": {name + LORA_A: torch.zeros(4, 64), name + LORA_B: torch.zeros(64, 4)}}, 1)
        assert engine.policy_version == 1
    finally:
        engine.close()


def test_a_model_that_wants_torchvision_is_refused_in_a_line_that_says_how_to_install_it(monkeypatch):
    refused = ValueError(
        "1 validation error for ModelConfig\n  Value error, Model architectures ['Qwen3_5ForCausalLM'] "
        "failed to be inspected. Please check the logs for more details. [type=value_error, input_value=ArgsKwargs(())]"
    )
    nested = transformers.Gemma3Config()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines = parse_reason(refused), model_fault(nested, "float32")
    assert lines[0].startswith("Model architectures ['Qwen3_5ForCausalLM'] want torchvision")
    assert lines[1].startswith("a model with images (gemma3) needs torchvision in vLLM")
    assert all(f"`pip install torchvision torch=={torch.__version__.partition('+')[0]}" in line for line in lines)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert parse_reason(refused).endswith("failed to be inspected. Please check the logs for more details.")
    assert model_fault(nested, "float32") is None


def test_linear_attention_on_a_cpu_wants_bfloat16(tmp_path):
    config = transformers.Qwen3_5TextConfig()
    assert model_fault(config, "bfloat16") is None
    assert "Set dtype: bfloat16, or engine: transformers." in model_fault(config, "float32")


def test_the_names_of_a_text_part_are_those_of_the_files_that_hold_more(tmp_path):
    folder = make_family("Qwen3_5", tmp_path)
    lm = _empty_model(str(folder), trust_remote_code=False)
    names = [name for name, _ in checkpoint_items(lm, lm.state_dict())]
    with safe_open(folder / "model.safetensors", "pt") as file:
        in_files = [name for name in file.keys() if ".visual." not in name]  # noqa: SIM118 (no mapping)
    assert sorted(names) == sorted(in_files)
