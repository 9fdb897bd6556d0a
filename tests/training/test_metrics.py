"""A train step reports these numbers about its episodes."""

import numpy as np
import pytest

from rllm_gym.training.metrics import EPISODE_METRICS, episode_metrics
from rllm_gym.types import EndReason, Episode, Stream, TaskGroup, Turn

IDS, LOGP = np.array([1]), np.zeros(1, np.float32)


def episode(**invalid_by_agent):
    streams = {
        agent: Stream(agent, "m", [Turn(IDS, IDS, LOGP, 0, k, is_invalid_action=flag) for k, flag in enumerate(flags)])
        for agent, flags in invalid_by_agent.items()
    }
    return Episode("e", TaskGroup((0, 0, 0), "T", 1), 0, 0, streams=streams)


def test_invalid_actions_are_a_share_of_all_turns_of_all_agents():
    played = [episode(agent=[True, False, False]), episode(x=[True, True], y=[False, False, False])]
    # 3 of 8 turns; the mean over episodes would be 11 / 30
    assert episode_metrics(played, [])["invalid_action_fraction"] == pytest.approx(3 / 8)
    assert episode_metrics([], [])["invalid_action_fraction"] == 0.0


def test_success_and_returns_are_of_the_episodes_that_every_task_plays():
    def played(item, successes):
        group = TaskGroup((0, 0, 0), item, 4)
        for member, succeeds in enumerate(successes):
            streams = {"agent": Stream("agent", "m", [Turn(IDS, IDS, LOGP, 0, 0, reward=float(succeeds))])}
            is_conditional = member >= 2
            yield Episode(
                "e", group, member, 0, "", item, streams, info={"is_success": succeeds}, is_conditional=is_conditional
            )

    # The other two of B are played because its first two ended differently.
    found = episode_metrics([*played("A", [False, False]), *played("B", [True, False, True, True])], [])
    assert (found["success_rate"], found["episode_return_mean"], found["num_episodes"]) == (0.25, 0.25, 6)


def ids(n):
    return np.arange(n)


def turn(num_observed, num_sampled, **fields):
    return Turn(ids(num_observed), ids(num_sampled), np.zeros(num_sampled, np.float32), 0, **{"env_step": 0} | fields)


def test_every_number_is_what_a_hand_makes_of_two_episodes():
    rewritten = Stream(
        "agent",
        "default_policy",
        [
            turn(10, 2, reward=0.25, num_cached_tokens=4, rewards={"brevity": 0.5}),
            turn(3, 1, env_step=1, reward=0.5, is_invalid_action=True, num_cached_tokens=12),
            turn(6, 4, env_step=2, context_index=1, attempt=2, rewards={"brevity": 0.25}),
        ],
    )
    won = Episode(
        "a",
        TaskGroup((0, 0, 0), "T", 2),
        0,
        0,
        streams={"agent": rewritten},
        end_reason="horizon",
        info={"is_success": True},
        timings={"env_s": 1.0, "engine_s": 3.0},
        num_env_steps=3,
        num_retries=1,
        num_env_timeouts=1,
        num_role_markers=5,
    )
    lost = Episode(
        "b",
        TaskGroup((0, 0, 0), "T", 2),
        1,
        0,
        streams={"agent": Stream("agent", "default_policy", [turn(8, 6, reward=-1.0, is_invalid_action=True)])},
        end_reason="terminated",
        timings={"env_s": 2.0},
        num_env_steps=1,
    )
    broken = Episode(
        "c", TaskGroup((0, 0, 1), "U", 2), 0, 0, end_reason=EndReason.ERROR, num_retries=2, num_env_timeouts=2
    )
    assert episode_metrics([won, lost], [broken]) == pytest.approx(
        {
            "episode_return_mean": (0.75 - 1.0) / 2,
            "episode_return_min": -1.0,
            "episode_return_max": 0.75,
            "episode_len_mean": 2.0,
            "success_rate": 0.5,
            "num_turns_mean": 2.0,
            "num_tokens_mean": (26 + 14) / 2,
            "num_samples_mean": 1.5,
            "repeated_token_fraction": 0.0,
            "num_attempts_mean": 1.5,
            "invalid_action_fraction": 0.5,
            "illegal_rate": 0.5,
            "num_sampled_tokens_per_turn_mean": 13 / 4,
            "num_episodes": 2,
            "num_failed_episodes": 1,
            "num_episode_retries": 3,
            "num_env_timeouts": 3,
            "num_env_steps_sampled": 4,
            "num_role_markers_in_observations": 5,
            "num_sampled_tokens": 13,
            "truncated_fraction": 0.5,
            "horizon_fraction": 0.5,
            "context_limit_fraction": 0.0,
            # Prompts of 10, 15 and, rewritten, 6 tokens, and of 8.
            "prefix_cache_hit_fraction": 16 / 39,
            "num_replaced_params": 0,
            "env_s_mean": 1.5,
            "engine_s_mean": 1.5,
            "reward_brevity_mean": 0.375,
        }
    )
    none = episode_metrics([], [])
    assert all(np.isfinite(value) for value in none.values()) and none["success_rate"] == 0.0
    for reason in ("context_limit", "truncated"):
        won.end_reason = reason
        found = episode_metrics([won, lost], [])
        assert found["truncated_fraction"] == 0.5 and found["horizon_fraction"] == 0.0
        assert found["context_limit_fraction"] == 0.5 * (reason == "context_limit")


def test_the_table_names_every_metric_of_episodes_and_no_other():
    known = {name for metric in EPISODE_METRICS for name in metric.names if "<" not in name}
    of_train_steps = {"useful_group_share", "num_episodes_lifetime", "num_env_steps_sampled_lifetime"}
    assert known - of_train_steps == set(episode_metrics([], []))


def test_the_page_of_metrics_is_up_to_date():
    from tools.metrics_page import PAGE, page

    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run python -m tools.metrics_page"
