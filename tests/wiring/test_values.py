"""What passes from one part to the next, by value: a part that hands on another number fails here."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from ray.tune.registry import register_env

from rllm_gym.algorithms.grpo import GRPO, GRPOConfig
from rllm_gym.callbacks.scaling_inter import ScalingInter
from rllm_gym.training.advantage_rows import AdvantageRows
from rllm_gym.training.samples_ahead import PlayedGroup, SamplesAhead
from rllm_gym.types import Episode, Sample, Stream, TaskGroup, Turn
from tests.envs.toy_multi_agent import TakeAway
from tests.learner.learner_helpers import make_config, make_group, make_samples, update
from tests.wiring import harness
from tests.wiring.harness import run
from tests.wiring.maze import Maze

pytestmark = pytest.mark.promise


class CutMaze(Maze):
    """Ends no episode by itself: the environment truncates them after two steps."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, self._steps == 2, info


register_env("cut_maze", lambda config: CutMaze(**config))


def test_every_policys_engine_has_its_own_weights(ray_cluster, tiny_model, monkeypatch):
    register_env("take_away", lambda config: TakeAway(**config))
    monkeypatch.setattr(harness, "REPLIES", ("1", "2", "3"))
    own = {"player_0": {"lr": 1e-3}, "player_1": {"lr": 5e-3}}
    options = {"policies": ["player_0", "player_1"], "algorithm_config_overrides_per_module": own}
    with run(tiny_model, env="take_away", max_episode_steps=None, **options) as found:
        found.algo.sync_weights()
        trained = found.algo.learner_group.get_weights()
        assert any(not np.array_equal(trained["player_0"][n], trained["player_1"][n]) for n in trained["player_0"])
        for policy_id, weights in trained.items():
            got = found.runner.engines[policy_id].weights
            assert {f"lm.{name}" for name in got} == weights.keys()
            assert all(np.array_equal(np.asarray(value), weights[f"lm.{name}"]) for name, value in got.items())


def test_an_episode_that_the_environment_truncates_is_valued_beyond_its_end(ray_cluster, tiny_model):
    options = {"bootstrap": "truncated", "critic_lr": 1e-2, "steps": 2}  # a critic's first values are 0
    with run(tiny_model, method="PPO", env="cut_maze", max_episode_steps=5, **options) as found:
        assert found.env_metrics["truncated_fraction"] == 1.0
        assert found.env_metrics["horizon_fraction"] == found.env_metrics["context_limit_fraction"] == 0.0
        assert found.env_metrics["episode_len_mean"] == 2.0
        for sample in found.samples:
            assert not sample.is_terminated
            assert sample.weight[-1] == 0 and sample.final_value != 0.0  # the final observation stands behind


def test_the_share_of_useful_groups_is_of_those_whose_returns_differ(ray_cluster, tiny_model):
    with run(tiny_model, groups_per_step=8, group_size=2, max_episode_steps=1) as found:
        returns = {}
        for episode in found.algo.sampled.played:
            returns.setdefault(episode.group.key, set()).add(round(episode.streams["agent"].total_reward, 6))
        share = sum(len(of_group) > 1 for of_group in returns.values()) / 8
        assert 0 < share < 1 and share != 0.5
        assert found.env_metrics["useful_group_share"] == share
    with run(tiny_model, groups_per_step=8, group_size=2, max_episode_steps=1, filter_groups="off") as found:
        assert found.env_metrics["useful_group_share"] == share  # also where none is dropped
        assert found.results[-1]["num_groups_dropped"] == 0


def test_the_age_of_a_group_is_that_of_its_oldest_token():
    def episode(*versions, module="policy"):
        turns = [Turn(np.array([1]), np.array([2]), np.zeros(1, np.float32), v, k) for k, v in enumerate(versions)]
        return Episode("e", TaskGroup((0, 0, 0), None, 2), 0, 0, streams={module: Stream(module, module, turns)})

    ahead = SamplesAhead(SimpleNamespace(), 3, num_groups=1, horizons=dict)
    task = TaskGroup((0, 0, 0), None, 2)
    ahead._submitted[task.key] = (task, 0)
    ahead._ended[task.key] = PlayedGroup([episode(4, 5), episode(3, 6), episode(1, module="opponent")])
    [group] = ahead.take(1, 7, 7, of_policies=lambda module: module == "policy")
    assert group.age == 7 - 3


@pytest.mark.parametrize(("old_logp", "expected"), [("rollout", [0.7, 1.7]), ("recompute", [0.9, 1.9])])
def test_the_kl_in_the_reward_is_that_of_the_policy_before_the_update(old_logp, expected):
    algo = object.__new__(GRPO)
    algo.config, algo.kl_coeff = GRPOConfig().training(old_logp=old_logp, kl_coeff=0.5, kl_kind="k1"), {}
    turns = [Turn(np.array([1]), np.array([2]), np.full(1, -0.4, np.float32), 0, k, 1.0 + k) for k in range(2)]
    sample = Sample.of_turns(turns, episode="e")
    sample.trainer_logp, sample.ref_logp = np.full(4, -0.8, np.float32), np.full(4, -1.0, np.float32)
    # k1 is -0.4 + 1 = 0.6 to the sampler, -0.8 + 1 = 0.2 to the trainer; half of it is taken off 1 and 2.
    shaped = algo._kl_shaped_reward("policy", AdvantageRows([sample]))
    assert shaped.tolist() == [pytest.approx(expected, abs=1e-6)]


def test_a_resumed_runs_first_step_has_the_schedules_rate(tiny_model, tmp_path):
    # From 0 to 1e-3 in four steps; a fifth of the way is 2.5e-4.
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 4, "warmup_type": "linear"}}
    config = {"deepspeed": {"scheduler": schedule}, "lr": 1e-3}

    def rate(group):
        [engine] = group._learner.engines.values()
        return engine.basic_optimizer.param_groups[0]["lr"]

    one, samples = make_group(make_config(tiny_model, **config)), make_samples(4)
    for _ in range(3):
        update(one, samples)
    assert 0 < rate(one) < 1e-3
    one._learner.save_engines(str(tmp_path))
    again = make_group(make_config(tiny_model, **config))
    again._learner.load_engines(str(tmp_path))
    assert rate(again) == rate(one)
    update(one, samples)
    update(again, samples)
    assert rate(again) == rate(one)


def test_a_resumed_run_counts_on_from_the_steps_that_it_has_skipped(tiny_model, tmp_path):
    one, again = (make_group(make_config(tiny_model))._learner for _ in range(2))
    [module_id] = one.engines
    one.num_skipped_steps[module_id] = 2
    one.save_engines(str(tmp_path))
    again.load_engines(str(tmp_path))
    assert again.num_skipped_steps == {module_id: 2}


def test_an_adaptive_horizon_reads_the_truncated_share_of_the_failures():
    schedule = GRPOConfig().environment("rllm_gym/TextCraft-v0")
    schedule.scaling_inter = {"type": "adaptive", "horizons": [2, 3], "min_steps_per_stage": 50}
    [adaptive] = schedule.horizon_schedules.values()
    callback = ScalingInter()
    metrics = {"num_episodes": 8, "success_rate": 0.25, "horizon_fraction": 0.6}
    callback._observe(None, "env", adaptive, metrics)
    callback._observe(None, "env", adaptive, metrics | {"success_rate": 1.0, "horizon_fraction": 0.0})
    assert callback.stages["env"].success_rates == [0.25, 1.0]
    assert callback.stages["env"].truncated_failures == [pytest.approx(0.6 / 0.75), 0.0]


def test_a_kl_coefficient_goes_on_from_that_of_the_step_before(ray_cluster, tiny_model):
    # The KL is far below its target: every step takes a fifth of the rate off.
    options = {"kl_coeff": 0.5, "kl_target": 1e6, "kl_rate": 0.5}
    with run(tiny_model, steps=3, **options) as found:
        used = [result["learners"]["default_policy"]["kl_coeff"] for result in found.results]
        assert used == pytest.approx([0.5, 0.5 * 0.9, 0.5 * 0.81])
        assert found.algo.kl_coeff == pytest.approx({"default_policy": 0.5 * 0.729})


def test_a_resumed_run_knows_its_empty_steps_and_its_first_evaluation(ray_cluster, tiny_model, tmp_path):
    options = {"env_config": {"reward": 0.0}, "filter_groups": "advantage", "max_empty_steps": 9}
    options |= {"evaluation_interval": 1, "evaluation_duration": 2}
    with run(tiny_model, steps=2, **options) as found:
        assert found.algo.num_empty_steps == 2
        first = found.results[-1]["evaluation_on_start"]
        path = found.algo.save_to_path(str(tmp_path / "checkpoint"))
    with run(tiny_model, steps=0, **options) as resumed:
        resumed.algo.restore_from_path(path)
        assert resumed.algo.num_empty_steps == 2
        again = resumed.algo.train()
        assert resumed.algo.num_empty_steps == 3
    assert again["evaluation_on_start"]["eval"] == first["eval"]
