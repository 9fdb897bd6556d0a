"""A train step's samples: made of episodes, and as the rows that advantages are computed from."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rllm_gym.algorithms.functional import group_relative_advantage
from rllm_gym.algorithms.ppo import PPO, PPOConfig
from rllm_gym.training.advantage_rows import AdvantageRows
from rllm_gym.training.samples import samples_from_episode
from rllm_gym.types import EndReason, Episode, Sample, Stream, TaskGroup, Turn


def turn(observation, action, reward=0.0, **fields):
    logp = np.linspace(-0.5, -0.1, len(action), dtype=np.float32)
    return Turn(np.array(observation), np.array(action), logp, policy_version=0, env_step=0, reward=reward, **fields)


def make_samples():
    """Episode e0 of two agents, of which x has had its context rewritten once, and episode e1; in a mixed order."""
    first = Sample.of_turns(
        [turn([1, 2], [3, 4], 0.5), turn([5], [6])], episode="e0", agent="x", context_index=0, group=7
    )
    last = Sample.of_turns(
        [turn([7, 7, 7], [8, 9], 1.0)],
        final_observation_ids=np.array([40, 41]),
        episode="e0", agent="x", context_index=1, group=7, is_terminated=False, is_success=True,
    )  # fmt: skip
    other = Sample.of_turns([turn([1], [2], 0.25)], episode="e0", agent="y", group=8)
    single = Sample.of_turns([turn([1, 2], [4], -1.0), turn([5], [6], 2.0)], episode="e1", agent="x", group=7)
    return last, other, first, single


def test_the_parts_of_an_agents_episode_are_one_row_in_their_order():
    last, other, first, single = make_samples()
    rows = AdvantageRows([last, other, first, single])
    assert rows.samples == [[first, last], [other], [single]]
    # x: a0 a0 a1 | a2 a2   y: a0   x: a0 a1
    assert rows.mask_NK.tolist() == [[True] * 5, [True] + [False] * 4, [True, True] + [False] * 3]
    assert rows.reward_NK.tolist() == [[0, 0.5, 0, 0, 1], [0.25, 0, 0, 0, 0], [-1, 2, 0, 0, 0]]
    assert torch.allclose(rows.column("old_logp")[0], torch.tensor([-0.5, -0.1, -0.5, -0.5, -0.1]))
    assert rows.return_N.tolist() == [1.5, 0.25, 1.0]
    assert rows.group_N.tolist() == [7, 8, 7]
    assert rows.is_terminated_N.tolist() == [False, True, True]
    assert rows.is_success_N.tolist() == [True, False, False]
    # Of the longest context, which is what may not fit; the final observation is not the policy's.
    assert rows.num_tokens_N.tolist() == [6, 2, 5]


def test_what_is_written_arrives_at_the_sampled_tokens_of_the_right_part():
    last, other, first, single = make_samples()
    rows = AdvantageRows([last, other, first, single])
    of_tokens = torch.tensor([[1.0, 2, 3, 4, 5], [6, 0, 0, 0, 0], [7, 8, 0, 0, 0]])
    rows.set_column("advantage", of_tokens)
    # P P a0 a0 E1 a1 | P P P a2 a2 F F
    assert first.advantage.tolist() == [0, 0, 1, 2, 0, 3]
    assert last.advantage.tolist() == [0, 0, 0, 4, 5, 0, 0]
    assert (other.advantage.tolist(), single.advantage.tolist()) == ([0, 6], [0, 0, 7, 0, 8])
    assert first.advantage.dtype == np.float32
    assert torch.equal(rows.column("advantage"), of_tokens)
    rows.set_column("advantage", torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    assert first.advantage.tolist() == [0, 0, 0.5, 0.5, 0, 0.5]
    assert last.advantage.tolist() == [0, 0, 0, 0.5, 0.5, 0, 0]
    assert (other.advantage.tolist(), single.advantage.tolist()) == ([0, -1], [0, 0, 2, 0, 2])


def test_after_a_part_comes_the_value_before_the_next_ones_first_token():
    last, other, first, single = make_samples()
    first.value, first.final_value = np.array([0, 0, 0.1, 0.2, 0, 0.3], np.float32), 9.0  # nobody may look at that one
    last.value, last.final_value = np.array([0, 0, 0, 0.4, 0.5, 0, 0], np.float32), 7.0
    other.value, other.final_value = np.array([0, 0.5], np.float32), 9.0
    single.value, single.final_value = np.array([0, 0, 1, 0, 2], np.float32), 9.0
    config = PPOConfig().training(gamma=0.5, lambda_=0.5, bootstrap="truncated")
    rows = AdvantageRows([last, other, first, single])
    found = PPO.advantage(SimpleNamespace(config=config), rows)
    assert first.value_target is None  # what it is given stays as it was
    rows.set_column("value_target", found.columns["value_target"])
    # delta = r + 0.5 V' - V over a0 a0 a1 | a2 a2, V = 0.1 0.2 0.3 | 0.4 0.5 and 7 after the horizon:
    #   0, 0.5 + 0.15 - 0.2 = 0.45, 0.2 - 0.3 = -0.1, 0.25 - 0.4 = -0.15, 1 + 3.5 - 0.5 = 4
    # A = delta + 0.25 A' from the end: 4, 0.85, 0.1125, 0.478125, 0.11953125; the targets are A + V
    assert np.allclose(first.value_target, [0, 0, 0.21953125, 0.678125, 0, 0.4125], atol=1e-6)
    assert np.allclose(last.value_target, [0, 0, 0, 1.25, 4.5, 0, 0], atol=1e-6)
    assert np.allclose(other.value_target, [0, 0.25])  # terminated: 0 comes after it
    assert np.allclose(single.value_target, [0, 0, 0, 0, 2])  # A = -1 + 0.5 * 2 - 1 = -1, and 2 - 2 = 0


def test_turns_have_rewards_states_and_values_of_their_own():
    rows = AdvantageRows(make_samples())
    assert rows.turn_NK.tolist() == [[0, 0, 1, 2, 2], [0] * 5, [0, 1, 0, 0, 0]]
    assert rows.turn_mask_NU.tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    assert rows.turn_reward_NU.tolist() == [[0.5, 0, 1], [0.25, 0, 0], [-1, 2, 0]]
    # observations: 1 2, 5 | 7 7 7    1    1 2, 5
    [[a, b, c], [d, _, _], [e, f, _]] = rows.turn_state_NU.tolist()
    assert (a, b) == (e, f)
    assert len({a, b, c, d}) == 4
    value_NU = torch.tensor([[1.0, 2, 3], [4, 0, 0], [5, 6, 0]])
    assert rows.of_turns(value_NU).tolist() == [[1, 1, 2, 3, 3], [4, 0, 0, 0, 0], [5, 6, 0, 0, 0]]


def test_the_same_return_in_other_turns_is_the_same_return():
    """0.1 + 0.2 and 0.3 differ in float32, and no less once they are summed in float64."""
    two = Sample.of_turns([turn([1], [2], 0.1), turn([3], [4], 0.2)], episode="a")
    one = Sample.of_turns([turn([1], [2], 0.3)], episode="b")
    rows = AdvantageRows([two, one])
    assert two.reward.astype(float).sum() != one.reward.astype(float).sum()
    assert rows.return_N[0] == rows.return_N[1]
    assert group_relative_advantage(rows.return_N, rows.group_N, normalize_std=True).tolist() == [0, 0]


# --- episodes to samples ---


def episode(streams, end_reason, **info):
    return Episode(
        "0-1-2-3", TaskGroup((0, 1, 2), None, 8), 3, 0, streams={s.agent_id: s for s in streams},
        end_reason=EndReason(end_reason), info=info,
    )  # fmt: skip


def two_agents(end_reason="terminated"):
    x = Stream("x", "left", [turn([1, 2], [3, 4], 0.5), turn([5], [6], is_invalid_action=True)], np.array([30, 31]))
    y = Stream("y", "right", [turn([1], [2], 0.25)], np.array([32]))
    return episode([x, y, Stream("z", "left")], end_reason)


def test_an_episode_gives_a_sample_for_each_agent_that_has_acted():
    x, y = samples_from_episode(two_agents(), {"x": 4, "y": 5}.get)
    assert (x.tokens.tolist(), y.tokens.tolist()) == ([1, 2, 3, 4, 5, 6], [1, 2])
    assert [(s.agent, s.module, s.group, s.episode) for s in (x, y)] == [
        ("x", "left", 4, "0-1-2-3"),
        ("y", "right", 5, "0-1-2-3"),
    ]
    assert x.reward.tolist() == [0, 0, 0, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("end_reason", "flags"),
    [("terminated", (True, False)), ("horizon", (False, False)), ("context_limit", (False, True))],
)
def test_a_sample_says_how_its_episode_ended(end_reason, flags):
    [sample] = samples_from_episode(
        episode([Stream("agent", "m", [turn([1], [2])])], end_reason, is_success=True), lambda _: 0
    )
    assert (sample.is_terminated, sample.is_overlong) == flags
    assert sample.is_success is True


@pytest.mark.parametrize(
    ("end_reason", "max_tokens", "added"),
    [
        ("terminated", 100, []),
        ("horizon", 100, [30, 31]),
        ("horizon", 7, [30]),
        ("horizon", 6, []),
        ("horizon", None, []),
    ],
)
def test_a_critic_sees_the_final_observation_of_truncated_episodes_only_and_what_the_context_holds(
    end_reason, max_tokens, added
):
    x, _ = samples_from_episode(two_agents(end_reason), lambda _: 0, max_tokens=max_tokens)
    assert x.tokens.tolist() == [1, 2, 3, 4, 5, 6, *added]
    assert x.weight.tolist() == [0, 0, 1, 1, 0, 1] + [0] * len(added)


def test_an_invalid_action_costs_its_turn_the_penalty_and_leaves_the_episode_as_it_was():
    played = two_agents()
    x, y = samples_from_episode(played, lambda _: 0, invalid_action_penalty=0.125)
    assert x.reward.tolist() == [0, 0, 0, 0.5, 0, -0.125]
    assert y.reward.tolist() == [0, 0.25]
    assert played.streams["x"].total_reward == 0.5


def test_a_sample_knows_its_role_and_what_the_other_agents_have_earned():
    played = two_agents()
    played.streams["y"].role = "seat 0"
    x, y = samples_from_episode(played, {"x": 4, "seat 0": 5}.get, invalid_action_penalty=0.125)
    assert (x.role, y.role) == ("x", "seat 0")  # an agent's own name, where nobody says otherwise
    assert (x.group, y.group) == (4, 5)  # who played the same, not who has the same name, is compared
    assert (x.others_return, y.others_return) == (0.25, 0.5 - 0.125)
    assert AdvantageRows([x, y]).others_return_N.tolist() == [0.25, 0.375]


def test_states_are_the_same_by_their_text_whether_or_not_the_turn_before_was_cut():
    """Token 9 ends a turn; where an action was cut, the observation begins with it."""

    def row(episode, action, observation, states=()):
        turns = [
            Turn(np.array([1]), np.array(action), np.zeros(len(action), np.float32), 0, 0),
            Turn(np.array(observation), np.array([6, 9]), np.zeros(2, np.float32), 0, 1),
        ]
        return Sample.of_turns(turns, episode=episode, states=states)

    rows = AdvantageRows([row("a", [5, 9], [7, 8]), row("b", [5, 9], [7, 8]), row("c", [5, 5], [9, 7, 8])])
    assert rows.turn_state_NU.tolist() == [[0, 1]] * 3
    rows = AdvantageRows([row("a", [5, 9], [7, 8]), row("b", [5, 9], [9, 7, 8])])  # its own 9
    assert rows.turn_state_NU.tolist() == [[0, 1], [0, 2]]
    rows = AdvantageRows([row("a", [5, 9], [7, 8], ("here", "there")), row("b", [5, 9], [1, 7, 8], ("here", "there"))])
    assert rows.turn_state_NU.tolist() == [[0, 1]] * 2


def test_a_turns_state_is_what_the_agent_was_told_before_it():
    turns = [Turn(np.array([1]), np.array([2]), np.zeros(1, np.float32), 0, k, context_index=k // 2) for k in range(3)]
    said = [("system", "s"), ("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y"), ("user", "c")]
    messages = [{"role": role, "content": text} for role, text in [*said, ("assistant", "z"), ("user", "end")]]
    stream = Stream("agent", "policy", turns, messages=messages)
    task = TaskGroup((0, 0, 0), None, 1)
    episode = Episode("e", task, 0, 0, streams={"agent": stream}, end_reason="terminated")
    assert [sample.states for sample in samples_from_episode(episode, lambda _: 0)] == [("a", "b"), ("c",)]
    stream.messages = messages[:3]  # not those of its turns
    assert [sample.states for sample in samples_from_episode(episode, lambda _: 0)] == [(), ()]
