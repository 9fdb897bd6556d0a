"""AgentEvol: what is kept and how much it counts, learning over generations, resuming within one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from rllm_gym.algorithms.agent_evol import AgentEvol, AgentEvolConfig
from rllm_gym.checkpoints import CheckpointInfo, write_origin
from rllm_gym.data import SampleFile, read_episodes
from rllm_gym.errors import ConfigError
from rllm_gym.types import EndReason, Episode, Stream, TaskGroup, Turn
from tests.algorithms.algorithm_helpers import equal, module_weights, not_finite
from tests.algorithms.offline_helpers import offline_config

pytestmark = pytest.mark.slow


def evol_config(base_model, **options):
    defaults = {
        "data": None, "groups_per_step": 8, "group_size": 8, "groups_per_request": 4, "keep": "reward",
        "num_generation_epochs": 2, "restart_from_base": False, "save_trajectories": True,
        "keep_per_item": None, "accumulates": False,
    }  # fmt: skip
    return offline_config(AgentEvolConfig(), base_model, **{**defaults, **options})


def test_it_climbs_by_its_own_episodes_alone(tiny_model, build):
    options = {"groups_per_step": 16, "group_size": 16, "groups_per_request": 8, "num_generation_epochs": 6}
    algo = build(evol_config(tiny_model, engine="vllm", env_config={"num_turns": 2}, **options))
    results = [algo.train() for _ in range(6)]
    returns = [result["env_runners"]["episode_return_mean"] for result in results]
    kept = [result["num_kept_samples"] for result in results]
    print("returns", np.round(returns, 3), "kept", kept)
    assert returns[-1] > returns[0] + 0.1  # at seeds 0 to 4: 0.03 -> 0.24 0.25 0.21 0.19 0.21
    assert 0 < kept[0] < kept[-1] <= 16 * 16
    assert results[-1]["num_base_samples"] == 0


def test_a_generation_that_keeps_nothing_teaches_nothing_and_still_reports_everything(tiny_model, build):
    algo = build(evol_config(tiny_model, keep="threshold", threshold=2.0))
    before = module_weights(algo)
    results = [algo.train() for _ in range(2)]
    assert [result["num_kept_samples"] for result in results] == [0, 0]
    assert results[-1]["env_runners"]["num_episodes"] == 64
    assert equal(before, module_weights(algo))
    assert not [name for result in results for name in not_finite(result)]


def test_base_data_are_cloned_first_and_merged_into_every_generation(tiny_model, build):
    algo = build(evol_config(tiny_model, data="expert", num_cloning_epochs=12, num_generation_epochs=2))
    result = algo.train()
    # The episodes were played by the clone of the expert, not by the random model.
    assert result["env_runners"]["episode_return_mean"] > 0.9
    assert result["num_base_samples"] == 40
    kept = result["num_kept_samples"]
    assert 56 <= kept <= 64  # the clone fails now and then
    assert result["num_updates"] == np.ceil(2 * (40 + kept) / 16)
    assert result["learners"]["default_policy"]["gradient_norm"] > 0
    assert not not_finite(result)


@pytest.mark.promise
def test_each_generation_begins_with_the_base_model_and_a_fresh_optimizer_if_told_so(tiny_model, build):
    algo = build(evol_config(tiny_model, data="expert", restart_from_base=True, num_cloning_epochs=3))
    before = module_weights(algo)
    weights = algo._base_weights
    algo.train()
    trained = module_weights(algo)
    assert not equal(before, trained)
    algo.learner_group.foreach_learner(lambda learner: learner.restart(weights))
    assert equal(before, module_weights(algo))
    # From there, the same training makes the same weights: nothing of the old optimizer is left.
    fresh = build(evol_config(tiny_model, data="expert", restart_from_base=True, num_cloning_epochs=0))
    for one in (algo, fresh):
        one.prepare()
        one._imitate(None, num_epochs=1, seed=7)
    assert equal(module_weights(algo), module_weights(fresh))
    algo.sync_weights()
    assert algo.train()["env_runners"]["num_episodes"] == 64


def kept_of(algo, episodes) -> SampleFile:
    kept = SampleFile(algo.trajectories_path.parent)
    algo._keep(episodes, kept)
    return kept


@pytest.mark.promise
def test_of_each_task_the_first_successes_are_kept_and_data_accumulate_over_generations(tiny_model, build, tmp_path):
    config = evol_config(tiny_model, keep="threshold", threshold=0.0, keep_per_item=2, accumulates=True)
    algo = build(config)
    kept = [algo.train()["num_kept_samples"] for _ in range(2)]
    by_item = Counter((record.train_step, record.item_id) for record in read_episodes(algo.trajectories_path))
    assert kept[0] == sum(min(2, count) for (step, _), count in by_item.items() if step == 0)
    assert kept[1] == kept[0] + sum(min(2, count) for (step, _), count in by_item.items() if step == 1)
    first = next(record for record in read_episodes(algo.trajectories_path) if record.train_step == 0)
    ids = [i for turn in first.turns for i in (*turn.observation_ids, *turn.action_ids)]
    assert algo.kept[0].tokens.tolist() == ids
    # A restored run goes on with what was kept before, to the same weights.
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    expected = algo.train()["num_kept_samples"]
    straight = module_weights(algo)
    algo.restore_from_path(path)
    assert algo.train()["num_kept_samples"] == expected > kept[1]
    assert equal(straight, module_weights(algo))


@pytest.mark.promise
def test_an_episode_counts_by_its_return_or_not_at_all_below_the_threshold(tiny_model, build):
    algo = build(evol_config(tiny_model))
    groups = algo.task_sampler.groups(0, 4)
    episodes, _ = algo.sample(groups, max_episode_steps=algo.horizons)
    returns = [episode.streams["agent"].total_reward for episode in episodes]
    by_reward = kept_of(algo, episodes)
    weights = [by_reward[k].weight.max() for k in range(len(by_reward))]
    assert weights == pytest.approx([value for value in returns if value > 0])
    algo.config._is_frozen = False
    algo.config.keep, algo.config.threshold = "threshold", sorted(returns)[-5]
    above = kept_of(algo, episodes)
    assert len(above) == sum(value >= sorted(returns)[-5] for value in returns)
    assert {above[k].weight.max() for k in range(len(above))} == {1.0}


def test_an_interrupted_generation_takes_its_finished_episodes_from_the_store(tiny_model, build, tmp_path):
    algo = build(evol_config(tiny_model))
    algo.train()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))

    sample, asked = algo.sample, []

    def die_in_the_second_request(groups, **kwargs):
        asked.append(groups)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return sample(groups, **kwargs)

    algo.sample = die_in_the_second_request
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    stored = [record for record in read_episodes(algo.trajectories_path) if record.train_step == 1]
    assert len(stored) == 4 * 8

    resumed = AgentEvol.from_checkpoint(path)
    try:
        played = []
        sample_again = resumed.sample
        resumed.sample = lambda groups, **kwargs: played.extend(groups) or sample_again(groups, **kwargs)
        result = resumed.train()
        assert [group.key[1:] for group in played] == [(1, 4), (1, 5), (1, 6), (1, 7)]
        assert result["num_episodes_from_trajectories"] == 32
        assert result["env_runners"]["num_episodes"] == 64
        assert resumed.train()["num_episodes_from_trajectories"] == 0
    finally:
        resumed.stop()

    # It came out where a run that nobody interrupted did.
    del algo.sample
    algo.restore_from_path(path)
    algo._first_generation = -1  # it takes nothing from the store
    straight = algo.train()
    assert straight["num_episodes_from_trajectories"] == 0
    for name in ("episode_return_mean", "num_sampled_tokens"):
        assert straight["env_runners"][name] == result["env_runners"][name], name


@pytest.mark.promise
def test_only_episodes_of_the_task_and_of_the_present_horizon_are_taken_from_the_store():
    algo = object.__new__(AgentEvol)
    algo.config = SimpleNamespace(environments=[SimpleNamespace(name="one"), SimpleNamespace(name="two")])
    algo.horizons = {"one": 3, "two": 5}

    def is_of(played, horizon, asked, env_index=0):
        record = SimpleNamespace(item_id=played, max_episode_steps=horizon)
        return algo._is_of(record, TaskGroup((0, 0, 0), asked, 1, env_index))

    assert is_of("a", 3, "a")
    assert not is_of("b", 3, "a")
    assert not is_of("a", 5, "a")
    assert is_of("b", 5, None, env_index=1)
    assert not is_of("b", 3, None, env_index=1)


def test_a_generation_that_was_killed_twice_is_looked_for_in_all_its_trials(tmp_path):
    checkpoint = CheckpointInfo(tmp_path / "first" / "checkpoint_000000", 1, 0.0)
    for trial in ("second", "third"):
        write_origin(tmp_path / trial, checkpoint)
    algo = object.__new__(AgentEvol)
    algo._storage, algo._logdir = None, str(tmp_path / "third")
    algo._earlier_path = str(tmp_path / "first" / "trajectories")
    assert [path.parent.name for path in algo._trajectory_folders()] == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "best"}, "keep must be one of threshold, reward; got 'best'"),
        ({"groups_per_request": 0}, "groups_per_request must be a whole number of at least 1; got 0"),
        ({"num_generation_epochs": 0}, "num_generation_epochs must be a whole number of at least 1; got 0"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(tiny_model, options, message):
    with pytest.raises(ConfigError, match=message):
        evol_config(tiny_model, **options).validate()


@pytest.mark.promise
@pytest.mark.parametrize("item_ids", [[f"task_{k}" for k in range(6)], [None] * 6])
def test_of_tasks_that_are_drawn_by_seed_one_success_each_is_kept(tiny_model, tmp_path, caplog, item_ids):
    def episode(k, item_id, reward=1.0):
        turn = Turn(np.array([5, 6, k]), np.array([7, 8]), np.zeros(2, np.float32), 0, 0, reward=reward)
        streams = {"agent": Stream("agent", "default_policy", [turn])}
        group = TaskGroup((0, 0, k), item_id, 2)
        return Episode(f"e{k}", group, 0, k, item_id=item_id, streams=streams, end_reason=EndReason.TERMINATED)

    def kept(**options):
        algo = object.__new__(AgentEvol)
        algo.config, out = AgentEvolConfig().training(base_model=str(tiny_model), **options), SampleFile(tmp_path)
        played = [episode(k, item_id) for k, item_id in enumerate(item_ids)]
        algo._keep([*played, *played, episode(9, "failed", 0.0)], out)
        return len(out)

    assert kept() == 6  # the second of each task is not kept
    assert kept(keep_per_item=None) == 12
    assert not caplog.records
    assert kept(keep="reward") == 6
    assert "keep: reward: 1 of 13 episodes are left out" in caplog.text
