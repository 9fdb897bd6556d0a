"""After the first sync of weights the sampler is compared with the trainer."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.errors import RllmGymError
from tests.rollout.engine_helpers import forward_logp
from tests.wiring.harness import Recorder, run

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def off_by(monkeypatch, tiny_model):
    """Let the scripted engine give a plain forward's log-probabilities, but for an error."""
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    step = Recorder.step

    def set_error(error, **attributes):
        def give_logps(engine):
            done = step(engine)
            prompts = {request.request_id: request.prompt_ids for request in engine.requests}
            for each in done:
                each.logp[:] = forward_logp(lm, prompts[each.request_id], each.token_ids) + error
            return done

        monkeypatch.setattr(Recorder, "step", give_logps)
        for name, value in {"gives_model_logps": True, **attributes}.items():
            monkeypatch.setattr(Recorder, name, value, raising=False)

    return set_error


def test_a_sampler_that_plays_the_trainers_policy_passes(tiny_model, off_by):
    off_by(0.0)
    with run(tiny_model) as found:
        assert np.isfinite(found.losses).all()


def test_a_sampler_that_plays_another_model_ends_the_run_before_its_first_step(tiny_model, off_by):
    off_by(0.1, loading="weights are loaded by vLLM: no place for experts")
    with (
        pytest.raises(RllmGymError, match=r"0.02 off at most.*got 0.1. Its weights are .* no place for experts. Set"),
        run(tiny_model),
    ):
        pass


def test_weights_that_do_not_reach_the_sampler_end_the_run_by_name(tiny_model, off_by):
    off_by(0.0, unloaded=["model.layers.0.mlp.experts.w2_weight"])
    with pytest.raises(RllmGymError, match=r"leaves 1 of its parameters.*first model\.layers\.0\.mlp"), run(tiny_model):
        pass


def test_with_warn_the_run_says_so_and_goes_on(tiny_model, off_by, caplog):
    off_by(0.1)
    with caplog.at_level(logging.WARNING, logger="rllm_gym"), run(tiny_model, check_sync="warn") as found:
        assert found.results
    assert "got 0.1" in caplog.text


def test_a_sampler_that_cannot_sample_with_its_first_weights_ends_the_run(tiny_model, off_by, monkeypatch):
    off_by(0.0)

    def fail(engine):
        raise AttributeError("no operator selective_scan")

    monkeypatch.setattr(Recorder, "step", fail)
    expected = (
        "an EnvRunner could not sample with its first weights.*got AttributeError: no operator selective_scan. Cho"
    )
    with pytest.raises(RllmGymError, match=expected), run(tiny_model):
        pass
