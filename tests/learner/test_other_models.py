"""Models that are not Qwen2: GPT-2's linear layers are stored transposed, Gemma 2 holds its logits down."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from rllm_gym.weights.format import AdaptedWeights
from tests.learner.learner_helpers import MODULE, make_config, make_group, make_samples, update

SIZES = {"vocab_size": 200}
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SIZES, n_positions=512, n_embd=32, n_layer=2, n_head=2)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SIZES,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=48,
            final_logit_softcapping=2.0,
            attn_logit_softcapping=5.0,
            sliding_window=64,
        )
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    torch.manual_seed(0)
    lm = MODELS[request.param]()
    with torch.no_grad():
        lm.get_output_embeddings().weight.mul_(20)  # at first logits are nearly 0, where a soft cap does nothing
    folder = tmp_path_factory.mktemp(request.param)
    lm.save_pretrained(folder)
    return folder


def plain_logps(lm, sample) -> np.ndarray:
    ids = torch.as_tensor(sample.tokens)
    with torch.no_grad():
        logits = lm.eval()(input_ids=ids[None]).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0].numpy()[sample.weight[1:] > 0]


def scored(group, samples) -> list[np.ndarray]:
    shards = [range(len(samples))]
    [found] = group.foreach_learner(lambda learner: learner.score(samples, shards, ["trainer_logp"]))
    return [fields["trainer_logp"][samples[index].weight > 0] for index, fields in found.get()]


def test_the_trainers_log_probabilities_are_a_plain_forwards(model):
    samples = make_samples(4)
    found = scored(make_group(make_config(model)), samples)
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    for logps, sample in zip(found, samples, strict=True):
        np.testing.assert_allclose(logps, plain_logps(lm, sample), atol=2e-4)


def test_what_samplers_get_of_an_adapter_is_what_the_trainer_has(model):
    group = make_group(make_config(model, lora={"r": 4, "lora_alpha": 64}, deepspeed={}, lr=3e-2))
    samples = make_samples(4)
    for step in range(3):
        update(group, samples, train_step=step)
    trained = scored(group, samples)
    state = group.get_state(components="learner/rl_module", inference_only=True)["learner"]["rl_module"][MODULE]
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    before = [plain_logps(lm, sample) for sample in samples]
    lm.load_state_dict(dict(AdaptedWeights(lm.state_dict(), state)))
    for logps, sample in zip(trained, samples, strict=True):
        np.testing.assert_allclose(logps, plain_logps(lm, sample), atol=5e-4)
    assert max(np.abs(a - b).max() for a, b in zip(trained, before, strict=True)) > 1e-2  # it has learnt something
