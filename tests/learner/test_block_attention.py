"""Attention by blocks is attention under the mask that the blocks stand for: what it returns, and its gradient."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig, Qwen2Config

from rllm_gym.learner import block_attention
from rllm_gym.learner.batch import Batch, collate
from rllm_gym.learner.block_attention import NAME
from rllm_gym.learner.packing import Packing, Tree, _Rows
from rllm_gym.learner.probes import collect_notices
from rllm_gym.learner.rl_module import load_language_model
from tests.learner.learner_helpers import MODULE, distance, gradient, largest, make_config, make_group
from tests.learner.test_packing import SIZES, save
from tests.learner.test_shared_prefixes import make_branches

# Of three sequences: how many tokens each has in common with the one before it, and how long each is.
SHAPES = {
    "alone": ([0], [9]),
    "a prompt and its samples": ([0, 4, 4], [9, 7, 11]),
    "each goes on from all of the last": ([0, 5, 8], [5, 8, 12]),
    "a branch of a branch": ([0, 5, 7], [8, 10, 9]),
    "back to an earlier fork": ([0, 6, 2], [9, 12, 8]),
    "twice the same": ([0, 9, 3], [9, 9, 6]),
    "a beginning of the one before it": ([0, 4, 2], [9, 4, 5]),
}


def packing_of(*shapes: str) -> Packing:
    """Pack a tree of each shape into rows of 25 tokens."""
    rows = _Rows(25, 100, is_packed=True)
    for k, shape in enumerate(shapes):
        forks, lengths = SHAPES[shape]
        rows.place([Tree([3 * k + i for i in range(len(forks))], forks, lengths)])
    packing = rows.packing(12, "cpu")
    assert packing is not None
    return packing


def attended(packing: Packing, dtype: torch.dtype, *, by_blocks: bool) -> list[torch.Tensor]:
    """Return what the tokens of sequences get, and the gradient of a weighted sum by query, key and value."""
    rng = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(packing.num_rows, heads, packing.width, 8, generator=rng).to(dtype).requires_grad_()
        for heads in (4, 2, 2)
    )
    is_used_P = torch.zeros(packing.num_rows * packing.width, dtype=torch.bool)
    is_used_P[packing.places[packing.places >= 0]] = True
    weight = torch.randn(packing.num_rows, packing.width, 4, 8, generator=rng) * is_used_P.view(-1, packing.width, 1, 1)
    module = mock.Mock(num_key_value_groups=2, is_causal=True)
    attention_mask = packing.attention_mask(by_blocks=by_blocks)
    out, _ = block_attention._attention(module, query, key, value, attention_mask, scaling=0.4)
    out = out.float() * (weight != 0)
    return [out, *torch.autograd.grad((out * weight).sum(), (query, key, value))]


@pytest.mark.parametrize("shapes", [*([shape] for shape in SHAPES if shape != "alone"), SHAPES], ids=" and ".join)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.05)])
def test_it_is_attention_under_a_mask(shapes, dtype, tolerance):
    packing = packing_of(*shapes)
    expected, found = (attended(packing, dtype, by_blocks=by_blocks) for by_blocks in (False, True))
    assert all(part.abs().max() > 0.5 for part in expected)
    for a, b in zip(expected, found, strict=True):
        assert (a - b).abs().max() < tolerance * max(1.0, float(a.abs().max()))


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        # p p p p a a a a a b b b c c c c c c c: b and c go on from p, side by side.
        (
            "a prompt and its samples",
            [(0, 0, 9, 0, 9, 1), (0, 9, 12, 9, 12, 1), (0, 12, 19, 12, 19, 1), (0, 9, 19, 0, 4, 0)],
        ),
        ("each goes on from all of the last", [(0, 0, 12, 0, 12, 1)]),
        ("twice the same", [(0, 0, 9, 0, 9, 1), (0, 9, 12, 9, 12, 1), (0, 9, 12, 0, 3, 0)]),
    ],
)
def test_a_tree_has_few_blocks(shape, blocks):
    assert packing_of("alone", shape).blocks[0] == (0, 0, 9, 0, 9, 1)
    rows = _Rows(25, 100, is_packed=True)
    rows.place([Tree([0, 1, 2], *SHAPES[shape])])
    assert rows.packing(12, "cpu").blocks == blocks


@pytest.mark.parametrize("share", [False, True])
def test_a_learner_reads_blocks_and_trains_as_with_padded_rows(tiny_model, share):
    samples, gradients = make_branches(12), []
    for options in ({"packing": False}, {"packing": True, "share_prefixes": share, "tokens_per_micro_batch": 400}):
        group = make_group(make_config(tiny_model, clip_low=1e9, clip_high=1e9, **options))
        with mock.patch.object(block_attention, "_BlockAttention", wraps=block_attention._BlockAttention) as used:
            gradients.append(gradient(group, samples))
        assert used.apply.called is options["packing"]
    assert largest(gradients[0]) > 0.1
    assert distance(*gradients) < 1e-5 * max(1.0, largest(gradients[0]))


@pytest.mark.parametrize("how", [True, "selective"])
def test_recomputing_activations_changes_nothing(tiny_model, how):
    samples, gradients, counts = make_branches(6), [], []
    for checkpointing in (False, how):
        group = make_group(make_config(tiny_model, gradient_checkpointing=checkpointing, clip_low=1e9, clip_high=1e9))
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        with Count(attend.default) as count:
            gradients.append(gradient(group, samples))
        counts.append(count.calls)
    assert largest(gradients[0]) > 0.1
    assert distance(*gradients) < 1e-6
    # What costs most is computed once again, or not.
    assert counts[1] == (counts[0] if how == "selective" else 2 * counts[0])


def test_of_products_only_keys_and_values_are_computed_again(tiny_model):
    samples, counts = make_branches(6), []
    for checkpointing in (False, "selective"):
        group = make_group(make_config(tiny_model, gradient_checkpointing=checkpointing))
        with Count(torch.ops.aten.addmm.default) as with_bias, Count(torch.ops.aten.mm.default) as without:
            gradient(group, samples)
        counts.append((with_bias.calls, without.calls))
    # Of both layers; they alone have a bias, with the queries, and are narrower than what they are made from. A layer's
    # last product is narrower, too, and nothing needs it again.
    assert counts[1] == (counts[0][0] + 2 * 2, counts[0][1])


class Count(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the calls of an operation."""

    def __init__(self, operation) -> None:
        super().__init__()
        self.operation, self.calls = operation, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += function is self.operation
        return function(*args, **(kwargs or {}))


AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}


@pytest.mark.parametrize(
    ("options", "capabilities", "is_slow"),
    [
        ({"deepspeed": AUTOCAST}, {"architecture": "x86_64", "avx2": True, "avx512_f": False}, True),
        ({"dtype": "bfloat16"}, {"architecture": "x86_64", "avx2": True, "avx512_f": False}, True),
        ({"deepspeed": AUTOCAST}, {"architecture": "x86_64", "avx512_f": True}, False),
        ({"deepspeed": AUTOCAST}, {"architecture": "aarch64", "bf16": True}, False),
        ({}, {"architecture": "x86_64", "avx2": True, "avx512_f": False}, False),
    ],
)
def test_it_is_said_where_products_in_16_bits_are_slow(tiny_model, monkeypatch, options, capabilities, is_slow):
    learner = make_group(make_config(tiny_model, **options))._learner
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    lines = [line for line in collect_notices(learner) if "products in 16 bits take many times as long" in line]
    assert len(lines) == is_slow


def test_products_in_bfloat16_attend_in_bfloat16(tiny_model):
    learner, seen = make_group(make_config(tiny_model, deepspeed=AUTOCAST))._learner, []
    [part] = learner.micro_batches(MODULE, Batch.from_mapping(collate(make_branches(6))))
    attend = block_attention._BlockAttention.apply

    def watched(*inputs):
        seen.extend(value.dtype for value in inputs[:3])
        return attend(*inputs)

    with mock.patch.object(block_attention._BlockAttention, "apply", watched):
        learner.engines[MODULE](part.model_inputs)
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        (Qwen2Config(**SIZES), NAME),
        (MistralConfig(**SIZES, sliding_window=5), "sdpa"),
        (Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1), "sdpa"),
        (GPT2Config(vocab_size=200, n_positions=512, n_embd=32, n_layer=2, n_head=2), NAME),
    ],
    ids=lambda of: getattr(of, "model_type", None),
)
def test_models_attend_by_blocks_whose_layers_see_the_whole_row(config, attention, tmp_path):
    assert load_language_model(str(save(config, tmp_path)), "float32").config._attn_implementation == attention


def test_an_exported_model_knows_nothing_of_it(tiny_model, tmp_path):
    lm = load_language_model(str(tiny_model), "float32")
    lm.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
