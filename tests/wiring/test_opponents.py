"""Who plays the agents that `opponents` names, with which weights, and what of it is trained and recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.tune.registry import register_env

from rllm_gym.callbacks.opponents import Opponents
from rllm_gym.data import read_episodes
from tests.envs.toy_multi_agent import TakeAway
from tests.wiring import harness
from tests.wiring.harness import callback, run

GAME = {"env": "take_away", "max_episode_steps": None, "filter_groups": "off", "lr": 1e-2}


@pytest.fixture(autouse=True)
def take_away(ray_cluster, monkeypatch):
    register_env("take_away", lambda config: TakeAway(**config))
    monkeypatch.setattr(harness, "REPLIES", ("1", "2", "1", "2", "3"))


def pool(**options):
    return {"opponents": {"player_1": {"pool": options}}}


def texts_of(found, agent):
    played = found.algo.sampled.played
    return [
        found.runner.chat.tokenizer.decode(t.action_ids[:1])
        for e in played
        if agent in e.streams
        for t in e.streams[agent].turns
    ]


@pytest.mark.parametrize(("kind", "says"), [("random", {"1", "2"}), ("expert", {"1", "2"})])
def test_a_scripted_opponent_plays_legal_moves_which_are_recorded_and_not_trained(tiny_model, kind, says):
    options = {**GAME, "opponents": {"player_1": kind}, "groups_per_step": 6, "save_trajectories": True}
    with run(tiny_model, **options) as found:
        played = found.algo.sampled.played
        theirs = [e.streams["player_1"] for e in played if "player_1" in e.streams]
        assert {stream.module_id for stream in theirs} == {kind}
        assert set(texts_of(found, "player_1")) == says
        assert not [turn for stream in theirs for turn in stream.turns if turn.is_invalid_action]
        assert {sample.agent for sample in found.trained} == {"player_0"}
        assert set(found.runner.engines) == {"default_policy", kind}
        for stream in theirs if kind == "expert" else ():  # it leaves a multiple of three, if it can
            told = [message["content"] for message in stream.messages if message["role"] == "user"]
            said = [message["content"] for message in stream.messages if message["role"] == "assistant"]
            for text, move in zip(told, said, strict=False):
                assert int(move) == (int(text.split()[0]) % 3 or 1)
        found.algo._recorder.close()
        records = list(read_episodes(found.algo.trajectories_path))
    assert {(r.agent_id, r.module_id, r.role) for r in records} == {
        ("player_0", "default_policy", "first"),
        ("player_1", kind, "second"),
    }
    assert not [r for r in records if "rllm_gym/moves" in r.info]
    assert all(t.advantage is None for r in records if r.module_id == kind for t in r.turns)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(np.asarray(a[name]), np.asarray(b[name])) for name in a)


def test_a_pool_plays_the_learner_as_it_was(tiny_model):
    with run(tiny_model, **GAME, **pool(every=2, size=2, sampling="latest"), steps=1) as found:
        algo, engine = found.algo, found.runner.engines["opponent_player_1"]
        # Step 0 against the policy that training began with.
        assert equal(engine.weights, callback(algo, Opponents).pools["player_1"].opponent.weights)
        assert found.results[0]["opponents"]["player_1"]["snapshot_step"] == 0
        versions, steps, weights = [], [], []
        for _ in range(4):
            before = algo.policy_weights("default_policy")
            result = algo.train()
            steps.append(result["opponents"]["player_1"]["snapshot_step"])
            versions.append({t.policy_version for e in algo.sampled.played for s in e.streams.values() for t in s.turns
                             if s.module_id == "opponent_player_1"})  # fmt: skip
            weights.append((before, dict(engine.weights)))
        # Snapshots after steps 2 and 4; each plays from the next step on.
        assert steps == [0, 2, 2, 4]
        assert versions[1] == versions[2] == {weights[1][0][0]}
        assert equal(weights[1][1], weights[1][0][1])
        assert equal(weights[2][1], weights[1][0][1])
        assert not equal(weights[2][1], weights[2][0][1])
        assert equal(weights[3][1], weights[3][0][1])
        assert [s.step for s in callback(algo, Opponents).pools["player_1"].snapshots] == [2, 4]
        assert {sample.agent for sample in found.trained} == {"player_0"}
        assert result["policy_version"] == 4  # the learner's


def test_the_learners_return_is_remembered_by_whom_it_was_against(tiny_model):
    with run(tiny_model, **GAME, **pool(every=1, size=3, sampling="hardest"), steps=3) as found:
        told = [result["opponents"]["player_1"] for result in found.results]
        returns = [result["env_runners"]["agent_episode_returns_mean"]["player_0"] for result in found.results]
        modules = found.results[-1]["env_runners"]["module_episode_returns_mean"]
        assert modules["default_policy"] == returns[-1]
        assert modules.keys() == {"default_policy", "opponent_player_1"}
        assert [each["learner_return"] for each in told] == returns
        kept = {s.step: s.returns for s in callback(found.algo, Opponents).pools["player_1"].snapshots}
        assert [each["snapshot_step"] for each in told] == [0, 1, 2]  # what has not played comes first
        assert kept == {1: [returns[1]], 2: [returns[2]], 3: []}


def test_a_resumed_run_meets_the_same_opponents(tiny_model, tmp_path):
    options = {**GAME, **pool(every=1, size=3, sampling="uniform"), "zero_stage": 2}
    with run(tiny_model, **options, steps=3) as found:
        path = found.algo.save_to_path(str(tmp_path / "checkpoint"))
        expected = [found.algo.train()["opponents"] for _ in range(3)]
        weights = found.weights
        found.algo.restore_from_path(path)
        assert [found.algo.train()["opponents"] for _ in range(3)] == expected
        assert equal(found.weights, weights)
    with run(tiny_model, **options, steps=1) as fresh:
        fresh.algo.restore_from_path(path)
        assert [fresh.algo.train()["opponents"] for _ in range(3)] == expected
        assert equal(fresh.weights, weights)


def test_a_frozen_opponent_is_a_checkpoint_or_a_model(tiny_model, other_model, tmp_path):
    with run(tiny_model, **GAME, zero_stage=2) as trained:
        path = trained.algo.save_to_path(str(tmp_path / "checkpoint"))
        version, weights = trained.algo.policy_weights("default_policy")
    assert version == 1
    with run(tiny_model, **GAME, opponents={"player_1": {"frozen": path}}, steps=2) as found:
        engine = found.runner.engines["opponent_player_1"]
        assert equal(engine.weights, weights)
        assert not equal(found.runner.engines["default_policy"].weights, weights)
        assert "opponent_player_1" not in dict(found.learner.module.items())
    with run(tiny_model, **GAME, opponents={"player_1": {"frozen": str(other_model)}}) as found:
        assert found.runner.engines["opponent_player_1"].model == str(other_model)
        assert found.runner.engines["opponent_player_1"].weights == {}


def test_a_frozen_adapter_is_merged_and_a_pool_of_adapters_holds_adapters(tiny_model, tmp_path):
    lora = {"lora": {"r": 4}, "engine": "transformers"}  # with vllm a pool is an adapter on the policy's engine
    with run(tiny_model, **GAME, **lora, **pool(every=1), steps=2) as found:
        snapshots = callback(found.algo, Opponents).pools["player_1"].snapshots
        assert all("lora_" in name for snapshot in snapshots for name in snapshot.weights)
        path = found.algo.save_to_path(str(tmp_path / "checkpoint"))
        merged = dict(found.runner.engines["default_policy"].weights)
    with run(tiny_model, **GAME, opponents={"player_1": {"frozen": path}}) as found:
        theirs = found.runner.engines["opponent_player_1"].weights
    assert theirs.keys() == merged.keys()
    for name, value in merged.items():
        assert np.allclose(theirs[name], torch.as_tensor(value), atol=1e-6), name


def test_self_is_the_policy_that_learns(tiny_model):
    with run(tiny_model, **GAME) as plain, run(tiny_model, **GAME, opponents={"player_1": "self"}) as found:
        assert equal(plain.weights, found.weights)
        assert {sample.agent for sample in found.trained} == {"player_0", "player_1"}
