"""Models that learn nothing, references and teachers: at ZeRO-3 learners share them, as they share the policy."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from tests.learner.learner_helpers import driver_of, make_config, make_group, make_samples, update

SHARDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}  # DeepSpeed leaves small weights whole
SAMPLES = 12

pytestmark = pytest.mark.slow


def scores(group) -> list[np.ndarray]:
    samples = make_samples(SAMPLES)
    driver_of(group).score(samples, ["ref_logp"])
    return [sample.ref_logp for sample in samples]


def parameter_bytes(parameters) -> int:
    """What this learner holds of them."""
    return sum(p.nbytes + (p.ds_tensor.nbytes if hasattr(p, "ds_tensor") else 0) for p in parameters)


def reference_bytes(learner) -> int:
    [reference] = learner._references.values()
    return parameter_bytes(reference.parameters())


@pytest.mark.parametrize("stage", [2, 3])
def test_two_learners_share_the_reference_at_zero_3_and_score_the_same(tiny_model, two_learners, stage):
    expected = scores(make_group(make_config(tiny_model, kl_coeff=1.0)))
    config = make_config(tiny_model, kl_coeff=1.0, zero_stage=stage, deepspeed=SHARDED, tokens_per_micro_batch=150)
    group = two_learners(config)
    whole = parameter_bytes(AutoModelForCausalLM.from_pretrained(tiny_model).parameters())
    for after in ("the build", "a score", "an update"):
        held = [result.get() for result in group.foreach_learner(reference_bytes)]
        share = 0.5 if stage == 3 else 1.0
        assert held == pytest.approx([share * whole] * 2, rel=0.01), after
        if after == "the build":
            found = scores(group)
            assert all(np.abs(a - b).max() < 1e-5 for a, b in zip(expected, found, strict=True))
        else:
            assert np.isfinite(update(group, make_samples(SAMPLES))["ref_kl"])
