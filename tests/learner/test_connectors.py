"""What becomes of an episode on its way into a token batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.learner.connectors import ADVANTAGE, GROUP, collate, row_of


def stream_of(*, is_terminated: bool, advantage) -> SingleAgentEpisode:
    """Two turns: observations 10 11 | 20 | 30 31, actions 1 2 | 3."""
    stream = SingleAgentEpisode(
        observations=[np.array(ids) for ids in ([10, 11], [20], [30, 31])],
        actions=[np.array([1, 2]), np.array([3])],
        rewards=[0.25, 1.0],
        infos=[{}] * 3,
        extra_model_outputs={"action_logp": [np.array([-0.1, -0.2]), np.array([-0.3])]},
        terminated=is_terminated,
        truncated=not is_terminated,
        len_lookback_buffer=0,
    )
    stream.custom_data.update({ADVANTAGE: advantage, GROUP: 4})
    return stream


def test_a_row_is_what_was_seen_and_sampled_with_rewards_at_the_ends_of_turns():
    row = row_of(stream_of(is_terminated=True, advantage=[2.0, -3.0]))
    assert row.tokens.tolist() == [10, 11, 1, 2, 20, 3]
    assert row.mask.tolist() == [False, False, True, True, False, True]
    assert np.allclose(row.old_logp, [0, 0, -0.1, -0.2, 0, -0.3])
    assert row.reward.tolist() == [0, 0, 0, 0.25, 0, 1]
    assert row.is_turn_end.tolist() == [False, False, False, True, False, True]
    assert row.advantage.tolist() == [0, 0, 2, 2, 0, -3]
    assert (row.group, row.is_terminated) == (4, True)


def test_one_advantage_stands_at_all_sampled_tokens():
    assert row_of(stream_of(is_terminated=True, advantage=0.5)).advantage.tolist() == [0, 0, 0.5, 0.5, 0, 0.5]


@pytest.mark.parametrize(("is_terminated", "added"), [(True, []), (False, [30, 31])])
def test_a_critic_sees_the_final_observation_of_truncated_episodes_only(is_terminated, added):
    row = row_of(stream_of(is_terminated=is_terminated, advantage=1.0), has_final_observation=True)
    assert row.tokens.tolist() == [10, 11, 1, 2, 20, 3, *added]
    assert not row.mask[6:].any()
    assert row.is_terminated is is_terminated


def test_rows_are_padded_with_what_no_mask_shows_and_no_rows_give_an_empty_one():
    short, long = (row_of(stream_of(is_terminated=t, advantage=1.0), has_final_observation=True) for t in (True, False))
    out = collate([long, short])
    assert out["length"].tolist() == [6, 8]
    assert out["is_terminated"].tolist() == [True, False]
    assert out["group"].tolist() == [4, 4]
    assert out["tokens"][0].tolist() == [10, 11, 1, 2, 20, 3, 0, 0]
    assert not out["mask"][0, 6:].any() and out["reward"].dtype == torch.float32
    empty = collate([])
    assert set(empty) == set(out)
    assert not empty["mask"].any() and empty["tokens"].shape == (1, 2)
