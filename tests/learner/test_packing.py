"""Packing several samples into a row changes no log-probability and no gradient, and is left where a model cannot."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, DeepseekV3Config, MistralConfig, Qwen2Config

from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import Batch, collate
from rllm_gym.learner.logps import compute_logps, read
from rllm_gym.learner.packing import split_into_micro_batches
from rllm_gym.training.algorithm import LLMAlgorithm
from tests.learner.learner_helpers import (
    MODULE,
    distance,
    driver_of,
    gradient,
    largest,
    make_config,
    make_group,
    make_samples,
)

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
SIZES |= {"vocab_size": 259, "intermediate_size": 96, "initializer_range": 0.3, "max_position_embeddings": 512}
# The windows are far shorter than the samples, of up to 100 tokens.
CONFIGS = {
    "dense": Qwen2Config(**SIZES),
    "sliding_qwen2": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "sliding_mistral": MistralConfig(**SIZES, sliding_window=5),
    "values_smaller_than_keys": DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 2},
        first_k_dense_replace=2,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=24,
    ),
}


def save(config, folder):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=CONFIGS)
def model(request, tmp_path_factory):
    return save(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def leaky_model(tmp_path_factory):
    """BLOOM knows no positions, and so attends to all that stands before a token in its row."""
    config = BloomConfig(vocab_size=259, hidden_size=64, n_layer=2, n_head=2, initializer_range=0.3)
    return save(config, tmp_path_factory.mktemp("bloom"))


def plain_logps(base_model, sample) -> np.ndarray:
    lm = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    ids = torch.tensor(sample.tokens)
    with torch.no_grad():
        logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
    return np.r_[0, logp.numpy()] * (sample.weight != 0)


@pytest.mark.parametrize("method", ["GRPO", "SFT"])
def test_packing_changes_no_log_probability_and_no_gradient_of_a_learner(model, method):
    gradients, logps = [], []
    samples = make_samples(12, num_turns=6)
    for packing in (False, True):
        options = {"packing": packing, "tokens_per_micro_batch": 400, "clip_low": 1e9, "clip_high": 1e9}
        group = make_group(make_config(model, method, **options))
        learner = group._learner
        parts = list(learner.micro_batches(MODULE, Batch.from_mapping(collate(samples))))
        assert len(parts) > 1
        assert any(part.packing is not None for part in parts) is packing
        driver_of(group).score(samples, ["trainer_logp"])
        logps.append([sample.trainer_logp for sample in samples])
        gradients.append(gradient(group, samples))
    for padded, packed, sample in zip(*logps, samples, strict=True):
        assert np.abs(padded - packed).max() < 1e-5
        assert np.abs(padded - plain_logps(model, sample)).max() < 1e-5
    assert largest(gradients[0]) > 0.1
    assert distance(*gradients) < 1e-5 * max(1.0, largest(gradients[0]))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packing_keeps_sequences_apart_whatever_computes_the_attention(model, attention):
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation=attention)
    samples = make_samples(9, seed=2, num_turns=4)
    batch = Batch.from_mapping(collate(samples))
    alone = split_into_micro_batches(batch, 1, is_packed=False)
    packed = split_into_micro_batches(batch, 300, is_packed=True)
    assert len(alone) == len(samples)
    assert any(part.packing is not None and part.packing.num_rows < len(part.rows) for part in packed)
    logps, of_weights = logps_and_gradient(lm, alone)
    packed_logps, packed_of_weights = logps_and_gradient(lm, packed)
    for a, b in zip(logps, packed_logps, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    most = max(g.abs().max() for g in of_weights)
    assert most > 0.1
    for a, b in zip(of_weights, packed_of_weights, strict=True):
        assert (a - b).abs().max() < 1e-5 * most


def logps_and_gradient(lm, parts):
    """The log-probabilities in the batch's order, and the gradient of their weighted sum."""
    lm.zero_grad()
    rows = {}
    for part in parts:
        logp_BT = compute_logps(lm, read(lm, part.model_inputs), part.model_inputs, temperature=1.0)["logp"]
        (logp_BT * part.batch.per_token["weight"]).sum().backward()
        for row, length, logp_T in zip(part.rows.tolist(), part.batch.lengths.tolist(), logp_BT.detach(), strict=True):
            rows[row] = logp_T[:length]
    return [rows[row] for row in sorted(rows)], [p.grad.clone() for p in lm.parameters()]


# --- models that cannot tell the sequences of a row apart ---


def test_packing_auto_leaves_a_model_alone_that_cannot_and_says_so_in_one_line(leaky_model, monkeypatch, caplog):
    group = make_group(make_config(leaky_model, packing="auto"))
    fault = group._learner.packing_fault
    assert "a sequence reads the one before it in its row" in fault
    samples = make_samples(8)
    driver = driver_of(group)
    driver.score(samples, ["trainer_logp"])
    for sample in samples:
        assert np.abs(sample.trainer_logp - plain_logps(leaky_model, sample)).max() < 1e-5
    padded = gradient(make_group(make_config(leaky_model, packing=False)), samples)
    assert distance(gradient(group, samples), padded) == 0.0
    monkeypatch.setattr("ray.rllib.algorithms.algorithm.Algorithm.setup", lambda *args: None)
    driver.env_runner_group = None
    with caplog.at_level(logging.WARNING):
        LLMAlgorithm.setup(driver, driver.config)
    [line] = [record.getMessage() for record in caplog.records if "packing" in record.getMessage()]
    assert "packing: auto" in line and fault in line and "\n" not in line


def test_packing_auto_leaves_a_model_alone_whose_forward_takes_no_positions(tiny_model, monkeypatch):
    from transformers import Qwen2Model

    real = Qwen2Model.forward

    def forward(self, *args, position_ids=None, **kwargs):
        if position_ids is not None:
            raise TypeError("forward() got an unexpected keyword argument 'position_ids'")
        return real(self, *args, **kwargs)

    group = make_group(make_config(tiny_model))
    assert group._learner.packing_fault is None
    samples = make_samples(8)
    padded = gradient(make_group(make_config(tiny_model, packing=False)), samples)
    monkeypatch.setattr(Qwen2Model, "forward", forward)
    group = make_group(make_config(tiny_model))
    assert "position_ids" in group._learner.packing_fault
    assert distance(gradient(group, samples), padded) == 0.0


def test_packing_true_refuses_a_model_that_cannot_in_one_line(leaky_model, tiny_model):
    with pytest.raises(ConfigError, match=r"must keep sequences apart .*a sequence reads the one before it") as caught:
        make_group(make_config(leaky_model, packing=True))
    assert "\n" not in str(caught.value)
    assert make_group(make_config(tiny_model, packing=True))._learner.packing_fault is None
