"""What is generated for DeepSpeed."""

from __future__ import annotations

import pytest

from rllm_gym.learner.deepspeed_config import deepspeed_config, zero_stage
from tests.learner.learner_helpers import make_config


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({}, 0),
        ({"num_learners": 1}, 0),
        ({"num_learners": 2}, 2),
        ({"dtype": "bfloat16"}, 2),
        ({"deepspeed": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}}, 2),
        ({"num_learners": 2, "zero_stage": 3}, 3),
        ({"num_learners": 2, "zero_stage": 0}, 0),
    ],
)
def test_zero_partitions_by_itself_where_there_is_somebody_to_share_with(tiny_model, options, stage):
    config = make_config(tiny_model, **{"zero_stage": None, "deepspeed": {}, **options})
    assert zero_stage(config, config.deepspeed) == stage


def test_a_critic_that_is_offloaded_alone_has_a_stage_that_can_be(tiny_model):
    config = make_config(tiny_model, zero_stage=None, deepspeed={})
    offload = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    assert deepspeed_config(config, 10, offload)["zero_optimization"]["stage"] == 2
    assert deepspeed_config(config, 10, {})["zero_optimization"]["stage"] == 0
