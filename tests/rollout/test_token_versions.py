"""Which weights each token was sampled with, as they change under a request."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_gym.rollout.engines.token_versions import TokenVersions
from rllm_gym.types import Completion


@pytest.mark.parametrize(
    ("changes", "num_tokens", "versions"),
    [
        ([], 3, None),
        ([(1, 4)], 3, [4, 9, 9]),
        ([(0, 4)], 2, [9, 9]),
        ([(1, 4), (1, 5), (2, 6)], 4, [4, 6, 9, 9]),  # two syncs between the same tokens
        ([(0, 4)], 0, None),
    ],
)
def test_a_token_has_the_version_that_was_there_when_it_was_sampled(changes, num_tokens, versions):
    kept = TokenVersions()
    for count, version in changes:
        kept.weights_change({"a": count}, version)
    stamped = kept.stamp(Completion("a", np.arange(num_tokens), np.zeros(num_tokens, np.float32)), 9)
    assert (stamped.policy_versions if versions is None else stamped.policy_versions.tolist()) == versions
    assert kept.stamp(stamped, 9) is stamped  # and nothing is kept of what has ended
