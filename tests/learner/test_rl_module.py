"""The policy module: its log-probabilities, its weights under Hugging Face names, LoRA, 16 bits, offload, schedules."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.errors import ConfigError
from rllm_gym.learner.logps import sampled_logps
from rllm_gym.learner.probes import collect_notices
from rllm_gym.learner.rl_module import BASE_HASH
from rllm_gym.weights.format import LORA_A, LORA_B, AdaptedWeights, Tensors, received
from tests.families import make_family
from tests.learner.learner_helpers import (
    MODULE,
    largest,
    make_config,
    make_group,
    make_samples,
    update,
    weights,
)

ADAM = {"deepspeed": {}, "lr": 1e-2}


def synced(group) -> dict:
    """What the samplers get."""
    state = group.get_state(components="learner/rl_module", inference_only=True)
    return state["learner"]["rl_module"][MODULE]


def plain_logps(lm, tokens, temperature=1.0):
    with torch.no_grad():
        logits = lm(input_ids=tokens).logits[:, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]


def test_log_probabilities_and_entropy_are_those_of_whole_logits_at_the_sampling_temperature(tiny_model):
    module = make_group(make_config(tiny_model, temperature=0.7))._learner.module[MODULE]
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    tokens = torch.randint(0, 200, (3, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(3, 20, dtype=torch.bool)
    mask[0, 4:9] = mask[1, 19] = mask[2, 1] = True
    out = module.forward_train({"tokens": tokens, "mask": mask})
    expected = plain_logps(lm, tokens, temperature=0.7)
    assert torch.allclose(out["logp"][:, 1:][mask[:, 1:]], expected[mask[:, 1:]], atol=1e-5)
    assert (out["logp"][~mask] == 0).all()
    with torch.no_grad():
        all_logp = torch.log_softmax(lm(input_ids=tokens).logits / 0.7, -1)
    entropy = -(all_logp.exp() * all_logp).sum(-1)[:, :-1]
    assert torch.allclose(out["entropy"][:, 1:][mask[:, 1:]], entropy[mask[:, 1:]], atol=1e-4)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 1024])
def test_chunks_of_logits_change_neither_values_nor_gradients(chunk_tokens):
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(8, 50), torch.randn(10, 8, requires_grad=True)
    target = torch.randint(0, 50, (10,))
    logp, _ = sampled_logps(hidden, target, head, temperature=1.0, num_chunks=5, chunk_tokens=chunk_tokens)
    whole = torch.log_softmax(head(hidden), -1).gather(-1, target[:, None])[:, 0]
    assert torch.allclose(logp, whole, atol=1e-6)
    [ours] = torch.autograd.grad(logp.sum(), hidden)
    [expected] = torch.autograd.grad(whole.sum(), hidden)
    assert torch.allclose(ours, expected, atol=1e-6)


def test_samplers_get_hugging_face_names_with_tied_heads(tiny_model):
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    state = synced(make_group(make_config(tiny_model)))
    assert set(state) == set(lm.state_dict())
    assert all(np.array_equal(state[name], value.numpy()) for name, value in lm.state_dict().items())


def all_weights(lm) -> dict[str, torch.Tensor]:
    """Those of ZeRO-3's shards, too; one learner has them all."""
    return {name: getattr(p, "ds_tensor", p).detach().clone() for name, p in lm.named_parameters()}


def test_an_adapter_returns_to_the_weights_it_was_trained_on_in_another_dtype_and_to_no_others(tiny_model, other_model):
    lora = {"r": 4, "lora_alpha": 8}
    group = make_group(make_config(tiny_model, lora=lora, **ADAM))
    update(group, make_samples(6))
    state = group._learner.module[MODULE].get_state()
    for dtype in ("float32", "bfloat16"):
        module = make_group(make_config(tiny_model, lora=lora, dtype=dtype))._learner.module[MODULE]
        module.set_state(state)
        assert all(
            torch.equal(weight, torch.as_tensor(state[name]).to(weight.dtype))
            for name, weight in module.named_parameters()
            if ".lora_" in name
        )
    other = make_group(make_config(other_model, lora=lora))._learner.module[MODULE]
    with pytest.raises(ConfigError, match=f"those of '{re.escape(str(other_model))}' are others. Name the model that"):
        other.set_state(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        module.set_state({name: value for name, value in state.items() if "layers.0" not in name})
    whole = {name: value.numpy() for name, value in group._learner.module[MODULE].state_dict().items()}
    other.set_state(whole)  # as checkpoints had them before
    assert all(np.array_equal(value.numpy(), whole[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("stage", [0, 3])
def test_lora_trains_and_syncs_adapters_only_which_added_to_the_base_are_the_model(tiny_model, stage):
    group = make_group(make_config(tiny_model, lora={"r": 4, "lora_alpha": 8}, zero_stage=stage, kl_coeff=0.1, **ADAM))
    lm = group._learner.module[MODULE].lm
    start, samples = all_weights(lm), make_samples(6)
    first = update(group, samples)
    assert first["ref_kl"] == pytest.approx(0.0, abs=1e-6)  # B starts at 0: the adapted model is the base model
    assert update(group, samples)["ref_kl"] > 0
    after = all_weights(lm)
    changed = {name for name in after if not torch.equal(after[name], start[name])}
    assert changed
    assert all(".lora_" in name for name in changed)
    assert first["num_trainable_parameters"] == sum(after[name].numel() for name in after if ".lora_" in name)
    assert weights(group).keys() - {BASE_HASH} == {f"lm.{name}" for name in after if ".lora_" in name}

    merged = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    base = {name: value.clone() for name, value in merged.state_dict().items()}
    adapter = synced(group)
    assert sum(value.size for value in adapter.values()) == first["num_trainable_parameters"]
    assert all(name.endswith((LORA_A, LORA_B)) for name in adapter)
    merged.load_state_dict(dict(AdaptedWeights(base, adapter)))
    tokens = torch.randint(0, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 12, dtype=torch.bool)
    if stage == 0:  # the module's own forward pass needs no engine there
        ours = group._learner.module[MODULE].forward_train({"tokens": tokens, "mask": mask})["logp"][:, 1:]
        assert torch.allclose(ours, plain_logps(merged, tokens), atol=1e-5)
    moved = {name: value.numpy() - base[name].numpy() for name, value in merged.state_dict().items()}
    assert largest(moved) > 1e-4


@pytest.mark.parametrize("settings", [{"modules_to_save": ["embed_tokens"]}, {"bias": "lora_only"}, {"use_dora": True}])
def test_what_a_lora_sync_would_lose_is_refused(tiny_model, settings):
    with pytest.raises(ConfigError, match="only the factors of linear layers reach the samplers"):
        make_group(make_config(tiny_model, lora={"r": 4, **settings}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_sent_is_the_weights_themselves_tied_ones_once(tiny_model, dtype):
    group = make_group(make_config(tiny_model, dtype=dtype))
    state = group._learner.module[MODULE].lm.state_dict()
    sent = synced(group)
    assert sent["lm_head.weight"] is sent["model.embed_tokens.weight"]
    assert all(isinstance(array, np.ndarray) for array in sent.values())  # what Ray sends by its memory
    for name, weight in Tensors(received(pickle.loads(pickle.dumps(sent, protocol=5)))).items():
        assert weight.dtype == getattr(torch, dtype) and torch.equal(weight, state[name])
        assert sent[name].__array_interface__["data"][0] == state[name].data_ptr()


def test_bfloat16_trains_with_float32_masters(tiny_model):
    group = make_group(make_config(tiny_model, dtype="bfloat16", zero_stage=2, **{**ADAM, "lr": 1e-5}))
    samples = make_samples(6)
    metrics = [update(group, samples) for _ in range(3)]
    assert all(np.isfinite(value) for value in metrics[-1].values())
    assert metrics[0]["gradient_norm"] > 0
    assert received(synced(group))["lm_head.weight"].dtype == torch.bfloat16


def test_deepspeeds_schedule_and_offload_are_passed_through(tiny_model):
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 10, "warmup_type": "linear"}}
    deepspeed = {"scheduler": schedule, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    group = make_group(make_config(tiny_model, zero_stage=2, deepspeed=deepspeed, lr=1e-2))
    rates = [update(group, make_samples(4))["default_optimizer_learning_rate"] for _ in range(4)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] < 1e-2
    assert group._learner.engines[MODULE].zero_cpu_offload()


def test_a_model_whose_head_is_not_its_output_embedding_is_refused(tiny_model, monkeypatch):
    from transformers import Qwen2ForCausalLM

    from rllm_gym.errors import ConfigError
    from rllm_gym.learner.logps import check_head

    class Scaled(Qwen2ForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 3
            return out

    with pytest.raises(ConfigError, match="Scaled does not compute its logits"):
        check_head(Scaled.from_pretrained(tiny_model))


@pytest.mark.promise
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize(
    ("family", "rates"),
    [
        ("OPT", {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5, "ffn_dim": 96, "word_embed_proj_dim": 64}),
        ("Starcoder2", {"residual_dropout": 0.5, "embedding_dropout": 0.5, "attention_dropout": 0.5}),
        ("XGLM", {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5, "layerdrop": 0.5}
         | {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 2}),
        ("Mixtral", {"num_local_experts": 4, "router_jitter_noise": 0.9}),
    ],
)  # fmt: skip
def test_nothing_is_dropped_in_training_whatever_the_model(family, rates, gradient_checkpointing, tmp_path):
    folder = make_family(family, tmp_path, **rates)
    options = {"gradient_checkpointing": gradient_checkpointing, "lora": {"r": 4, "lora_dropout": 0.5}}
    module = make_group(make_config(folder, **options))._learner.module[MODULE]
    module.train()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    tokens = torch.randint(0, 250, (2, 40), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}
    one, two = (module.forward_train(batch)["logp"] for _ in range(2))
    assert torch.equal(one, two) and one.requires_grad


def test_of_experts_no_adapter_is_made_in_silence(tmp_path, caplog):
    folder = make_family("Mixtral", tmp_path)
    group = make_group(make_config(folder, lora={"r": 4}))
    names = synced(group)
    assert names and all("self_attn" in name for name in names)
    [notice] = [line for line in collect_notices(group._learner) if line.startswith("lora")]
    assert "experts, " in notice and notice.endswith("% of it, stay as they are")
    with pytest.raises(ConfigError, match=r"got '.*mlp.experts.*', a parameter of experts"):
        make_group(make_config(folder, lora={"r": 4, "target_parameters": ["mlp.experts.gate_up_proj"]}))
    with pytest.raises(KeyError, match="is of no weight of its base model"):
        AdaptedWeights({}, names)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, []),
        ({"deepspeed": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}}, ["in the trainer alone"]),
        ({"dtype": "bfloat16"}, ["in the sampler and in the trainer"]),
    ],
)
def test_it_is_said_where_rounding_takes_of_an_adapters_effect(tiny_model, options, said):
    learner = make_group(make_config(tiny_model, lora={"r": 4}, **options))._learner
    lines = [line for line in collect_notices(learner) if line.startswith("lora: ")]
    assert len(lines) == len(said) and all(words in line for line, words in zip(lines, said, strict=True))
