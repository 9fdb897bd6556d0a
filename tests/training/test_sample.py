"""Turns as one trainable sequence."""

from __future__ import annotations

import numpy as np

from rllm_gym.types import Sample, Turn


def ids(*tokens):
    return np.array(tokens, np.int64)


def logp(*values):
    return np.array(values, np.float32)


def three_turns(**of_second):
    return [
        Turn(ids(10, 11), ids(1, 2), logp(-0.1, -0.7), policy_version=3, env_step=0, reward=0.5),
        Turn(ids(20), ids(3), logp(-0.2), policy_version=3, env_step=1, **of_second),
        Turn(ids(30), ids(4, 5), logp(-0.3, -0.1), policy_version=4, env_step=2, reward=1.0),
    ]


def columns(sample):
    names = ("tokens", "weight", "old_logp", "reward", "is_turn_end", "policy_version")
    found = {name: getattr(sample, name) for name in names}
    dtypes = {name: values.dtype for name, values in found.items()}
    assert dtypes == dict(zip(names, (np.int64, np.float32, np.float32, np.float64, np.bool_, np.int64), strict=True))
    return {name: values.tolist() for name, values in found.items()}


def as_float32(*values):
    return np.array(values, np.float32).tolist()


# fmt: off
WORKED_EXAMPLE = {  #  P   P  a0  a0  E1  a1  E2  a2  a2
    "tokens":         [10, 11, 1, 2, 20, 3, 30, 4, 5],
    "weight":         [0, 0, 1, 1, 0, 1, 0, 1, 1],
    "old_logp":       as_float32(0, 0, -0.1, -0.7, 0, -0.2, 0, -0.3, -0.1),
    "reward":         [0, 0, 0, 0.5, 0, 0, 0, 0, 1],
    "is_turn_end":    [False, False, False, True, False, True, False, False, True],
    "policy_version": [-1, -1, 3, 3, -1, 3, -1, 4, 4],
}
# fmt: on


def test_turns_make_the_sample_of_the_worked_example():
    sample = Sample.of_turns(three_turns(), group=4, episode="e", context_index=1, agent="x", is_terminated=False)
    assert columns(sample) == WORKED_EXAMPLE
    assert (sample.group, sample.episode, sample.context_index, sample.agent, sample.is_terminated) == (
        4,
        "e",
        1,
        "x",
        False,
    )
    assert (sample.advantage, sample.trainer_logp, sample.ref_logp, sample.value, sample.value_target) == (None,) * 5
    assert len(sample) == 9


def test_a_final_observation_stands_behind_without_weight_and_ends_no_turn():
    sample = Sample.of_turns(three_turns(), final_observation_ids=ids(40, 41))
    # P P a0 a0 E1 a1 E2 a2 a2 F F
    added = {"tokens": [40, 41], "is_turn_end": [False, False], "policy_version": [-1, -1]}
    assert columns(sample) == {name: values + added.get(name, [0, 0]) for name, values in WORKED_EXAMPLE.items()}
    assert columns(Sample.of_turns(three_turns(), final_observation_ids=ids())) == WORKED_EXAMPLE


def test_an_untrained_turn_has_no_weight_and_keeps_all_else():
    sample = Sample.of_turns(three_turns(is_trained=False))
    # P P a0 a0 E1 (a1) E2 a2 a2
    assert columns(sample) == WORKED_EXAMPLE | {"weight": [0, 0, 1, 1, 0, 0, 0, 1, 1]}


def test_the_environments_words_may_have_a_weight_but_not_the_last_ones():
    sample = Sample.of_turns(three_turns(), observation_weight=0.25, final_observation_ids=ids(40))
    assert sample.weight.tolist() == [0.25, 0.25, 1, 1, 0.25, 1, 0.25, 1, 1, 0]
