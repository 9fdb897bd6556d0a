"""What an in-memory episode becomes when it is stored."""

import numpy as np
import pytest
from pydantic import ValidationError

from rllm_gym.data import EpisodeRecord, TurnRecord, records_of
from rllm_gym.types import AGENT, Episode, Stream, TaskGroup, Turn


def turn(observation, action, *, reward=0.0, env_step=0, policy_version=3):
    logp = np.log(np.linspace(0.1, 0.9, len(action))).astype(np.float32)
    return Turn(np.array(observation), np.array(action), logp, policy_version, env_step, reward)


def episode(streams, **fields):
    group = TaskGroup(key=(7, 4, 2), item_id="textcraft_17", size=8)
    given = {"env_id": "rllm_gym/TextCraft-v0", "item_id": "textcraft_17", "end_reason": "terminated", **fields}
    return Episode("7-4-2-5", group, 5, 99, streams={s.agent_id: s for s in streams}, **given)


def stored(episode, **given):
    return records_of(episode, **{"env_version": "0.1.0", "train_step": 4, "max_episode_steps": 6, **given})


def test_an_episode_is_stored_as_it_was_played():
    messages = [{"role": "user", "content": "get 1 oak planks"}, {"role": "assistant", "content": "Action: look"}]
    stream = Stream(
        AGENT, "main", [turn([1, 2], [3, 4]), turn([5], [6], reward=1.0, env_step=1)], np.array([7]), messages
    )
    info = {"is_success": np.True_, "category": "depth_1", "split": "train", "score": np.float32(0.5)}
    info["messages"] = messages
    [record] = stored(episode([stream], info=info, timings={"env_s": 0.25}), advantages={AGENT: np.float32(-1.5)})

    first, second = record.turns
    assert (first.observation_ids, first.action_ids, first.reward, first.env_step) == ([1, 2], [3, 4], 0.0, 0)
    assert (second.observation_ids, second.action_ids, second.reward, second.env_step) == ([5], [6], 1.0, 1)
    assert first.policy_version == 3
    assert record.final_observation_ids == [7]
    assert record.messages == messages
    assert record.total_reward == 1.0
    assert (record.group, record.member, record.train_step, record.seed) == ([7, 4, 2], 5, 4, 99)
    assert (record.item_id, record.split, record.category) == ("textcraft_17", "train", "depth_1")
    assert record.is_success is True
    assert (record.env_version, record.max_episode_steps, record.module_id) == ("0.1.0", 6, "main")
    assert (record.advantage, record.timings, record.end_reason) == (-1.5, {"env_s": 0.25}, "terminated")
    assert record.info == {"score": 0.5}


def test_log_probabilities_come_back_as_the_same_float32():
    logp = np.log(np.random.default_rng(0).random(10_000)).astype(np.float32)
    stream = Stream(AGENT, "main", [Turn(np.array([1]), np.arange(len(logp)), logp, 0, 0)])
    [record] = stored(episode([stream]))
    read = EpisodeRecord.model_validate_json(record.model_dump_json())
    np.testing.assert_array_equal(np.array(read.turns[0].logp, np.float32), logp)


def test_each_agent_has_a_record_with_its_own_turns_info_and_advantage():
    streams = [Stream("ada", "m0", [turn([1], [2])]), Stream("bob", "m1", [turn([3], [4], env_step=1)])]
    played = episode(streams, info={"ada": {"is_success": True}, "bob": {"is_success": False}})
    ada, bob = stored(played, advantages={"bob": 0.5})
    assert (ada.agent_id, ada.module_id, ada.is_success, ada.advantage) == ("ada", "m0", True, None)
    assert (bob.agent_id, bob.module_id, bob.is_success, bob.advantage) == ("bob", "m1", False, 0.5)
    assert (ada.turns[0].action_ids, bob.turns[0].action_ids) == ([2], [4])
    assert ada.episode_id == bob.episode_id


def test_an_episode_that_failed_before_its_first_turn_keeps_its_error():
    [record] = stored(episode([], end_reason="error", error="server did not answer"), train_step=None)
    assert (record.error, record.turns, record.train_step) == ("server did not answer", [], None)


def test_info_that_json_cannot_hold_is_left_out_and_the_rest_kept():
    info = {"screenshot": np.zeros((2, 2)), "page": object(), "png": b"\xff", "visits": np.int64(3), "path": [1, "a"]}
    [record] = stored(episode([Stream(AGENT, "main")], info=info))
    assert record.info == {"visits": 3, "path": [1, "a"]}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"logp": [-0.1]}, "logp must be as long as action_ids"),
        ({"logp": [-0.1, float("nan")]}, "finite number"),
        ({"action_ids": [1.5, 2]}, "valid integer"),
        ({"actions": []}, "Extra inputs are not permitted"),
    ],
)
def test_a_turn_that_breaks_the_schema_is_refused(change, rule):
    right = {"observation_ids": [1], "action_ids": [2, 3], "logp": [-0.1, -0.2], "reward": 0.0, "policy_version": 0}
    TurnRecord(**right)
    with pytest.raises(ValidationError, match=rule):
        TurnRecord(**{**right, **change})


@pytest.mark.parametrize(("end_reason", "error"), [("error", None), ("terminated", "boom")])
def test_an_error_text_and_the_end_reason_error_belong_together(end_reason, error):
    with pytest.raises(ValidationError, match="error must hold a text exactly where"):
        stored(episode([], end_reason=end_reason, error=error))


def test_an_unknown_end_reason_is_refused():
    with pytest.raises(ValidationError, match="end_reason"):
        stored(episode([], end_reason="bored"))
