"""One run on several environments, and horizons that follow the learning."""

from __future__ import annotations

from collections import Counter

import pytest

from rllm_gym.algorithms.agent_evol import AgentEvolConfig
from rllm_gym.data import read_episodes
from tests.algorithms.algorithm_helpers import toy_config
from tests.algorithms.offline_helpers import offline_config

pytestmark = pytest.mark.slow


MIXTURE = [
    {"id": "say_the_word", "name": "short", "weight": 3, "env_config": {"num_turns": 4}},
    {"id": "say_the_word", "name": "long", "env_config": {"num_turns": 6}},
]


def test_groups_of_several_environments_train_together_each_with_its_schedule(tiny_model, build):
    scaling = {
        "short": {"type": "fixed", "horizons": [2]},
        "long": {"type": "stepwise", "horizons": [3, 5], "steps_per_stage": 1},
    }
    config = toy_config(
        tiny_model,
        env=MIXTURE,
        max_episode_steps=None,
        scaling_inter=scaling,
        engine="transformers",
        groups_per_step=4,
        group_size=4,
        save_trajectories=True,
        evaluation_interval=2,
        evaluation_on_start=False,
        evaluation_duration=3,
        evaluation_splits=["train"],
    )
    algo = build(config)
    first, second = algo.train(), algo.train()
    records = [record for record in read_episodes(algo.trajectories_path) if not record.is_evaluation]
    assert (first["max_episode_steps"], second["max_episode_steps"]) == (3, 5)
    for result, long_horizon in ((first, 3), (second, 5)):
        by_env = result["env_runners"]["by_env"]
        assert {name: m["num_episodes"] for name, m in by_env.items()} == {"short": 12, "long": 4}
        assert {name: m["max_episode_steps"] for name, m in by_env.items()} == {"short": 2, "long": long_horizon}
        assert by_env["short"]["num_turns_mean"] == 2.0
        assert by_env["long"]["num_turns_mean"] == long_horizon
        assert result["env_runners"]["num_episodes"] == 16
    groups = {}
    for record in records:
        groups.setdefault(tuple(record.group), set()).add(record.max_episode_steps)
    assert sorted(groups.values(), key=min) == [{2}] * 6 + [{3}, {5}]  # a group stays in one environment
    evaluated = second["evaluation"]["train"]["by_env"]
    assert {name: m["num_episodes"] for name, m in evaluated.items()} == {"short": 3, "long": 3}


def test_agent_evol_explores_several_environments_beside_all_their_experts(tiny_model, build):
    config = offline_config(
        AgentEvolConfig(), tiny_model, env=MIXTURE, max_episode_steps=None, data="expert", keep="reward",
        scaling_inter={"short": {"type": "fixed", "horizons": [4]}, "long": {"type": "fixed", "horizons": [6]}},
        groups_per_step=4, groups_per_request=2, group_size=4, save_trajectories=True, engine="transformers",
    )  # fmt: skip
    algo = build(config)
    result = algo.train()
    assert {name: m["num_episodes"] for name, m in result["env_runners"]["by_env"].items()} == {"short": 12, "long": 4}
    turns = Counter(len(record.turns) for record in read_episodes(algo.trajectories_path))
    assert turns == {4: 12, 6: 4}
    # Of the experts' 40 episodes three quarters are of the first environment; a turn's answer is three letters and its
    # end.
    learnt = Counter(int((algo.samples[k].weight > 0).sum()) for k in range(len(algo.samples)))
    assert learnt == {4 * 4: 30, 6 * 4: 10}
    assert result["num_base_samples"] == 40 and 0 < result["num_kept_samples"] <= 16


def test_an_adaptive_horizon_rises_by_what_was_sampled_and_survives_a_checkpoint(tiny_model, build, tmp_path):
    scaling = {"type": "adaptive", "horizons": [1, 2, 3], "min_steps_per_stage": 2, "window": 1, "min_improvement": 2.0}
    config = toy_config(
        tiny_model,
        env_config={"num_turns": 4},
        max_episode_steps=None,
        scaling_inter=scaling,
        engine="transformers",
        groups_per_step=2,
        group_size=4,
    )
    algo = build(config)
    seen = [algo.train()["max_episode_steps"] for _ in range(3)]
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    assert seen == [1, 1, 2]  # no success can rise by 2.0
    restored = type(algo).from_checkpoint(path)
    try:
        assert [restored.train()["max_episode_steps"] for _ in range(3)] == [2, 3, 3]
    finally:
        restored.stop()
