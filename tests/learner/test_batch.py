"""Samples as token batches: collated, dealt to learners and to minibatches, cut to a budget."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
import torch

from rllm_gym.algorithms.functional import Counts, aggregate, negative_log_likelihood
from rllm_gym.learner.batch import Batch, SampleData, collate, deal, number_lots
from rllm_gym.learner.packing import split_into_micro_batches
from rllm_gym.types import Sample


def make_samples(lengths, seed=0, **labels):
    rng = np.random.default_rng(seed)
    return [Sample(rng.integers(0, 200, n), rng.integers(0, 2, n).astype(np.float32), **labels) for n in lengths]


def make_units(num, seed=0):
    """Samples of episodes with one to three agents, of which some have two parts; in a mixed order."""
    rng = np.random.default_rng(seed)
    samples = []
    for k in range(num):
        for agent in range(int(rng.integers(1, 4))):
            for part in range(int(rng.integers(1, 3))):
                labels = {"episode": f"e{k}", "agent": f"a{agent}", "context_index": part}
                samples += make_samples([int(rng.integers(2, 60))], seed=len(samples), **labels)
    return [samples[k] for k in rng.permutation(len(samples))]


def make_pairs(lengths):
    samples = make_samples(lengths)
    return [
        dataclasses.replace(sample, pair=k // 2, is_chosen=k % 2 == 0, ref_logp_sum=float(k))
        for k, sample in enumerate(samples)
    ]


def owners(samples, shards):
    """Which shards hold something of each episode or pair."""
    found = defaultdict(set)
    for number, shard in enumerate(shards):
        for index in shard:
            found[samples[index].episode or samples[index].pair].add(number)
    return list(found.values())


def largest_unit(samples):
    sizes = defaultdict(int)
    for sample in samples:
        sizes[sample.episode or sample.pair] += len(sample)
    return max(sizes.values())


def test_samples_are_padded_on_the_right_with_what_no_mask_shows():
    # P a E a | P P a F
    first = Sample(np.array([10, 1, 20, 2]), np.array([0, 1, 0, 0.5], np.float32), advantage=np.full(4, 3, np.float32))
    second = Sample(np.array([11, 3]), np.ones(2, np.float32), advantage=np.full(2, -1, np.float32))
    out = collate([first, second])
    assert out["index"].tolist() == [1, 0]  # shortest first
    assert out["lengths"].tolist() == [2, 4]
    assert out["tokens"].tolist() == [[11, 3, 0, 0], [10, 1, 20, 2]]
    # the first token is predicted by nothing
    assert out["mask"].tolist() == [[False, True, False, False], [False, True, False, True]]
    assert out["weight"].tolist() == [[0, 1, 0, 0], [0, 1, 0, 0.5]]
    assert out["advantage"].tolist() == [[-1, -1, 0, 0], [3, 3, 3, 3]]
    assert out["episode_tokens"].tolist() == [1, 2]
    assert "old_logp" not in out  # neither has it
    second.old_logp = np.zeros(2, np.float32)
    assert "old_logp" not in collate([first, second])


def test_the_tokens_of_an_episode_are_counted_over_all_its_samples():
    samples = make_samples([9, 5, 7], seed=1, episode="e") + make_samples([30], seed=5)
    batch = Batch.from_mapping(collate(samples))
    of_episode = sum(int((sample.weight[1:] != 0).sum()) for sample in samples[:3])
    alone = int((samples[3].weight[1:] != 0).sum())
    assert batch.per_sample["episode_tokens"].tolist() == [of_episode] * 3 + [alone]
    assert batch.lengths.tolist() == [9, 5, 7, 30]  # an episode's rows stay together, in their order
    assert batch.counts().tolist() == [of_episode + alone, 2, 2]  # however many contexts it has, it is one sequence
    samples[2].agent = "another"
    batch = Batch.from_mapping(collate(samples))
    assert batch.counts().tolist() == [of_episode + alone, 3, 2]
    of_agent = sum(int((sample.weight[1:] != 0).sum()) for sample in samples[:2])
    assert batch.per_sample["sequence_tokens"].tolist() == [of_agent, of_agent, of_episode - of_agent, alone]


def test_nobody_gets_an_empty_batch():
    full, empty = collate([Sample(*(np.ones(3, np.float32),) * 2, advantage=np.ones(3, np.float32))]), collate([])
    assert empty["tokens"].shape == (1, 2) and not empty["mask"].any()
    assert set(full) <= set(empty)
    assert Batch.from_mapping(empty).counts().tolist() == [0, 0, 0]


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
def test_the_samples_of_an_episode_go_to_one_learner_and_every_sample_to_one(num_shards):
    samples = make_units(60)
    shards = deal(samples, num_shards)
    assert sorted(index for shard in shards for index in shard) == list(range(len(samples)))
    assert all(len(numbers) == 1 for numbers in owners(samples, shards))
    sizes = [sum(len(samples[index]) for index in shard) for shard in shards]
    assert max(sizes) - min(sizes) <= largest_unit(samples)


@pytest.mark.parametrize("num_shards", [2, 3])
def test_the_two_of_a_pair_go_to_one_learner(num_shards):
    samples = make_pairs(np.random.default_rng(1).integers(2, 60, 80).tolist())
    shards = deal(samples, num_shards)
    assert sorted(index for shard in shards for index in shard) == list(range(80))
    assert all(len(numbers) == 1 for numbers in owners(samples, shards))
    sizes = [sum(len(samples[index]) for index in shard) for shard in shards]
    assert max(sizes) - min(sizes) <= largest_unit(samples)


def test_samples_that_stand_for_themselves_are_dealt_about_evenly():
    samples = make_samples([10, 1, 9, 2, 8, 3])
    assert deal(samples, 2) == [
        [0, 5, 3, 1],
        [2, 4],
    ]  # the next longest to the lightest: 10 + 3 + 2 + 1 and 9 + 8 tokens
    shards = [data.episodes for data, _ in SampleData(episodes=samples).shard(2)]
    assert shards == [[samples[k] for k in shard] for shard in deal(samples, 2)]
    assert deal(samples[:1], 3) == [[0], [], []]


@pytest.mark.parametrize("count", [2, 3])
def test_minibatches_part_no_episode_and_hold_every_row_once(count):
    batch = Batch.from_mapping(collate(make_units(20)))
    minibatches = list(batch.minibatches(count))
    assert len(minibatches) == count
    indices = [minibatch.per_sample["index"].tolist() for minibatch in minibatches]
    assert sorted(index for part in indices for index in part) == list(range(len(batch.lengths)))
    episodes = [set(minibatch.episode.tolist()) for minibatch in minibatches]
    assert not set.intersection(*episodes) and len(set.union(*episodes)) == 20
    # rows that were whole episodes are whole episodes still
    assert sum(float(minibatch.counts()[2]) for minibatch in minibatches) == float(batch.counts()[2])


def first_minibatches(samples, num_learners, count, epoch):
    """What each minibatch of an epoch holds, over all learners."""
    found = [set() for _ in range(count)]
    for share in deal(samples, num_learners):
        batch = Batch.from_mapping(collate([samples[k] for k in share]))
        for into, minibatch in zip(found, batch.minibatches(count, seed=3, epoch=epoch), strict=True):
            into |= {share[k] for k in minibatch.per_sample["index"].tolist()}
    return found


@pytest.mark.parametrize("epoch", [0, 1])
def test_what_a_minibatch_holds_depends_on_no_number_of_learners(epoch):
    samples = [sample for k in range(12) for sample in make_samples([9, 4], seed=k, episode=f"e{k}")]
    for k, sample in enumerate(samples):
        sample.group = k // 8  # four episodes of each of three tasks
    one, two, three = (first_minibatches(samples, n, 2, epoch) for n in (1, 2, 3))
    assert one == two == three
    groups = [{samples[k].group for k in minibatch} for minibatch in one]
    assert sorted(map(len, groups)) == [1, 2] and not set.intersection(*groups)  # what is compared stays together


def test_every_epoch_shuffles_the_tasks_anew_and_one_minibatch_keeps_its_order():
    samples = make_samples([5] * 24)
    for k, sample in enumerate(samples):
        sample.group, sample.episode = k // 2, f"e{k}"
    number_lots(samples, 3)
    batch = Batch.from_mapping(collate(samples))
    orders = [
        [part.per_sample["lot"].tolist() for part in batch.minibatches(3, seed=seed, epoch=epoch)]
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({str(order) for order in orders}) == 4
    assert orders[0] == [part.per_sample["lot"].tolist() for part in batch.minibatches(3, seed=0, epoch=0)]
    for order in orders:
        assert sorted(lot for part in order for lot in part) == sorted(k // 2 for k in range(24))
    assert [part is batch for part in batch.minibatches(1, seed=0, epoch=1)] == [True]


def test_an_episodes_agents_are_in_one_lot_though_in_other_groups():
    samples = make_samples([5] * 6)
    for sample, group, episode in zip(samples, (0, 1, 0, 1, 2, 2), ("a", "b", "c", "c", "d", "e"), strict=True):
        sample.group, sample.episode = group, episode
    number_lots(samples, 2)
    assert [(sample.lot, sample.num_lots) for sample in samples] == [(0, 2)] * 4 + [(1, 2)] * 2
    number_lots(samples, 3)  # fewer tasks than minibatches: by episodes
    assert [sample.lot for sample in samples] == [0, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("observation_weight", [0.0, 1e-6, 0.1])
def test_a_loss_is_divided_by_the_sum_of_the_weights(observation_weight):
    # 90 tokens of the environment, of which one has nothing before it, and 10 of the assistant.
    weight = np.r_[np.full(90, observation_weight), np.ones(10)].astype(np.float32)
    batch = Batch.from_mapping(collate([Sample(np.arange(100), weight)]))
    logp = torch.full(batch.tokens.shape, -2.0, requires_grad=True)
    loss_BT = negative_log_likelihood(logp, batch.per_token["weight"], batch.mask)
    loss = aggregate(loss_BT, batch.mask, over="tokens", counts=Counts(*batch.counts()))
    loss.backward()
    assert loss.item() == pytest.approx(2.0)  # nats per weighted token
    assert logp.grad[0, -1].item() == pytest.approx(-1 / (10 + 89 * observation_weight))


@pytest.mark.parametrize("is_packed", [True, False])
def test_micro_batches_keep_the_budget_and_the_pairs_together(is_packed):
    batch = Batch.from_mapping(collate(make_pairs(np.random.default_rng(1).integers(2, 60, 80).tolist())))
    parts = split_into_micro_batches(batch, 256, is_packed=is_packed)
    for part in parts:
        rows = part.packing.num_rows if part.packing else len(part.rows)
        width = part.packing.width if part.packing else int(part.batch.lengths.max())
        assert rows * width <= 256
        assert part.batch.per_sample["is_chosen"].tolist() == [True, False] * (len(part.rows) // 2)
        pairs = part.batch.per_sample["pair"].tolist()
        assert pairs[::2] == pairs[1::2]
    assert sorted(row for part in parts for row in part.rows.tolist()) == list(range(80))
    for minibatch in batch.minibatches(3):
        pairs = minibatch.per_sample["pair"].tolist()
        assert pairs[::2] == pairs[1::2]


def test_a_pair_that_exceeds_the_budget_still_goes_through_whole():
    [part] = split_into_micro_batches(Batch.from_mapping(collate(make_pairs([50, 60]))), 10, is_packed=True)
    assert len(part.rows) == 2


def test_the_parts_of_an_episode_need_not_share_a_micro_batch():
    """Their average over the episode has its tokens counted beforehand; only a pair's loss needs both of its rows."""
    batch = Batch.from_mapping(collate(make_samples([50, 60], episode="e")))
    assert [len(part.rows) for part in split_into_micro_batches(batch, 60, is_packed=True)] == [1, 1]


def test_positions_begin_anew_with_every_sequence():
    batch = Batch.from_mapping(collate(make_samples([2, 3, 5])))
    [part] = split_into_micro_batches(batch, 100, is_packed=True)
    tokens, positions = part.packing.pack(part.batch.tokens)
    # rows are as long as the longest; the longest comes first
    assert positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert tokens[0].tolist() == batch.tokens[2].tolist()
    assert tokens[1].tolist() == batch.tokens[1, :3].tolist() + batch.tokens[0, :2].tolist()
    # where each sequence's tokens are in the flattened rows, in the micro-batch's order
    assert part.rows.tolist() == [2, 1, 0]
    sequence = torch.tensor([0, 0, 1, 1, 2, 2])
    column = torch.tensor([0, 4, 0, 2, 0, 1])
    assert part.packing.place(sequence, column).tolist() == [0, 4, 5, 7, 8, 9]


def test_the_empty_end_of_a_row_is_a_sequence_of_its_own():
    batch = Batch.from_mapping(collate(make_samples([3, 2, 7])))
    [part] = split_into_micro_batches(batch, 100, is_packed=True)
    _, positions = part.packing.pack(part.batch.tokens)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 0, 1]]
