"""DPO: the gradient against plain torch, the reference, learning from sampled pairs, resuming."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.algorithms.dpo import DPO, DPOConfig
from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.learner.batch import deal
from tests.algorithms.algorithm_helpers import equal, module_weights, not_finite
from tests.algorithms.offline_helpers import make_samples, offline_config
from tests.learner.learner_helpers import distance, gradient, largest, make_config, make_group, step

pytestmark = pytest.mark.slow


def make_pairs(num):
    """Pairs of random samples; the references are near what a random model of 259 tokens gives."""
    samples = make_samples(2 * num)
    rng = np.random.default_rng(5)

    def ref_logp(sample):
        return float(-7.0 * (sample.weight[1:] > 0).sum() + rng.normal())

    for k, sample in enumerate(samples):
        sample.pair, sample.is_chosen, sample.ref_logp_sum = k // 2, k % 2 == 0, ref_logp(sample)
    return samples


def plain_gradient(base_model, pairs, loss_of_margin):
    lm = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)

    def logp_of(sample):
        ids, mask = torch.tensor(sample.tokens), torch.tensor(sample.weight > 0)
        logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
        return logp[mask[1:]].sum()

    over_reference = [logp_of(sample) - sample.ref_logp_sum for sample in pairs]
    margins = [chosen - rejected for chosen, rejected in zip(over_reference[::2], over_reference[1::2], strict=True)]
    loss = torch.stack([loss_of_margin(margin) for margin in margins]).mean()
    loss.backward()
    gradient = {f"lm.{name}": parameter.grad.numpy() for name, parameter in lm.named_parameters()}
    return gradient, loss.item(), [margin.item() for margin in margins]


def sigmoid(margin):
    return -0.9 * torch.log(torch.sigmoid(0.05 * margin)) - 0.1 * torch.log(torch.sigmoid(-0.05 * margin))


def ipo(margin):
    return 0.9 * (margin - 10.0) ** 2 + 0.1 * (margin + 10.0) ** 2  # 1 / (2 beta) = 10


@pytest.mark.promise
@pytest.mark.parametrize(("kind", "loss_of_margin"), [("sigmoid", sigmoid), ("ipo", ipo)])
def test_the_gradient_is_that_of_the_mean_over_pairs_however_they_are_cut(tiny_model, kind, loss_of_margin):
    pairs = make_pairs(6)
    plain, loss, margins = plain_gradient(tiny_model, pairs, loss_of_margin)
    options = {"kind": kind, "beta": 0.05, "label_smoothing": 0.1, "tokens_per_micro_batch": 90}
    ours, metrics = step(make_group(make_config(tiny_model, "DPO", **options)), pairs)
    assert distance(plain, {name: ours[name] for name in plain}) < 1e-4 * largest(plain)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-3)
    assert metrics["margin"] == pytest.approx(0.05 * np.mean(margins), rel=1e-3)
    assert metrics["accuracy"] == pytest.approx(np.mean(np.array(margins) > 0))
    assert metrics["chosen_reward"] - metrics["rejected_reward"] == pytest.approx(metrics["margin"], rel=1e-4)
    assert metrics["gradient_norm"] > 0


@pytest.mark.parametrize("stage", [2, 3])
def test_two_learners_change_no_gradient_and_no_reference(tiny_model, two_learners, stage):
    pairs = make_pairs(5)  # three for one learner, two for the other
    one = make_group(make_config(tiny_model, "DPO"))
    two = two_learners(make_config(tiny_model, "DPO", zero_stage=stage, tokens_per_micro_batch=80))
    shards = deal(pairs, 2)

    def logps_of(group, shards):
        scored = group.foreach_learner(lambda learner: learner.score(pairs, shards, ["trainer_logp"]))
        found = dict(part for result in scored for part in result.get())
        return [found[k]["trainer_logp"].sum(dtype=np.float64) for k in range(len(pairs))]

    assert np.allclose(logps_of(one, [range(len(pairs))]), logps_of(two, shards), atol=1e-3)
    assert sorted(k // 2 for shard in shards for k in shard[::2]) == [0, 1, 2, 3, 4]
    whole = gradient(one, pairs)
    assert distance(whole, gradient(two, pairs)) < 1e-5 * largest(whole)


def test_it_learns_from_pairs_that_the_initial_policy_samples(tiny_model, build):
    config = offline_config(
        DPOConfig(), tiny_model, num_sampled_groups=64, group_size=8, beta=0.1, lr=1e-3, num_minibatches=2,
        pairs_within="group", save_trajectories=True, evaluation_interval=15, evaluation_splits=["train"],
        num_evaluation_samples=4, evaluation_duration=64, samples_per_step=32, env_config={"num_turns": 2},
    )  # fmt: skip
    algo = build(config)
    results = [algo.train() for _ in range(15)]
    first, last = (results[k]["learners"]["default_policy"] for k in (0, -1))
    before, after = results[-1]["evaluation_on_start"], results[-1]["evaluation"]
    print("accuracy", first["accuracy"], last["accuracy"], "held-out", before["accuracy"], after["accuracy"])
    print("return", before["train"]["episode_return_mean"], after["train"]["episode_return_mean"])
    # Seeds 0 to 4: accuracy 1.0; margin 0.02 -> 4.7 to 5.1; loss 0.68 -> 0.006 to 0.010; the mean return, which pairs
    # teach only indirectly, 0.033 -> 0.099 0.094 0.130 0.099 0.078.
    assert last["accuracy"] > 0.9
    assert last["margin"] > first["margin"] + 2
    assert last["loss"] < 0.1 < 0.5 < first["loss"]
    assert after["train"]["episode_return_mean"] > before["train"]["episode_return_mean"] + 0.02
    # Before the first step the policy is the reference: no margin, and a loss of log 2.
    assert before["loss"] == pytest.approx(np.log(2), abs=1e-4)
    assert before["margin"] == pytest.approx(0.0, abs=1e-3)
    assert after["train"]["num_episodes"] == 64
    assert not [name for result in results for name in not_finite(result)]


def pairs_file(path, count=12):
    letters = "abcdefgh"
    records = [
        {"prompt": f"say {letters[k % 8]}", "chosen": letters[k % 8] * 3, "rejected": letters[(k + 1) % 8] * 3}
        for k in range(count)
    ]
    path.write_text(json.dumps(records))
    return str(path)


@pytest.mark.promise
def test_a_restored_run_keeps_its_reference_and_goes_on_bit_for_bit(tiny_model, build, tmp_path):
    data = pairs_file(tmp_path / "pairs.json")
    algo = build(offline_config(DPOConfig(), tiny_model, env=None, data=data, samples_per_step=8))
    assert not algo.env_runner_group
    for _ in range(2):
        algo.train()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    reference = algo.reference["training"].copy()
    expected = algo.train()["learners"]["default_policy"]
    straight = module_weights(algo)
    restored = DPO.from_checkpoint(path)
    try:
        resumed = restored.train()["learners"]["default_policy"]
        assert np.array_equal(restored.reference["training"], reference)
        assert equal(straight, module_weights(restored))
        for name in ("loss", "margin", "accuracy"):
            assert resumed[name] == expected[name], name
    finally:
        restored.stop()

    pairs_file(tmp_path / "pairs.json", count=11)
    changed = DPO.from_checkpoint(path)
    try:
        with pytest.raises(RllmGymError, match="must be resumed with the pairs that its reference was computed for"):
            changed.train()
    finally:
        changed.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0}, "beta must be a number above 0; got 0"),
        ({"label_smoothing": 0.5}, "label_smoothing must be a number of at least 0 and below 0.5; got 0.5"),
        ({"kind": "hinge"}, "kind must be one of sigmoid, ipo; got 'hinge'"),
        ({"data": "expert"}, "data: must be pairs; got expert"),
        ({"env": None}, "data: sample needs an environment; got none"),
        ({"group_size": 1}, "data: sample needs group_size of at least 2; got 1"),
        ({"save_trajectories": False}, "data: sample needs save_trajectories: true"),
        ({"observation_weight": 0.1}, "observation_weight must be 0; got 0.1"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(tiny_model, options, message):
    with pytest.raises(ConfigError, match=message):
        offline_config(DPOConfig(), tiny_model, **{"save_trajectories": True, **options}).validate()


@pytest.mark.parametrize("data", ["sample", "no/longer/there.json"])
def test_a_policy_that_is_only_evaluated_needs_nothing_of_what_it_learnt_from(tiny_model, data):
    options = {"env": "rllm_gym/TextCraft-v0", "data": data, "evaluation_interval": 1}  # and keeps no trajectories
    config = offline_config(DPOConfig(), tiny_model, **options)
    with pytest.raises(ConfigError, match="data: "):
        config.copy().validate()
    evaluated = DPOConfig().update_from_dict(config.without_data().to_dict())  # as a built algorithm does
    evaluated.validate()
    assert evaluated.has_env_runners
