"""The learner's arithmetic: what it trains on, how it normalises, and that no partition of the work changes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.training.samples import samples_from_episode
from rllm_gym.types import AGENT
from tests.learner.learner_helpers import (
    MODULE,
    change,
    distance,
    gradient,
    largest,
    make_config,
    make_episodes,
    make_group,
    make_samples,
    update,
    weights,
)

SAMPLES = 12

pytestmark = pytest.mark.slow


def plain_gradient(base_model, samples) -> dict[str, np.ndarray]:
    """The gradient of -(1/N) sum A * ratio with whole logits, one sample at a time, by nothing but torch."""
    lm = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    num_tokens = sum(sample.weight.sum() for sample in samples)
    for sample in samples:
        ids, mask, old = torch.tensor(sample.tokens), torch.tensor(sample.weight), torch.tensor(sample.old_logp)
        logp = torch.log_softmax(lm(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
        ratio = ((logp - old[1:]) * mask[1:]).exp()
        loss = -(torch.tensor(sample.advantage)[1:] * ratio * mask[1:]).sum() / num_tokens
        loss.backward()
    return {f"lm.{name}": parameter.grad.numpy() for name, parameter in lm.named_parameters()}


def test_the_gradient_is_that_of_the_plain_loss_on_sampled_tokens_only(tiny_model):
    samples = make_samples(SAMPLES)
    group = make_group(make_config(tiny_model, clip_low=1e9, clip_high=1e9))
    ours, plain = gradient(group, samples), plain_gradient(tiny_model, samples)
    assert distance(plain, {name: ours[name] for name in plain}) < 1e-5 * max(1.0, largest(plain))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_micro_batches_and_zero_stages_change_no_gradient(tiny_model, stage):
    samples = make_samples(SAMPLES)
    whole = gradient(make_group(make_config(tiny_model)), samples)
    # 150 tokens make at least four micro-batches of these twelve samples.
    cut = gradient(make_group(make_config(tiny_model, zero_stage=stage, tokens_per_micro_batch=150)), samples)
    assert distance(whole, cut) < 1e-5 * largest(whole)


@pytest.mark.parametrize("stage", [0, pytest.param(2, marks=pytest.mark.promise), 3])
def test_two_learners_change_no_gradient(tiny_model, two_learners, stage):
    samples = make_samples(SAMPLES)
    one = gradient(make_group(make_config(tiny_model)), samples)
    two = gradient(two_learners(make_config(tiny_model, zero_stage=stage, tokens_per_micro_batch=150)), samples)
    assert distance(one, two) < 1e-5 * largest(one)


def test_adam_on_two_learners_and_small_micro_batches_stays_within_5e_5_after_three_steps(tiny_model, two_learners):
    adam = {"deepspeed": {}, "lr": 1e-3, "grad_clip": 1.0, "zero_stage": 2}
    one = make_group(make_config(tiny_model, **adam))
    two = two_learners(make_config(tiny_model, **adam, tokens_per_micro_batch=150))
    for step in range(3):
        samples = make_samples(SAMPLES, seed=step)
        update(one, samples)
        update(two, samples)
    assert distance(weights(one), weights(two)) < 5e-5


def test_a_learner_without_data_keeps_in_step(tiny_model, two_learners):
    """One long sample for two ZeRO-3 learners: the second has only fillers, and other numbers of chunks of logits."""
    samples = make_samples(1, num_turns=6)
    one = gradient(make_group(make_config(tiny_model)), samples)
    two = gradient(two_learners(make_config(tiny_model, zero_stage=3)), samples)
    assert distance(one, two) < 1e-5 * largest(one)


def test_environment_tokens_and_the_final_observation_never_reach_the_loss(tiny_model):
    samples = make_samples(4)
    first = gradient(make_group(make_config(tiny_model)), samples)
    for sample in samples:
        for name in ("old_logp", "advantage"):
            getattr(sample, name)[sample.weight == 0] = 7.0
    assert distance(first, gradient(make_group(make_config(tiny_model)), samples)) == 0.0
    episodes, with_final = make_episodes(4), []
    for episode, sample in zip(episodes, samples, strict=True):
        episode.streams[AGENT].final_observation_ids = np.zeros(300, np.int64)
        [longer] = samples_from_episode(episode, lambda agent_id: 0, max_tokens=400)
        assert len(longer) == min(400, len(sample) + 300)
        longer.advantage = np.r_[sample.advantage, np.full(len(longer) - len(sample), 7.0, np.float32)]
        with_final.append(longer)
    again = gradient(make_group(make_config(tiny_model)), with_final)
    assert distance(first, again) < 1e-6 * largest(first)


def test_a_step_without_trainable_tokens_changes_nothing_and_still_reports_every_metric(tiny_model):
    group = make_group(make_config(tiny_model, deepspeed={}, lr=1e-2))
    full = update(group, make_samples(4))  # Adam has a momentum from here on
    before, version = weights(group), group._learner._weights_seq_no
    empty = update(group, [])
    assert distance(before, weights(group)) == 0.0
    assert group._learner._weights_seq_no == version
    assert set(empty) == set(full)
    assert all(np.isfinite(value) for value in empty.values())


def test_several_minibatches_take_several_optimizer_steps_on_all_tokens(tiny_model):
    samples = make_samples(SAMPLES)
    group = make_group(make_config(tiny_model, num_minibatches=3, num_epochs=2))
    metrics = update(group, samples)
    assert metrics["num_optimizer_steps"] == 6
    assert metrics["num_sampled_tokens_trained"] == sum(int(sample.weight.sum()) for sample in samples)


def test_the_gradient_norm_is_that_of_the_gradient(tiny_model):
    for stage in (0, 2):
        samples = make_samples(SAMPLES)
        group = make_group(make_config(tiny_model, zero_stage=stage, grad_clip=1e9, tokens_per_micro_batch=150))
        before = weights(group)
        norm = update(group, samples)["gradient_norm"]
        delta = change(before, weights(group))
        tied = [name for name in delta if name == "lm.lm_head.weight"]
        expected = np.sqrt(sum(float((value**2).sum()) for name, value in delta.items() if name not in tied))
        assert norm == pytest.approx(expected, rel=1e-4)


def test_the_reference_kl_is_zero_at_the_start_and_pulls_back_later(tiny_model):
    group = make_group(make_config(tiny_model, kl_coeff=1.0, deepspeed={}, lr=1e-3))
    samples = make_samples(6)
    assert update(group, samples)["ref_kl"] == pytest.approx(0.0, abs=1e-7)
    moved = update(group, samples)["ref_kl"]
    assert moved > 1e-6
    for sample in samples:
        sample.advantage[:] = 0.0  # only the KL term is left
    for _ in range(10):
        pulled_back = update(group, samples)["ref_kl"]
    assert pulled_back < 0.5 * moved


def test_recomputed_old_log_probabilities_make_the_first_ratio_one(tiny_model):
    samples = make_samples(6, logp=-1.0)  # far from the model's own
    group = make_group(make_config(tiny_model, old_logp="recompute", num_minibatches=1))
    metrics = update(group, samples)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-7)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["logp_difference_mean"] > 1.0  # what the sampler said is still compared
    several = make_group(make_config(tiny_model, old_logp="recompute", num_minibatches=2))
    metrics = update(several, samples)
    assert metrics["first_clip_fraction"] == 0.0
    assert 0.0 < metrics["clip_fraction"] < 1.0


def test_truncated_importance_weights_scale_the_gradient(tiny_model):
    """The sampler says e^-1 for tokens to which the trainer gives far less, so their weights are far below 1."""
    samples = make_samples(4, logp=-1.0)
    plain = gradient(make_group(make_config(tiny_model, old_logp="recompute")), samples)
    corrected = gradient(
        make_group(make_config(tiny_model, old_logp="recompute", importance_correction="token")), samples
    )
    assert largest(corrected) < 0.5 * largest(plain)


def test_weights_loaded_past_the_optimizer_are_kept_by_the_next_step(tiny_model, other_model):
    for stage in (0, 2, 3):
        group = make_group(make_config(tiny_model, deepspeed={}, lr=1e-6, zero_stage=stage))
        other = weights(make_group(make_config(other_model)))
        group.set_weights({MODULE: other})
        update(group, make_samples(4))
        assert distance(weights(group), other) < 1e-4


def test_an_entropy_bonus_moves_the_policy(tiny_model):
    samples = make_samples(4)
    for sample in samples:
        sample.advantage[:] = 0.0
    still = gradient(make_group(make_config(tiny_model)), samples)
    moved = gradient(make_group(make_config(tiny_model, entropy_coeff=0.1)), samples)
    assert largest(still) == 0.0
    assert largest(moved) > 1e-6
