"""A parameter of sampling is an option of runs, and no engine forgets it."""

import dataclasses
from pathlib import Path

import pytest

import rllm_gym.rollout.engines
from rllm_gym.algorithms.grpo import GRPOConfig
from rllm_gym.types import SamplingParams

PARAMS = [field.name for field in dataclasses.fields(SamplingParams)]
ENGINES = Path(rllm_gym.rollout.engines.__file__).parent


@pytest.mark.parametrize("name", PARAMS)
def test_an_option_of_that_name_sets_it(name):
    config = GRPOConfig()
    value = getattr(config, name) / 2 or 7
    setattr(config, name, value)
    assert getattr(config.sampling_params, name) == value


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("engine", ["vllm", "transformers", "openai"])
def test_every_engine_reads_it(engine, name):
    assert f"params.{name}" in (ENGINES / f"{engine}.py").read_text(encoding="utf-8")
