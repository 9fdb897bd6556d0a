"""A loss or gradient that is not finite ends the run, or is skipped and counted, and never reaches the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rllm_gym.errors import NonFiniteError
from rllm_gym.learner.batch import SampleData
from tests.learner.learner_helpers import (
    distance,
    make_config,
    make_group,
    make_samples,
    update,
    weights,
)

ADAM = {"deepspeed": {}, "lr": 1e-3}

pytestmark = pytest.mark.slow


def poisoned(num: int = 8):
    """Samples of which one has an advantage that is not a number."""
    samples = make_samples(num)
    samples[3].advantage = np.full_like(samples[3].advantage, np.nan)
    return samples


def present_weights(group):
    """The weights as they are, under ZeRO-3 too, where an update that fails leaves the collected ones old."""
    group.foreach_learner(lambda learner: learner._gather_weights())
    return weights(group)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("tokens_per_micro_batch", [150, 8192])
def test_an_advantage_that_is_not_a_number_ends_the_run_at_its_train_step(tiny_model, stage, tokens_per_micro_batch):
    options = {"zero_stage": stage, "tokens_per_micro_batch": tokens_per_micro_batch, **ADAM}
    group = make_group(make_config(tiny_model, **options))
    before = present_weights(group)
    with pytest.raises(NonFiniteError, match=r"non-finite loss or gradient .* at train step 7; ") as caught:
        update(group, poisoned(), train_step=7)
    assert "\n" not in str(caught.value)
    assert distance(before, present_weights(group)) == 0.0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_as_many_steps_are_skipped_and_counted_as_the_option_says_and_one_more_ends_the_run(tiny_model, stage):
    group = make_group(make_config(tiny_model, zero_stage=stage, skip_non_finite_steps=1, **ADAM))
    before = present_weights(group)
    metrics = update(group, poisoned())
    assert (metrics["num_skipped_steps"], metrics["num_optimizer_steps"]) == (1, 0)
    assert distance(before, present_weights(group)) == 0.0
    assert group._learner._weights_seq_no == 0  # nothing new for the samplers
    metrics = update(group, make_samples(8), train_step=1)  # what was skipped has left nothing behind
    assert (metrics["num_skipped_steps"], metrics["num_optimizer_steps"]) == (1, 1)
    after = present_weights(group)
    unharmed = make_group(make_config(tiny_model, zero_stage=stage, **ADAM))
    update(unharmed, make_samples(8))
    assert distance(after, present_weights(unharmed)) == 0.0
    with pytest.raises(NonFiniteError, match=r"at train step 2; 2 steps were skipped, skip_non_finite_steps is 1\."):
        update(group, poisoned(), train_step=2)
    assert distance(after, present_weights(group)) == 0.0


def test_of_several_minibatches_only_the_one_that_is_not_finite_is_skipped(tiny_model):
    group = make_group(make_config(tiny_model, num_minibatches=4, skip_non_finite_steps=1, **ADAM))
    before = weights(group)
    metrics = update(group, poisoned())
    assert (metrics["num_skipped_steps"], metrics["num_optimizer_steps"]) == (1, 3)
    after = weights(group)
    assert distance(before, after) > 1e-4
    assert all(np.isfinite(value).all() for value in after.values())


@pytest.mark.parametrize("stage", [0, 3])
def test_a_resumed_run_goes_on_with_what_is_left_of_its_skipped_steps(tiny_model, tmp_path, stage):
    config = make_config(tiny_model, zero_stage=stage, skip_non_finite_steps=1, **ADAM)
    group = make_group(config)
    update(group, poisoned())
    group._learner.save_engines(str(tmp_path))
    again = make_group(config)
    again._learner.load_engines(str(tmp_path))
    with pytest.raises(NonFiniteError, match=r"at train step 3; 2 steps were skipped, skip_non_finite_steps is 1\."):
        update(again, poisoned(), train_step=3)


def text_of_failure(learner, shards) -> str:
    """Train on this learner's share, where it is; a learner that has failed answers nobody any more."""
    data, settings = shards[torch.distributed.get_rank()]
    try:
        learner.update(training_data=data, timesteps={"train_step": 5}, **settings)
    except NonFiniteError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_learners_skip_and_end_together_whichever_has_the_sample(tiny_model, two_learners, stage):
    """Only one of them has the sample; if the other went on, it would wait for ever, or train on its own."""
    options = {"zero_stage": stage, "tokens_per_micro_batch": 150, "skip_non_finite_steps": 1}
    group = two_learners(make_config(tiny_model, **options, **ADAM))
    before = present_weights(group)
    metrics = update(group, poisoned())
    assert (metrics["num_skipped_steps"], metrics["num_optimizer_steps"]) == (1, 0)
    assert distance(before, present_weights(group)) == 0.0
    shards = SampleData(episodes=poisoned()).shard(2)
    texts = [result.get() for result in group.foreach_learner(lambda learner: text_of_failure(learner, shards))]
    assert len(texts) == 2
    assert all("non-finite loss or gradient" in text and "train step 5; 2 steps were skipped" in text for text in texts)
    assert distance(before, present_weights(group)) == 0.0
    with pytest.raises(Exception, match="non-finite loss or gradient"):
        update(group, poisoned())
