"""Several agents: what each is compared with, whose tokens are trained, and who plays against whom."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
import torch
from ray.tune.registry import register_env

from rllm_gym.errors import ConfigError, RllmGymError
from tests.envs.toy_multi_agent import TakeAway
from tests.wiring import harness
from tests.wiring.harness import run

GAME = {"env": "take_away", "env_config": {"swap_seats": True}, "max_episode_steps": None}


@pytest.fixture(autouse=True)
def take_away(ray_cluster, monkeypatch):
    register_env("take_away", lambda config: TakeAway(**config))
    monkeypatch.setattr(harness, "REPLIES", ("1", "2", "3"))


def returns_of(played):
    return {(episode.episode_id, agent): s.total_reward for episode in played for agent, s in episode.streams.items()}


def test_a_return_is_compared_with_those_of_the_same_role_in_the_other_episodes(tiny_model):
    with run(tiny_model, **GAME, filter_groups="off", normalize_std=False) as found:
        groups = defaultdict(list)
        for episode in found.algo.sampled.played:
            for agent, stream in episode.streams.items():
                groups[episode.group.key, stream.role].append((episode.episode_id, agent, stream.total_reward))
        expected = {
            (episode_id, agent): value - np.mean([v for _, _, v in group])
            for group in groups.values()
            for episode_id, agent, value in group
        }
        got = {(sample.episode, sample.agent): sample.advantage[sample.weight > 0] for sample in found.trained}
    assert got.keys() == expected.keys()
    assert any(abs(value) > 0.1 for value in expected.values())
    for key, advantage in got.items():
        assert advantage == pytest.approx(expected[key], abs=1e-6)


def test_a_team_is_compared_by_the_sum_of_its_returns(tiny_model):
    with run(tiny_model, **GAME, filter_groups="off", normalize_std=False, advantage="joint") as found:
        played = found.algo.sampled.played
        team = {episode.episode_id: sum(s.total_reward for s in episode.streams.values()) for episode in played}
        groups = defaultdict(list)
        for episode in played:
            for stream in episode.streams.values():
                groups[episode.group.key, stream.role].append(team[episode.episode_id])
        tasks = {episode.episode_id: episode.group.key for episode in played}
        for sample in found.trained:
            expected = team[sample.episode] - np.mean(groups[tasks[sample.episode], sample.role])
            assert sample.advantage[sample.weight > 0] == pytest.approx(expected, abs=1e-6)
    assert set(team.values()) == {0.0, -1.0}  # the other one never acts where the first move is illegal


def test_roles_have_baselines_which_checkpoints_keep(tiny_model, tmp_path):
    options = {**GAME, "advantage": "role", "role_decay": 0.5, "group_size": 1, "groups_per_step": 6}
    with run(tiny_model, **options) as found:
        baseline: dict[str, float] = defaultdict(float)
        expected = {}
        for episode in found.algo.sampled.played:
            for agent, stream in episode.streams.items():
                assert stream.role in ("first", "second")
                expected[episode.episode_id, agent] = stream.total_reward - baseline[stream.role]
                baseline[stream.role] = 0.5 * baseline[stream.role] + 0.5 * stream.total_reward
        for sample in found.trained:
            advantage = sample.advantage[sample.weight > 0]
            assert advantage == pytest.approx(expected[sample.episode, sample.agent], abs=1e-6)
        kept = found.algo.get_state()["role_baselines"]
        assert kept == pytest.approx({f"default_policy/take_away/{role}": value for role, value in baseline.items()})
        found.algo.train()
        assert found.algo.role_baselines != kept
        found.algo.set_state({**found.algo.get_state(), "role_baselines": kept})
        assert found.algo.role_baselines == kept


def test_turns_are_compared_with_the_same_agents_turns_of_that_number(tiny_model):
    options = {"filter_groups": "off", "normalize_std": False, "advantage": "agent_turn", "step_gamma": 1.0}
    with run(tiny_model, **GAME, **options) as found:
        groups = defaultdict(list)
        for episode in found.algo.sampled.played:
            for stream in episode.streams.values():
                for k in range(len(stream.turns)):
                    groups[episode.group.key, stream.role, k].append(stream.total_reward)  # earned at the end alone
        tasks = {episode.episode_id: episode.group.key for episode in found.algo.sampled.played}
        returns = returns_of(found.algo.sampled.played)
        num_turns = set()
        for sample in found.trained:
            ends = np.flatnonzero(sample.is_turn_end)
            num_turns.add(len(ends))
            for k, end in enumerate(ends):
                mean = np.mean(groups[tasks[sample.episode], sample.role, k])
                expected = returns[sample.episode, sample.agent] - mean
                assert sample.advantage[end] == pytest.approx(expected, abs=1e-6)
    assert len(num_turns) > 1


def by_player(agent_id, episode, **_):
    return {"player_0": "left", "player_1": "right"}[agent_id]


POLICIES = {"policies": {"left", "right"}, "policy_mapping_fn": by_player}


def test_policies_have_models_adapters_learning_rates_and_horizons_of_their_own(tiny_model, other_model):
    own = {
        "left": {"lr": 2e-3, "max_new_tokens": 9},
        "right": {"base_model": str(other_model), "lora": {"r": 4}, "max_episode_steps": 1},
    }
    options = {**GAME, **POLICIES, "algorithm_config_overrides_per_module": own, "kl_coeff": 0.1}
    with run(tiny_model, **options, filter_groups="off") as found:
        engines, learner = found.runner.engines, found.learner
        assert [engines[name].model for name in ("left", "right")] == [str(tiny_model), str(other_model)]
        lengths = {name: {params.max_new_tokens for params in engines[name].params} for name in engines}
        assert lengths == {"left": {9}, "right": {24}}
        rates = [learner.engines[name].basic_optimizer.param_groups[0]["lr"] for name in ("left", "right")]
        assert rates == [2e-3, 1e-3]
        trained = {n for n, p in learner.module["right"].named_parameters() if p.requires_grad}
        assert trained
        assert all("lora_" in name for name in trained)
        assert all(parameter.requires_grad for parameter in learner.module["left"].parameters())
        turns = [
            [len(s.turns) for s in e.streams.values() if s.module_id == "right"] for e in found.algo.sampled.played
        ]
        assert max(map(max, filter(None, turns))) == 1
        ended = {e.end_reason for e in found.algo.sampled.played}
        assert ended == {"horizon", "terminated"}
        assert found.results[-1]["learners"]["right"]["ref_kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [(["player_1", "player_0"], {"player_0": "player_0", "player_1": "player_1"}),
     (["all"], {"player_0": "all", "player_1": "all"})],
)  # fmt: skip
def test_without_a_mapping_policies_play_the_agents_of_their_names_or_one_plays_all(tiny_model, policies, expected):
    with run(tiny_model, **GAME, policies=policies) as found:
        streams = [s for e in found.algo.sampled.played for s in e.streams.values()]
        assert {s.agent_id: s.module_id for s in streams} == expected
        assert {sample.module for sample in found.trained} == set(policies)


@pytest.mark.parametrize(
    "options",
    [{"policies": ["planner", "actor"]}, {**POLICIES, "policies": ["left", "rigth"]}],
)
def test_an_agent_without_a_policy_ends_the_run_with_a_line_on_both(tiny_model, options):
    with (
        pytest.raises(
            RllmGymError, match=r"policies: must have one for each agent; got .*, and '\w+' is to play player_"
        ),
        run(tiny_model, **GAME, **options),
    ):
        pass


def test_an_option_of_an_unknown_policy_and_an_unknown_option_of_a_policy_are_refused(tiny_model):
    for own, message in (
        ({"leftt": {"lr": 1.0}}, "policies of the run; got 'leftt'. Did you mean 'left'?"),
        ({"left": {"temperature": 1.0}}, "algorithm_config_overrides_per_module must be a mapping"),
    ):
        with (
            pytest.raises(ConfigError, match=re.escape(message)),
            run(tiny_model, **GAME, **POLICIES, algorithm_config_overrides_per_module=own),
        ):
            pass


@pytest.mark.parametrize("policies", [{}, {**POLICIES, "policies_to_train": ["left"]}])
def test_a_centralised_critic_reads_all_agents_and_values_each_ones_tokens(tiny_model, policies):
    options = {**GAME, **policies, "method": "PPO", "groups_per_step": 6, "critic_lr": 1e-2, "critic_epochs": 2}
    with run(tiny_model, **options, critic="centralised") as found:
        algo, modules = found.algo, dict(found.learner.module.items())
        critic = modules.pop("centralised_critic")
        shared = {id(p) for p in critic.parameters()} & {id(p) for m in modules.values() for p in m.parameters()}
        assert not shared
        metrics = found.results[-1]["learners"]["centralised_critic"]
        assert metrics["num_sampled_tokens_trained"] == sum(int((s.weight != 0).sum()) for s in found.trained)
        assert {"vf_loss", "gradient_norm"} <= set(metrics)
        assert not {"kl", "entropy"} & set(metrics)
        # The values of its second step, against the critic by itself on what all agents have read and written.
        played = algo.sampled.played
        samples = algo._samples_of(played)
        algo._score_for_advantage(samples, played)
        assert {s.module for s in samples} == ({"left"} if policies else {"default_policy"})
        num_joint = 0
        for sample in samples:
            episode = next(e for e in played if e.episode_id == sample.episode)
            turns = sorted(
                ((t.env_step, a, t) for a, s in episode.streams.items() for t in s.turns), key=lambda x: x[0]
            )
            num_joint += len(episode.streams) > 1
            text, expected = [], []
            for _, agent, turn in turns:
                begin = len(text) + len(turn.observation_ids)
                text += [*turn.observation_ids, *turn.action_ids]
                if agent == sample.agent:
                    expected += range(begin - 1, len(text) - 1)  # the value of what comes before each token
            with torch.no_grad():
                hidden = critic.bare_lm(input_ids=torch.tensor([text])).last_hidden_state[0]
                value = critic.value_head(hidden)[:, 0].numpy()
            assert sample.value[sample.weight != 0] == pytest.approx(value[expected], abs=1e-5)
            assert np.abs(value[expected]).max() > 1e-4
            # And the policy is trained on its own agent's tokens alone.
            own = [i for t in episode.streams[sample.agent].turns for i in (*t.observation_ids, *t.action_ids)]
            assert sample.tokens.tolist() == own
        assert num_joint > 3
