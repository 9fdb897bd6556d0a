"""What is generated for DeepSpeed."""

from __future__ import annotations

import pytest

from rllm_gym.learner.deepspeed_config import zero_stage
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
    assert zero_stage(make_config(tiny_model, **{"zero_stage": None, "deepspeed": {}, **options})) == stage
