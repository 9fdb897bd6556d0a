"""Small real models, of packages of PyPI: the doctor finds nothing wrong with them, and they take two train steps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from tests.algorithms.algorithm_helpers import toy_config
from tools.packaged_models import MODELS, NotThereError, make_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory) -> Path:
    """The model's folder, made here or, where `RLLM_GYM_MODELS` names a folder of such folders, found there."""
    if os.environ.get("RLLM_GYM_MODELS"):
        return Path(os.environ["RLLM_GYM_MODELS"]) / request.param
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    try:
        return make_folder(request.param, tmp_path_factory.mktemp("models") / request.param)
    except NotThereError as error:
        pytest.skip(str(error))


def test_the_doctor_finds_nothing_wrong(folder):
    result = CliRunner().invoke(make_rllm_gym_app(), ["doctor", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    assert [f for f in json.loads(result.stdout)["findings"] if f["level"] == "wrong"] == []


def test_two_train_steps_learn_what_vllm_has_sampled(ray_cluster, folder):
    config = toy_config(
        folder, env="rllm_gym/TextCraft-v0", env_config={"depth": 1, "system_prompt": ""}, max_model_len=2048,
        max_new_tokens=8, max_episode_steps=2, groups_per_step=1, group_size=4, num_envs_per_env_runner=4, lr=1e-5,
        filter_groups="off",
        engine_options={"kv_cache_memory_bytes": 2**28}, tokens_per_micro_batch=2048,
    )  # fmt: skip
    algo = config.build_algo()
    try:
        for _ in range(2):
            learner = algo.train()["learners"]["default_policy"]
            assert learner["num_sampled_tokens_trained"] > 0 and np.isfinite(learner["gradient_norm"])
            assert learner["logp_difference_mean"] < 1e-2  # of sampler and trainer
    finally:
        algo.stop()
