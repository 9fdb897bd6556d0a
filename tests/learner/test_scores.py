"""What the learners compute for samples before an update: for each of them, in their order, as the update will."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.learner.batch import deal
from tests.learner.learner_helpers import (
    MODULE,
    assess,
    driver_of,
    make_config,
    make_episodes,
    make_group,
    make_samples,
    update,
    weights,
)


def plain_logps(base_model, samples, temperature=1.0) -> list[np.ndarray]:
    lm = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    found = []
    for sample in samples:
        ids = torch.tensor(sample.tokens)
        with torch.no_grad():
            logits = lm(input_ids=ids[None]).logits[0, :-1] / temperature
        logp = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0]
        found.append(np.r_[0, logp.numpy()] * (sample.weight != 0))
    return found


@pytest.mark.parametrize("num_minibatches", [1, 3, 20])
@pytest.mark.parametrize("stage", [0, 3])
def test_every_sample_gets_the_log_probabilities_of_a_plain_forward_pass(tiny_model, num_minibatches, stage):
    options = {"num_minibatches": num_minibatches, "zero_stage": stage, "tokens_per_micro_batch": 150}
    group = make_group(make_config(tiny_model, temperature=0.7, **options))
    samples = [make_samples(13)[k] for k in np.random.default_rng(0).permutation(13)]
    for k in (2, 5, 11):  # of one episode, so that the batch has them in another order
        samples[k].episode = "shared"
    before = weights(group)
    driver_of(group).score(samples, ["trainer_logp"])
    for sample, expected in zip(samples, plain_logps(tiny_model, samples, temperature=0.7), strict=True):
        assert sample.trainer_logp.dtype == np.float32
        assert np.abs(sample.trainer_logp - expected).max() < 1e-5
        assert (expected[sample.weight != 0] != 0).all()
    assert all(np.array_equal(value, before[name]) for name, value in weights(group).items())


def test_the_reference_is_scored_by_the_base_model_and_the_trainer_by_its_own_weights(tiny_model, other_model):
    group = make_group(make_config(tiny_model, kl_coeff=0.1))
    group.set_weights({MODULE: weights(make_group(make_config(other_model)))})
    samples = make_samples(7)
    driver_of(group).score(samples, ["ref_logp", "trainer_logp"])
    for name, model in (("ref_logp", tiny_model), ("trainer_logp", other_model)):
        for sample, expected in zip(samples, plain_logps(model, samples), strict=True):
            assert np.abs(getattr(sample, name) - expected).max() < 1e-5


@pytest.mark.slow
def test_two_learners_score_what_one_does(tiny_model, two_learners):
    samples = make_samples(13)
    group = two_learners(make_config(tiny_model, num_minibatches=3, tokens_per_micro_batch=150))
    driver_of(group).score(samples, ["trainer_logp"])
    one_sample = make_samples(1)
    driver_of(group).score(one_sample, ["trainer_logp"])  # the second learner has nothing to score
    assert sorted(len(shard) for shard in deal(samples, 2)) == [6, 7]
    for sample, expected in zip([*samples, *one_sample], plain_logps(tiny_model, [*samples, *one_sample]), strict=True):
        assert np.abs(sample.trainer_logp - expected).max() < 1e-5


def test_nothing_that_is_unknown_is_scored(tiny_model):
    group = make_group(make_config(tiny_model))
    with pytest.raises(ValueError, match="cannot compute 'colour'"):
        driver_of(group).score(make_samples(2), ["colour"])


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("num_minibatches", [1, 3])
def test_the_first_pass_of_an_update_gives_a_ratio_of_exactly_1(tiny_model, packing, num_minibatches):
    """To the last bit: with clip ranges of 0 a ratio that is off by one rounding would count as clipped."""
    options = {"old_logp": "recompute", "num_minibatches": num_minibatches, "clip_low": 0.0, "clip_high": 0.0}
    options |= {"packing": packing, "tokens_per_micro_batch": 150, "deepspeed": {}, "lr": 0.0}
    group = make_group(make_config(tiny_model, **options))
    metrics = update(group, make_samples(13))
    # At a rate of 0 the weights of the later minibatches are still those that the samples were scored with.
    assert metrics["num_optimizer_steps"] == num_minibatches
    assert (metrics["clip_fraction"], metrics["first_clip_fraction"], metrics["kl"]) == (0.0, 0.0, 0.0)


def test_a_critics_values_are_scored_for_every_token_and_after_the_last(tiny_model):
    group = make_group(make_config(tiny_model, "PPO", bootstrap="truncated", num_minibatches=2))
    state = group.get_weights()
    rng = np.random.default_rng(5)
    head = state[f"{MODULE}_critic"]["value_head.weight"] = rng.normal(size=(1, 64)).astype(np.float32)
    group.set_weights(state)
    samples = assess(driver_of(group), make_episodes(7))
    backbone = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).model
    for sample in samples:
        with torch.no_grad():
            values = backbone(input_ids=torch.tensor(sample.tokens)[None]).last_hidden_state[0].numpy() @ head[0]
        assert np.abs(sample.value - np.r_[0, values[:-1]] * (sample.weight != 0)).max() < 1e-4
        assert sample.final_value == pytest.approx(values[-1], abs=1e-4)
