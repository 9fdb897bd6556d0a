"""What samples begin with in common is read once: nothing that is learnt changes, and fewer tokens are read."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from transformers import Qwen2Config

from rllm_gym.learner.batch import Batch, collate
from rllm_gym.learner.packing import grow_trees, in_token_order, split_into_micro_batches
from rllm_gym.training.algorithm import LLMAlgorithm
from rllm_gym.types import Sample
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
from tests.learner.test_packing import SIZES, plain_logps, save


def make_branches(num: int, seed: int = 0) -> list[Sample]:
    """Samples in threes: the second goes on where the first has got to its half, the third begins with its prompt."""
    samples = make_samples(num, seed, num_turns=6)
    for k in range(0, num - 2, 3):
        first, second, third = (samples[k + i].tokens for i in range(3))
        for other, common in ((second, len(first) // 2), (third, len(first) // 4)):
            common = min(common, len(other))
            other[:common] = first[:common]
    rng = np.random.default_rng(seed)
    for sample in samples:  # PPO's critic wants them
        sample.value, sample.value_target = rng.normal(size=(2, len(sample.tokens))).astype(np.float32)
    return samples


def batch_of(*tokens: list[int]) -> Batch:
    return Batch.from_mapping(collate([Sample(np.array(t), np.ones(len(t), np.float32)) for t in tokens]))


def num_read(parts) -> int:
    return sum(
        part.packing.num_rows * part.packing.width if part.packing else part.batch.tokens.numel() for part in parts
    )


@pytest.mark.parametrize(
    ("method", "budget", "by_masks"),
    [("GRPO", 400, False), ("GRPO", 4000, True), ("PPO", 400, True), ("PPO", 4000, False), ("SFT", 400, False)],
)
def test_it_changes_no_log_probability_and_no_gradient(tiny_model, method, budget, by_masks, monkeypatch):
    monkeypatch.setattr(
        "rllm_gym.learner.deepspeed.attention_knee", lambda lm, device: math.inf
    )  # so that all is shared
    if by_masks:  # as on a GPU
        monkeypatch.setattr("rllm_gym.learner.logps.reads_blocks", lambda lm, device: False)
    samples, gradients, logps, counts = make_branches(12), [], [], []
    for share in (False, True):
        options = {"share_prefixes": share, "tokens_per_micro_batch": budget}
        if method != "SFT":
            options |= {"clip_low": 1e9, "clip_high": 1e9}
        group = make_group(make_config(tiny_model, method, **options))
        parts = list(group._learner.micro_batches(MODULE, Batch.from_mapping(collate(samples))))
        assert any(part.packing is not None and part.packing.mask is not None for part in parts) is share
        counts.append(num_read(parts))
        driver_of(group).score(samples, ["trainer_logp"])
        logps.append([sample.trainer_logp for sample in samples])
        gradients.append(gradient(group, samples))
    for alone, shared, sample in zip(*logps, samples, strict=True):
        assert np.abs(alone - shared).max() < 1e-5
        assert np.abs(shared - plain_logps(tiny_model, sample)).max() < 1e-5
    assert largest(gradients[0]) > 0.1
    assert distance(*gradients) < 1e-5 * max(1.0, largest(gradients[0]))
    assert counts[1] < 0.85 * counts[0]


def test_a_tree_has_its_common_tokens_once():
    batch = batch_of([1, 2, 3, 4, 5], [1, 2, 3, 6], [7, 8], [1, 2, 9, 9], [1, 2, 3, 4, 5])
    [tree, alone] = grow_trees(batch, in_token_order(batch), 100, math.inf)
    tokens = [batch.tokens[row, :length].tolist() for row, length in zip(tree.rows, tree.lengths, strict=True)]
    assert tokens == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2, 9, 9]]
    assert tree.forks == [0, 5, 3, 2]
    assert (tree.num_tokens, alone.num_tokens) == (8, 2)


def test_a_token_attends_to_its_own_sequence_alone():
    [part] = split_into_micro_batches(batch_of([1, 2, 3], [1, 2, 4, 5], [6, 7]), 100, is_packed=True, knee=math.inf)
    tokens, positions = part.packing.pack(part.batch.tokens)
    read = {}
    for row, length in enumerate(part.batch.lengths.tolist()):
        place = int(part.packing.place(torch.tensor([row]), torch.tensor([length - 1])))
        r, w = divmod(place, part.packing.width)
        read[tuple(part.batch.tokens[row, :length].tolist())] = tokens[r][part.packing.mask[r, w]].tolist()
        assert positions[r, w] == length - 1
    assert read == {(1, 2, 3): [1, 2, 3], (1, 2, 4, 5): [1, 2, 4, 5], (6, 7): [6, 7]}


def test_a_long_row_that_saves_little_is_not_made_and_the_budget_is_kept():
    long = [[1] * 10 + [k] * 90 for k in range(4)]
    assert [len(tree.rows) for tree in grow_trees(batch_of(*long), range(4), 10_000, math.inf)] == [4]
    assert [len(tree.rows) for tree in grow_trees(batch_of(*long), range(4), 10_000, 50.0)] == [1, 1, 1, 1]
    assert [len(tree.rows) for tree in grow_trees(batch_of(*long), range(4), 200, math.inf)] == [2, 2]
    for part in split_into_micro_batches(batch_of(*long), 200, is_packed=True, knee=math.inf):
        assert part.packing.num_rows * part.packing.width <= 200


def test_pairs_share_within_themselves_and_stay_whole():
    samples = make_branches(12)
    for k, sample in enumerate(samples):
        sample.pair, sample.is_chosen, sample.episode = k // 2, k % 2 == 0, None
    for part in split_into_micro_batches(Batch.from_mapping(collate(samples)), 300, is_packed=True, knee=math.inf):
        pairs = part.batch.per_sample["pair"].tolist()
        assert pairs[::2] == pairs[1::2]
        assert part.batch.per_sample["is_chosen"].tolist() == [True, False] * (len(pairs) // 2)


def test_layers_that_see_only_what_is_near_are_left_alone_and_it_is_said(tmp_path, monkeypatch, caplog):
    config = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1)
    group = make_group(make_config(save(config, tmp_path), share_prefixes=True))
    assert group._learner.packing_fault is None
    assert group._learner.sharing_fault == "some of its layers see only what is near"
    samples = make_branches(6)
    parts = list(group._learner.micro_batches(MODULE, Batch.from_mapping(collate(samples))))
    assert all(part.packing is None or part.packing.mask is None for part in parts)
    driver = driver_of(group)
    monkeypatch.setattr("ray.rllib.algorithms.algorithm.Algorithm.setup", lambda *args: None)
    driver.env_runner_group = None
    with caplog.at_level(logging.WARNING):
        LLMAlgorithm.setup(driver, driver.config)
    assert "share_prefixes" in caplog.text and "see only what is near" in caplog.text
