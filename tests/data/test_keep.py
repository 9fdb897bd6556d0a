"""What stays of a folder whose disk space is bounded: the newest, each task's best and worst, a share of the rest."""

from __future__ import annotations

import json

import pytest

from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.data import EpisodeRecord, Keep, TrajectoryWriter, TurnRecord, list_shards, read_episodes
from rllm_gym.errors import ConfigError


def record(number, *, item="a", reward=0.0, agent="agent", **fields):
    turn = TurnRecord(observation_ids=[1], action_ids=[2], logp=[-0.1], reward=reward, policy_version=0)
    return EpisodeRecord(
        env_id="e", item_id=item, episode_id=f"e{number}", agent_id=agent, seed=0, messages=[], turns=[turn],
        final_observation_ids=[], end_reason="terminated", **fields,
    )  # fmt: skip


def kept(folder, records, keep, *, per_shard=4):
    """Write records in shards of `per_shard` and return the episodes that stay."""
    size = len(record(100).model_dump_json()) * per_shard
    with TrajectoryWriter(folder, shard_bytes=size, keep=keep) as writer:
        for one in records:
            writer.append([one])
    return [(r.episode_id, r.agent_id) for r in read_episodes(folder)]


def test_the_newest_stay_and_each_tasks_best_and_worst(tmp_path):
    rewards = [0.0, 1.0, 0.5, 0.2, 0.9, 0.1, 0.3, 0.0]
    records = [record(k, reward=reward, item="ab"[k % 2]) for k, reward in enumerate(rewards)]
    records += [record(k, reward=0.5) for k in range(8, 20)]
    found = [name for name, _ in kept(tmp_path, records, Keep(newest=3, best=1, worst=1))]
    # of a: best e4 (0.9), worst e0; of b: best e1 (1.0), worst e7; and the newest three.
    assert found == ["e0", "e1", "e4", "e7", "e17", "e18", "e19"]


def test_an_evaluations_tasks_are_tasks_of_their_own(tmp_path):
    records = [record(0, reward=1.0), record(1, reward=0.7, is_evaluation=True, split="eval")]
    records += [record(k, reward=0.1) for k in range(2, 20)]
    found = [name for name, _ in kept(tmp_path, records, Keep(newest=1, best=1, worst=0))]
    assert found == ["e0", "e1", "e19"]


def test_the_agents_of_an_episode_stay_together(tmp_path):
    records = []
    for k in range(12):
        records += [record(k, reward=float(k == 3), agent="cook"), record(k, agent="waiter")]
    found = kept(tmp_path, records, Keep(newest=1, best=1, worst=0))
    assert found == [("e3", "cook"), ("e3", "waiter"), ("e11", "cook"), ("e11", "waiter")]


def test_a_share_of_the_rest_stays_whatever_the_number_of_looks(tmp_path):
    records = [record(k) for k in range(2000)]
    found = kept(tmp_path / "a", records, Keep(newest=1, best=0, worst=0, share=0.1), per_shard=100)
    assert 150 < len(found) < 250
    assert found == kept(tmp_path / "b", records, Keep(newest=1, best=0, worst=0, share=0.1), per_shard=1900)


def test_what_stays_is_as_it_was_and_the_manifest_says_how_much(tmp_path):
    records = [record(k, reward=0.1 * k) for k in range(30)]
    kept(tmp_path, records, Keep(newest=2, best=1, worst=1))
    by_name = {one.episode_id: one for one in records}
    found = list(read_episodes(tmp_path))
    assert len(found) == 3 and all(one == by_name[one.episode_id] for one in found)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["num_records_sealed"] == 3
    assert {shard["name"] for shard in manifest["shards"]} == {shard.name for shard in list_shards(tmp_path)}
    with TrajectoryWriter(tmp_path, keep=Keep(newest=2)) as writer:  # and it is gone on with
        assert writer.num_records == 3
        writer.append([record(30)])
    assert [one.episode_id for one in read_episodes(tmp_path)][-1] == "e30"


def test_everything_stays_unless_asked(tmp_path):
    assert len(kept(tmp_path, [record(k) for k in range(40)], None)) == 40


def test_a_method_that_learns_from_its_trajectories_keeps_all():
    config = get_algorithm_class("AgentEvol").get_default_config().environment("rllm_gym/TextCraft-v0")
    config.update_from_dict({"data": "expert", "max_episode_steps": 2, "keep_episodes": {"newest": 5}})
    with pytest.raises(ConfigError, match=r"keep_episodes must be all, for it learns from them; got"):
        config.validate()
