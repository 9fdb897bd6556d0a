"""GRPO end to end on toy environments: it learns, resumes bit for bit, survives dead runners, reports what fails."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from rllm_gym.algorithms.grpo import GRPO
from rllm_gym.data import read_episodes
from rllm_gym.errors import RllmGymError, TooManyFailedEpisodesError
from tests.algorithms.algorithm_helpers import equal, module_weights, not_finite, numbers, toy_config

pytestmark = pytest.mark.slow


NUM_TURNS = 3
SCALING = {"type": "stepwise", "horizons": [1, 2], "steps_per_stage": 20}


@pytest.fixture(scope="module")
def learnt(tiny_model, toy_environments):
    """An algorithm after the steps of its first horizon, and their results: one for three promises."""
    options = {"env_config": {"num_turns": NUM_TURNS}, "max_episode_steps": None, "scaling_inter": SCALING}
    algo = toy_config(tiny_model, lr=3e-3, **options).build_algo()
    results = [algo.train() for _ in range(SCALING["steps_per_stage"])]
    yield algo, results
    algo.stop()


@pytest.mark.promise
def test_it_learns_to_say_the_word(learnt):
    # Each turn earns its share, and at the first horizon there is one.
    returns = [NUM_TURNS * result["env_runners"]["episode_return_mean"] for result in learnt[1]]
    print("returns", np.round(returns, 3))
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.25


@pytest.mark.promise
def test_a_restored_run_takes_the_same_next_step_bit_for_bit(learnt, tmp_path):
    algo, results = learnt
    assert results[-1]["max_episode_steps"] == 1
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    saved = module_weights(algo)
    expected = algo.train()
    straight = module_weights(algo)
    assert not equal(saved, straight)

    restored = GRPO.from_checkpoint(path)
    try:
        assert equal(saved, module_weights(restored))
        resumed = restored.train()
        assert equal(straight, module_weights(restored))
        for name in ("max_episode_steps", "policy_version", "training_iteration"):
            assert resumed[name] == expected[name], name
        assert resumed["max_episode_steps"] == 2
        assert resumed["env_runners"]["num_episodes_lifetime"] == expected["env_runners"]["num_episodes_lifetime"]
    finally:
        restored.stop()

    # And in place, backwards: the runners must drop the newer weights that they hold.
    algo.restore_from_path(path)
    algo.train()
    assert equal(straight, module_weights(algo))


@pytest.mark.promise
def test_a_killed_env_runner_is_replaced_with_the_present_weights_and_horizon(learnt):
    algo, _ = learnt
    before = algo.train()
    [pid] = algo.env_runner_group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
    os.kill(pid, signal.SIGKILL)
    result = algo.train()
    assert result["fault_tolerance"]["num_remote_worker_restarts"] == 1
    assert result["env_runners"]["num_episodes"] == 128
    assert result["max_episode_steps"] == 2
    assert result["env_runners"]["num_turns_mean"] == 2.0
    assert result["policy_version"] == before["policy_version"] + 1
    assert result["learners"]["default_policy"]["logp_difference_max"] < 1e-3
    assert result["fault_tolerance"]["num_groups_killed_runners"] == 0


def test_a_group_that_kills_two_runners_is_dropped_and_the_others_are_played(tiny_model, build_on_ray, caplog):
    options = {"groups_per_step": 4, "group_size": 2, "engine": "transformers"}
    algo = build_on_ray(toy_config(tiny_model, "deadly", env_config={"item": 2}, num_env_runners=2, **options))
    asked = [(group.key, group.item_id) for group in algo.task_sampler.groups(0, 4)]
    result = algo.train()
    survivors = [(key, item) for key, item in asked for _ in range(2) if item != "say_the_word_2"]
    assert [(episode.group.key, episode.item_id) for episode in algo.sampled.played] == survivors
    assert (len(survivors), result["env_runners"]["num_failed_episodes"]) == (6, 0)
    assert result["fault_tolerance"]["num_groups_killed_runners"] == 1
    assert "of deadly (say_the_word_2): it killed two EnvRunners." in caplog.text


def test_runners_that_are_killed_while_they_sample_ahead_lose_nothing(tiny_model, build_on_ray):
    options = {"groups_per_step": 4, "group_size": 2, "engine": "transformers", "filter_groups": "off"}
    algo = build_on_ray(toy_config(tiny_model, num_env_runners=2, staleness=1, **options))
    keys, steps = [], 0

    def train():
        nonlocal steps
        result = algo.train()
        steps += 1
        keys.extend(episode.group.key for episode in algo.sampled.played if episode.member == 0)
        assert result["env_runners"]["num_episodes"] == 8
        assert result["num_groups_stale"] == 0
        return result

    def train_until(is_enough):
        while not is_enough(train()):
            assert steps < 100

    def pids():
        return algo.env_runner_group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)

    train()
    for num_killed in (1, 2):
        train_until(lambda result: len(pids()) == 2)  # one that was killed is back
        for pid in pids()[:num_killed]:
            os.kill(pid, signal.SIGKILL)
    train_until(lambda result: result["fault_tolerance"]["num_remote_worker_restarts"] == 3)
    assert len(keys) == len(set(keys)) == 4 * steps
    assert {key[1] for key in keys} <= set(range(steps + 1))  # of the train steps, and one ahead


def test_every_metric_is_finite_in_every_result_also_when_all_groups_are_dropped(tiny_model, build):
    algo = build(toy_config(tiny_model, env_config={"num_turns": 2}, groups_per_step=2, group_size=8))
    for _ in range(2):
        result = algo.train()
        assert not not_finite(result)
    names = set(numbers(result))
    algo.advantage = lambda rows: torch.zeros(len(rows))
    before = module_weights(algo)
    result = algo.train()
    assert set(numbers(result)) == names
    assert not not_finite(result)
    assert result["num_groups_dropped"] == result["num_groups"] == 2
    assert equal(before, module_weights(algo))
    assert algo.train()["policy_version"] == 2  # two syncs so far: the empty steps made none
    algo.config._is_frozen = False
    algo.config.max_empty_steps = 3
    with pytest.raises(RllmGymError, match="3 train steps in a row had only groups of equal returns"):
        algo.train()


def test_dropped_groups_are_refilled_within_the_budget(tiny_model, build):
    algo = build(toy_config(tiny_model, groups_per_step=2, group_size=4, max_refill_rounds=2))
    asked = []
    sample = algo.sample
    algo.sample = lambda groups, **kwargs: asked.append(list(groups)) or sample(groups, **kwargs)
    algo.advantage = lambda rows: 1.0 - torch.isin(rows.group_N, torch.tensor([0, 2])).float()
    result = algo.train()
    assert [len(groups) for groups in asked] == [2, 1, 1]  # 0 is dropped, then 2 in its place, then 3 is kept
    assert len({group.key for groups in asked for group in groups}) == 4
    assert (result["num_groups"], result["num_groups_dropped"]) == (4, 2)
    assert result["env_runners"]["num_episodes"] == 16
    algo.advantage = lambda rows: torch.zeros(len(rows))
    assert algo.train()["num_groups"] == 6


def test_failed_episodes_are_dropped_and_counted_and_too_many_stop_the_run(tiny_model, build_on_ray, tmp_path):
    config = toy_config(
        tiny_model, "flaky", env_config={"fail_resets": 3}, max_episode_retries=0, max_failed_fraction=0.2,
        groups_per_step=4, group_size=8, save_trajectories=True, engine="transformers",
    )  # fmt: skip
    algo = build_on_ray(config)
    result = algo.train()
    failed = result["env_runners"]["num_failed_episodes"]
    assert failed == 3
    assert result["env_runners"]["num_episodes"] == 32 - 3
    records = list(read_episodes(algo.trajectories_path))
    assert sum(record.error is not None for record in records) == 3
    assert len(records) == 32
    assert not [turn for record in records if record.error for turn in record.turns if turn.advantage is not None]

    strict = build_on_ray(config.copy(copy_frozen=False).env_runners(max_failed_fraction=0.0))
    with pytest.raises(TooManyFailedEpisodesError, match=r"3 of the \d+ episodes that had ended failed.*EnvError"):
        strict.train()
    # What a failed train step has sampled is stored: where too many episodes failed, and where the update fails.
    stored = [record.error for record in read_episodes(strict.trajectories_path)]
    assert len([error for error in stored if error]) == 3 and len(stored) < 32  # nothing was begun after the third
    algo.update = lambda *args, **settings: 1 / 0
    with pytest.raises(ZeroDivisionError):
        algo.train()
    assert [record.train_step for record in read_episodes(algo.trajectories_path)] == [0] * 32 + [1] * 32


def test_what_breaks_in_a_runner_reaches_the_driver(tiny_model, build_on_ray):
    with pytest.raises(RllmGymError, match=r"could not be built: .*no_such_option"):
        build_on_ray(toy_config(tiny_model, engine_options={"no_such_option": 1}))


def test_with_lora_the_sampler_follows_the_adapter(tiny_model, build):
    algo = build(toy_config(tiny_model, lora={"r": 8, "lora_alpha": 32}, lr=3e-2, groups_per_step=2))
    algo.train()
    second = algo.train()
    assert second["policy_version"] == 1
    assert second["learners"]["default_policy"]["logp_difference_max"] < 1e-3


def test_evaluation_repeats_with_the_same_seeds_and_leaves_training_alone(tiny_model, build):
    config = toy_config(tiny_model, evaluation_splits=["train", "eval"], evaluation_duration=12)
    algo = build(config)
    first, second = algo.evaluate(), algo.evaluate()
    assert first["train"]["num_episodes"] == first["eval"]["num_episodes"] == 12
    for split in ("train", "eval"):
        assert first[split]["episode_return_mean"] == second[split]["episode_return_mean"]
    algo.train()
    untouched = build(config)
    untouched.train()
    assert equal(module_weights(algo), module_weights(untouched))


@pytest.mark.parametrize("is_simultaneous", [False, True])
def test_two_agents_share_one_module(tiny_model, build, is_simultaneous):
    config = toy_config(tiny_model, "pass_the_word", env_config={"is_simultaneous": is_simultaneous}, lr=3e-3)
    config.multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "shared")
    algo = build(config)
    results = [algo.train() for _ in range(3)]
    assert results[-1]["env_runners"]["num_episodes"] == 128
    assert results[-1]["num_groups"] == 16  # a group for each task and agent
    assert results[-1]["learners"]["shared"]["logp_difference_max"] < 1e-3
    assert results[-1]["learners"]["shared"]["gradient_norm"] > 0


def test_of_two_modules_the_frozen_one_stays_bit_equal(tiny_model, build):
    config = toy_config(tiny_model, "pass_the_word", lr=3e-3)
    config.multi_agent(
        policies={"alice", "bob"},
        policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id,
        policies_to_train=["alice"],
    )
    algo = build(config)
    before = {name: module_weights(algo, name) for name in ("alice", "bob")}
    for _ in range(2):
        result = algo.train()
    assert not equal(before["alice"], module_weights(algo, "alice"))
    assert equal(before["bob"], module_weights(algo, "bob"))
    assert result["learners"]["alice"]["gradient_norm"] > 0
    assert "gradient_norm" not in result["learners"].get("bob", {})


def test_two_runners_and_two_zero_3_learners_train_like_one_of_each_and_resume(
    tiny_model, build, toy_environments, tmp_path
):
    options = {"groups_per_step": 4, "engine": "transformers"}  # which starts in half the time
    one = build(toy_config(tiny_model, **options))
    two_of_each = {"num_env_runners": 2, "num_learners": 2, "zero_stage": 3, "tokens_per_micro_batch": 900}
    many = build(toy_config(tiny_model, **options, **two_of_each))
    for _ in range(2):
        first, second = one.train(), many.train()
    assert second["env_runners"]["num_episodes"] == 64
    assert second["learners"]["default_policy"]["logp_difference_max"] < 1e-3  # both samplers hold the trained weights
    for name in ("gradient_norm", "policy_loss", "num_sampled_tokens_trained"):
        expected = first["learners"]["default_policy"][name]
        assert second["learners"]["default_policy"][name] == pytest.approx(expected, rel=1e-3, abs=1e-4), name
    difference = max(
        np.abs(a - b).max() for a, b in zip(*(module_weights(x).values() for x in (one, many)), strict=True)
    )
    assert difference < 5e-4

    path = many.save_to_path(str(tmp_path / "checkpoint"))
    many.train()
    straight = module_weights(many)
    many.restore_from_path(path)
    many.train()
    assert equal(straight, module_weights(many))
