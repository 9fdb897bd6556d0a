"""Rotary frequencies that follow the longest position of a pass are fixed, alike in trainer and samplers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rllm_gym.learner.batch import Batch, collate
from rllm_gym.learner.logps import compute_logps, read
from rllm_gym.learner.packing import split_into_micro_batches
from rllm_gym.learner.rl_module import load_language_model
from rllm_gym.rollout.engines.transformers import TransformersEngine
from rllm_gym.rotary import fix_rotary_frequencies
from rllm_gym.types import Sample
from tests.families import make_family
from tests.rollout.engine_helpers import forward_logp, make_request, run

ORIGINAL = 64
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
MODELS = {
    "longrope": ("Phi3", {"original_max_position_embeddings": ORIGINAL, "rope_scaling": LONGROPE}),
    "dynamic": ("Llama", {"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}),
}
LENGTHS = {"below": 60, "above": 120}  # the longrope model's original length


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    family, sizes = MODELS[request.param]
    return make_family(family, tmp_path, **sizes)


def logps(lm, lengths, index=0):
    samples = [Sample(np.random.default_rng(n).integers(0, 250, n), np.ones(n, np.float32)) for n in lengths]
    [part] = split_into_micro_batches(Batch.from_mapping(collate(samples)), 10_000, is_packed=True)
    row = part.rows.tolist().index(index)
    with torch.no_grad():
        return compute_logps(lm, read(lm, part.model_inputs), part.model_inputs, temperature=1.0)["logp"][row]


@pytest.mark.promise
def test_a_samples_log_probabilities_do_not_depend_on_its_neighbours(model):
    lm = load_language_model(str(model), "float32").eval()
    alone, beside = logps(lm, [40])[:40], logps(lm, [40, 120])[:40]
    torch.testing.assert_close(alone, beside, rtol=0, atol=1e-4)


@pytest.mark.promise
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_the_transformers_engine_has_the_trainers_frequencies(model, length):
    lm = load_language_model(str(model), "float32").eval()
    fix_rotary_frequencies(lm, length)
    prompt = list(range(40, 70))
    [completion] = run(TransformersEngine(str(model), max_model_len=length), make_request("r", prompt=prompt))
    np.testing.assert_allclose(completion.logp, forward_logp(lm, prompt, completion.token_ids), atol=1e-4)


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.xdist_group("vllm")
def test_vllm_has_the_trainers_frequencies(model, length):
    from rllm_gym.rollout.engines.vllm import VLLMEngine

    lm = load_language_model(str(model), "float32").eval()
    fix_rotary_frequencies(lm, length)
    engine = VLLMEngine(str(model), max_model_len=length, options={"kv_cache_memory_bytes": 2**26})
    try:
        prompt = list(range(40, 70))
        [completion] = run(engine, make_request("r", prompt=prompt))
        np.testing.assert_allclose(completion.logp, forward_logp(lm, prompt, completion.token_ids), atol=1e-4)
    finally:
        engine.close()


def test_another_length_of_longrope_has_other_frequencies(tmp_path):
    family, sizes = MODELS["longrope"]
    lm = load_language_model(str(make_family(family, tmp_path, **sizes)), "float32").eval()
    long = logps(lm, [40])
    fix_rotary_frequencies(lm, ORIGINAL)
    assert (logps(lm, [40]) - long).abs().max() > 0.1
    fix_rotary_frequencies(lm, ORIGINAL + 1)
    assert torch.equal(logps(lm, [40]), long)
