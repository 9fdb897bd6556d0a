"""Every family of docs/models.md trains: the learner's log-probabilities are a plain forward's, with LoRA, too."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.models import choose_attention
from tests.families import FAMILIES, make_family
from tests.learner.learner_helpers import MODULE, make_config, make_group, make_samples, update

PAGE = Path(__file__).parent.parent.parent / "docs" / "models.md"
ROWS = dict(re.findall(r"^\| (\w+) \| (yes|no) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_page_has_a_row_for_every_family_that_is_tried():
    assert list(ROWS) == list(FAMILIES)


def load(folder):
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if choose_attention(lm.config):
        lm.set_attn_implementation("eager")
    return lm.eval()


def score(learner, samples):
    scored = dict(learner.score(samples, [range(len(samples))], ["trainer_logp"]))
    return [scored[index]["trainer_logp"] for index in range(len(samples))]


def assert_plain_forward(lm, samples, scores):
    for sample, score in zip(samples, scores, strict=True):
        ids, at = torch.as_tensor(sample.tokens), sample.weight[1:] > 0
        with torch.no_grad():
            logp = lm(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        np.testing.assert_allclose(score[1:][at], logp[at], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_the_page_says(family, tmp_path):
    folder = make_family(family, tmp_path)
    group = make_group(make_config(folder, lr=1e-4))
    learner, samples = group._learner, make_samples(4)
    assert_plain_forward(load(folder), samples, score(learner, samples))
    assert (learner.packing_fault is None) == (ROWS[family] == "yes"), learner.packing_fault
    assert update(group, samples)["gradient_norm"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_adapter_is_in_the_folder_that_is_written_and_read_again(family, tmp_path):
    folder = make_family(family, tmp_path / "base")
    learner, samples = make_group(make_config(folder, lora={"r": 4}))._learner, make_samples(2)
    policy = learner.module[MODULE]
    assert policy.inference_state()
    before = score(learner, samples)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if ".lora_B." in name:
                weight.fill_(0.02)
    scores = score(learner, samples)
    assert not np.allclose(scores[0], before[0], atol=1e-3)
    policy.merge_adapter().save_pretrained(tmp_path / "written")
    assert_plain_forward(load(tmp_path / "written"), samples, scores)


def test_a_head_in_bfloat16_reads_hidden_states_in_float32(tmp_path):
    folder = make_family("Mamba", tmp_path, state_size=8)  # its residual stream stays in float32
    [score_of_first, *_] = score(make_group(make_config(folder, dtype="bfloat16"))._learner, make_samples(1))
    assert np.isfinite(score_of_first).all()
