"""What is generated for DeepSpeed."""

from __future__ import annotations

import pytest

from rllm_gym.learner.deepspeed import deepspeed_config, zero_stage
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


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, "float32"),
        ({"num_gpus_per_learner": 1}, "bfloat16"),
        ({"num_gpus_per_env_runner": 0.5}, "bfloat16"),
        ({"num_gpus_per_learner": 1, "dtype": "float32"}, "float32"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_weights_have_sixteen_bits_by_themselves_where_there_is_a_gpu(tiny_model, options, dtype):
    config = make_config(tiny_model, **options)
    assert config.weight_dtype == config._model_config_auto_includes["dtype"] == dtype
    assert deepspeed_config(config, 10, {})["bf16"]["enabled"] == (dtype == "bfloat16")


@pytest.mark.parametrize(
    ("options", "sampler", "learner"),
    [
        ({}, 1, 1),
        ({"num_cpus_per_env_runner": 3, "num_cpus_for_main_process": 2}, 3, 2),
        ({"num_cpus_per_env_runner": 0, "num_cpus_for_main_process": 2}, 2, 2),
        ({"num_cpus_per_env_runner": 0, "num_cpus_for_main_process": 2, "num_env_runners": 2}, 1, 2),
        ({"num_cpus_per_env_runner": 0, "num_cpus_for_main_process": 2, "staleness": 1}, 1, 2),
    ],
)
def test_a_sampler_without_cpus_has_the_threads_of_a_main_process_that_waits_for_it(
    tiny_model, options, sampler, learner
):
    config = make_config(tiny_model, **options)
    assert (config.num_env_runner_threads, config.num_learner_threads) == (sampler, learner)


def test_a_critic_that_is_offloaded_alone_has_a_stage_that_can_be(tiny_model):
    config = make_config(tiny_model, zero_stage=None, deepspeed={})
    offload = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    assert deepspeed_config(config, 10, offload)["zero_optimization"]["stage"] == 2
    assert deepspeed_config(config, 10, {})["zero_optimization"]["stage"] == 0
