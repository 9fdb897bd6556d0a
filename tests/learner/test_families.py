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


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_the_page_says(family, tmp_path):
    folder = make_family(family, tmp_path)
    group = make_group(make_config(folder, lr=1e-4))
    learner, samples = group._learner, make_samples(4)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if choose_attention(lm.config):
        lm.set_attn_implementation("eager")
    scored = dict(learner.score(samples, [range(len(samples))], ["trainer_logp"]))
    for index, sample in enumerate(samples):
        ids, at = torch.as_tensor(sample.tokens), sample.weight[1:] > 0
        with torch.no_grad():
            logp = lm.eval()(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        np.testing.assert_allclose(scored[index]["trainer_logp"][1:][at], logp[at], atol=1e-3)
    assert (learner.packing_fault is None) == (ROWS[family] == "yes"), learner.packing_fault
    assert update(group, samples)["gradient_norm"] > 0
    # Where some layers are dense, peft makes adapters of the experts, too, which are refused.
    some = {"target_modules": ["q_proj", "v_proj"]} if family == "Glm4Moe" else {}
    adapted = make_group(make_config(folder, lora={"r": 4, **some}))
    assert adapted._learner.module[MODULE].inference_state()
