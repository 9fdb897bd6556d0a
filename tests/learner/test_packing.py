"""Packing several sequences into a row: no log-probability and no gradient changes, and no pair is parted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rllm_gym.learner.packing import pack_into_micro_batches
from rllm_gym.learner.samples import Pair, SampleData, collate_pairs, collate_samples
from transformers import AutoModelForCausalLM

from rllm_gym.learner.batch import Batch
from rllm_gym.learner.rl_module import last_hidden_state, logps_of
from rllm_gym.types import Sample


def make_samples(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [Sample(rng.integers(0, 200, n), rng.integers(0, 2, n).astype(np.float32)) for n in lengths]


def logps_and_gradient(lm, parts):
    """The log-probabilities in the batch's order, and the gradient of their weighted sum."""
    lm.zero_grad()
    rows = {}
    for part in parts:
        tensors = part.tensors
        hidden = last_hidden_state(lm, tensors["tokens"], part.packing)
        logp = logps_of(lm, hidden, tensors["tokens"], tensors["mask"], temperature=1.0)["logp"]
        (logp * tensors["weight"]).sum().backward()
        for row, values in zip(part.rows.tolist(), logp.detach(), strict=True):
            rows[row] = values[: int(part.batch.lengths[part.rows.tolist().index(row)])]
    return [rows[row] for row in sorted(rows)], [p.grad.clone() for p in lm.parameters()]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packing_changes_no_log_probability_and_no_gradient(tiny_model, attention):
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation=attention)
    lengths = [40, 3, 17, 2, 25, 9, 40, 1, 12]
    batch = Batch.from_mapping(collate_samples(make_samples(lengths)))
    alone = pack_into_micro_batches(batch, 1, is_packed=False)
    packed = pack_into_micro_batches(batch, 80, is_packed=True)
    assert len(alone) == len(lengths)
    # 149 tokens in rows of 40 at first, two rows at a time
    assert any(part.packing is not None and part.packing.num_rows < len(part.rows) for part in packed)
    assert sum(part.packing.num_rows if part.packing else len(part.rows) for part in packed) < len(lengths)
    logps, gradient = logps_and_gradient(lm, alone)
    packed_logps, packed_gradient = logps_and_gradient(lm, packed)
    for a, b in zip(logps, packed_logps, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    largest = max(g.abs().max() for g in gradient)
    assert largest > 0.1
    for a, b in zip(gradient, packed_gradient, strict=True):
        assert (a - b).abs().max() < 1e-5 * largest


def test_positions_begin_anew_with_every_sequence():
    batch = Batch.from_mapping(collate_samples(make_samples([2, 3, 5])))
    [part] = pack_into_micro_batches(batch, 100, is_packed=True)
    tokens, positions = part.packing.pack(part.batch.tokens)
    # rows are as long as the longest; the longest comes first
    assert positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert tokens[0].tolist() == batch.tokens[2].tolist()
    assert tokens[1].tolist() == batch.tokens[1, :3].tolist() + batch.tokens[0, :2].tolist()
    hidden = torch.arange(10.0).view(2, 5, 1)
    unpacked = part.packing.unpack(hidden, 5)[..., 0]
    in_order = dict(zip(part.rows.tolist(), unpacked.tolist(), strict=True))
    assert in_order == {2: [0, 1, 2, 3, 4], 1: [5, 6, 7, 0, 0], 0: [8, 9, 0, 0, 0]}


@pytest.mark.parametrize("is_packed", [True, False])
def test_micro_batches_keep_the_budget_and_the_pairs_together(is_packed):
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, 60, 80).tolist()
    samples = make_samples(lengths)
    pairs = [Pair(a, b, 0.1, 0.2) for a, b in zip(samples[::2], samples[1::2], strict=True)]
    batch = Batch.from_mapping(collate_pairs(pairs))
    parts = pack_into_micro_batches(batch, 256, is_packed=is_packed)
    for part in parts:
        rows = part.packing.num_rows if part.packing else len(part.rows)
        width = part.packing.width if part.packing else int(part.batch.lengths.max())
        assert rows * width <= 256
        assert part.batch.per_sequence["is_chosen"].tolist() == [True, False] * (len(part.rows) // 2)
        owners = part.batch.per_sequence["pair"].tolist()
        assert owners[::2] == owners[1::2]
    assert sorted(row for part in parts for row in part.rows.tolist()) == list(range(80))
    for minibatch in batch.minibatches(3):
        owners = minibatch.per_sequence["pair"].tolist()
        assert owners[::2] == owners[1::2]


def test_a_pair_that_exceeds_the_budget_still_goes_through_whole():
    pair = Pair(*make_samples([50, 60]))
    [part] = pack_into_micro_batches(Batch.from_mapping(collate_pairs([pair])), 10, is_packed=True)
    assert len(part.rows) == 2


def test_samples_and_pairs_are_dealt_whole_and_about_evenly():
    items = make_samples([10, 1, 9, 2, 8, 3])
    shards = [data.episodes for data, _ in SampleData(episodes=items).shard(2)]
    assert sorted(len(sample) for shard in shards for sample in shard) == [1, 2, 3, 8, 9, 10]
    assert [sum(map(len, shard)) for shard in shards] == [10 + 8 + 2, 9 + 3 + 1]


def test_the_first_token_is_never_learnt_and_nobody_gets_an_empty_batch():
    batch = collate_samples([Sample(np.array([4, 5]), np.ones(2, np.float32))])
    assert batch["mask"].tolist() == [[False, True]]
    empty = collate_samples([])
    assert empty["tokens"].shape == (1, 2) and not empty["mask"].any()
