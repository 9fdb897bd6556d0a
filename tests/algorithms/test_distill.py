"""Distill: a token earns the teacher's log-probability less the sampler's, and the policy nears its teacher."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from rllm_gym.algorithms.distill import DistillConfig, check_tokenizers
from rllm_gym.errors import ConfigError
from tests.algorithms.algorithm_helpers import toy_config
from tests.wiring.harness import run


def test_an_advantage_is_what_the_teacher_gives_more(tiny_model, other_model):
    with run(tiny_model, method="Distill", teacher=str(other_model), teacher_weight=0.5) as found:
        samples = [sample for sample in found.samples if (sample.weight != 0).any()]
        assert samples
        for sample in samples:
            is_sampled = sample.weight != 0
            expected = 0.5 * (sample.ref_logp - sample.old_logp)[is_sampled]
            assert sample.advantage[is_sampled] == pytest.approx(expected, abs=1e-6)
        gains = np.concatenate([(s.ref_logp - s.old_logp)[s.weight != 0] for s in samples])
        assert found.metrics["teacher_kl"] == pytest.approx(-gains.mean(), rel=1e-4)


def test_the_policy_as_its_own_teacher_has_nothing_to_learn(tiny_model):
    with run(tiny_model, method="Distill", teacher=str(tiny_model), divergence="jsd") as found:
        assert found.metrics["teacher_divergence"] == pytest.approx(0.0, abs=1e-6)


def test_a_reward_is_added_after_its_own_normalisation(tiny_model, other_model):
    options = {"group_size": 4, "groups_per_step": 2}
    with run(tiny_model, method="Distill", teacher=str(other_model), with_reward=True, **options) as found:
        rest = {}
        for sample in found.samples:
            is_sampled = sample.weight != 0
            rest[sample.episode] = (sample.advantage - (sample.ref_logp - sample.old_logp))[is_sampled]
        values = {episode: value.mean() for episode, value in rest.items()}
        assert all(value == pytest.approx(value.mean(), abs=1e-5) for value in rest.values())
        assert any(abs(value) > 0.1 for value in values.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a teacher; got none"),
        ({"teacher": "tiny", "kl_coeff": 0.1}, "kl_coeff must be 0, for the teacher stands where"),
        ({"teacher": "tiny", "filter_groups": "success"}, "filter_groups must be off"),
        ({"teacher": "tiny", "with_reward": True, "group_size": 1}, "group_size"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(options, message):
    config = DistillConfig().environment("rllm_gym/TextCraft-v0").update_from_dict(options)
    assert any(message in fault for fault in config.faults()), list(config.faults())


def test_a_teacher_with_another_tokenizer_is_refused(tiny_model, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(tiny_model, folder)
    file = folder / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    assert "<|im_end|>" in text
    file.write_text(text.replace("<|im_end|>", "<|im_over|>"), encoding="utf-8")
    check_tokenizers(str(tiny_model), str(tiny_model))
    with pytest.raises(ConfigError, match="must have the policy's tokenizer"):
        check_tokenizers(str(folder), str(tiny_model))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "share"), [({}, 0.9), ({"divergence": "reverse_kl"}, 0.8)], ids=["tokens", "vocabulary"]
)
def test_the_policy_nears_its_teacher(tiny_model, other_model, build, options, share):
    """Both are random models; single tokens say less of a distribution than all of it."""
    config = toy_config(
        tiny_model, method="Distill", teacher=str(other_model), lr=3e-3, group_size=1, groups_per_step=256, **options
    )
    algo = build(config)
    name = "teacher_divergence" if options else "teacher_kl"
    found = [algo.train()["learners"]["default_policy"][name] for _ in range(10)]
    print(name, np.round(found, 3))
    assert np.mean(found[-3:]) < share * found[0]
