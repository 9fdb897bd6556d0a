"""What offline methods read: conversations, pairs, the best and worst episodes, and samples on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rllm_gym.data import (
    EpisodeRecord,
    EpochOrder,
    SampleFile,
    TrajectoryWriter,
    TurnRecord,
    best_and_worst,
    make_records,
    read_dialogue_pairs,
    read_dialogues,
    restore_episode,
)
from rllm_gym.errors import TrajectoryError
from rllm_gym.types import AGENT, Episode, Sample, Stream, TaskGroup, Turn

TRAJECTORY = {
    "item_id": "textcraft_17",
    "conversations": [
        {"from": "human", "loss": None, "value": "Instructions."},
        {"from": "gpt", "loss": False, "value": "OK."},
        {"from": "human", "loss": None, "value": "Goal: a stick"},
        {"from": "gpt", "loss": True, "value": "Action: get planks"},
        {"from": "human", "loss": None, "value": "Got planks"},
    ],
}


def talk(*texts, loss=None):
    speakers = ("human", "gpt")
    return [{"from": speakers[k % 2], "value": text, "loss": loss} for k, text in enumerate(texts)]


def save(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_agentgym_trajectories_keep_who_said_what_and_what_is_learnt(tmp_path):
    [dialogue] = read_dialogues(save(tmp_path / "a.json", [TRAJECTORY]))
    assert [message["role"] for message in dialogue.messages] == ["user", "assistant", "user", "assistant"]
    assert dialogue.messages[-1]["content"] == "Action: get planks"  # the environment's last words have no answer
    assert dialogue.is_trained == (False, False, False, True)
    assert dialogue.item_id == "textcraft_17"


def test_loss_that_is_null_or_missing_counts_as_true_and_never_makes_the_user_learnt(tmp_path):
    speech = [{"from": "human", "value": "a", "loss": True}, {"from": "gpt", "value": "b"}]
    [dialogue] = read_dialogues(save(tmp_path / "a.json", [{"conversations": speech}]))
    assert dialogue.is_trained == (False, True)


def test_an_array_and_lines_with_messages_and_roles_say_the_same(tmp_path):
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "caf\u00e9 [{"},
        {"role": "assistant", "content": "b"},
    ]
    records = [{"messages": messages}, {"conversations": talk("x", "y", "z", "w")}]
    array = list(read_dialogues(save(tmp_path / "a.json", json.dumps(records, indent=2))))
    lines = list(read_dialogues(save(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records)) + "\n\n")))
    assert array == lines
    assert array[0].messages == tuple(messages)
    assert list(read_dialogues(save(tmp_path / "empty.json", "[ ]"))) == []
    assert list(read_dialogues(save(tmp_path / "empty.jsonl", ""))) == []


def test_objects_longer_than_a_block_are_read_whole(tmp_path):
    records = [{"conversations": talk("x" * 3_000_000, str(k))} for k in range(3)]
    found = list(read_dialogues(save(tmp_path / "a.json", records)))
    assert [dialogue.messages[1]["content"] for dialogue in found] == ["0", "1", "2"]
    assert len(found[2].messages[0]["content"]) == 3_000_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"conversations": talk("a", "b") + talk("c", "d")[1:]}], "record 0: .*must take turns"),
        ([{"conversations": talk("a", "b")}, {"conversations": talk("a")}], "record 1: .*got no assistant"),
        ([{"conversations": talk("a", "b")[::-1]}], "the user first; got assistant"),
        ([{"text": "a"}], "must hold a list of messages under .*; got the keys text"),
        ([{"conversations": [{"from": "robot", "value": "x"}]}], "message 0: the speaker must be one of .*got 'robot'"),
        ([{"conversations": [{"from": "human", "value": 3}]}], "message 0: the content must be text; got 3"),
        ([{"conversations": talk("a", "b", loss="no")}], "loss must be true, false or null; got 'no'"),
        ('[{"conversations": ', "must be a JSON array or JSON Lines"),
        ("[3]", "every record must be a JSON object; got 3"),
        ("hello", "must be a JSON array or JSON Lines; got 'hello'"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(tmp_path, content, message):
    with pytest.raises(TrajectoryError, match=message) as caught:
        list(read_dialogues(save(tmp_path / "a.json", content)))
    assert "\n" not in str(caught.value)


def test_pairs_share_their_first_message_whether_it_stands_once_or_twice(tmp_path):
    twice = {"chosen": talk("q", "good", "r", "x"), "rejected": talk("q", "bad")}
    once = {"prompt": talk("q"), "chosen": talk("", "good", "r", "x")[1:], "rejected": talk("", "bad")[1:]}
    text = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    pairs = list(read_dialogue_pairs(save(tmp_path / "a.json", [twice, once, text])))
    assert pairs[0] == pairs[1]
    assert [[d.messages[1]["content"] for d in pair] for pair in pairs] == [["good", "bad"]] * 3
    other = {"chosen": talk("q", "good"), "rejected": talk("p", "bad")}
    with pytest.raises(TrajectoryError, match="must answer the same first message"):
        list(read_dialogue_pairs(save(tmp_path / "b.json", [other])))


def record(seed, reward, *, item="a", group=(0, 0, 0), first=(1,), **fields):
    turn = TurnRecord(observation_ids=list(first), action_ids=[7], logp=[0.0], reward=reward, policy_version=0)
    given = {"env_id": "toy", "messages": [], "turns": [turn], "final_observation_ids": [], "end_reason": "terminated"}
    return EpisodeRecord(
        **{**given, "item_id": item, "group": list(group), "episode_id": str(seed), **fields, "seed": seed}
    )


def test_the_best_and_the_worst_of_each_task_make_a_pair_and_equal_returns_make_none(tmp_path):
    records = [
        record(0, 0.5), record(1, 1.0), record(2, 0.0), record(3, 1.0), record(4, 0.0),
        record(5, 1.0, item="b"), record(6, 1.0, item="b"),
        record(7, 0.0, item="c"), record(8, 1.0, item="c", first=(2,)),  # another beginning is another task
        record(9, 0.0, item="d"), record(10, 9.0, item="d", end_reason="error", error="died"),
        record(11, 5.0, item="d", turns=[]),
    ]  # fmt: skip
    with TrajectoryWriter(tmp_path, shard_bytes=1500) as writer:
        for one in records:
            writer.append([one])
    assert best_and_worst(tmp_path) == [(1, 2)]  # of ties the first


def test_within_a_group_only_what_was_sampled_together_is_compared(tmp_path):
    records = [record(0, 0.0), record(1, 0.0), record(2, 1.0, group=(0, 1, 0)), record(3, 0.5, group=(0, 1, 0))]
    with TrajectoryWriter(tmp_path) as writer:
        writer.append(records)
    assert best_and_worst(tmp_path, within="group") == [(2, 3)]
    assert best_and_worst(tmp_path, within="task") == [(2, 0)]


def test_an_episode_comes_back_from_its_record():
    first, second = np.array([-0.5], np.float32), np.array([-1, -2], np.float32)
    turns = [
        Turn(np.array([1, 2]), np.array([3]), first, policy_version=4, env_step=0, reward=0.25, is_invalid_action=True),
        Turn(np.array([5]), np.array([6, 7]), second, policy_version=5, env_step=1, reward=1.0),
    ]
    stream = Stream(AGENT, "default_policy", turns, np.array([8]), [{"role": "user", "content": "x"}])
    group = TaskGroup((0, 3, 1), "item", 2)
    info = {"is_success": True, "category": "easy", "depth": 3}
    episode = Episode(
        "0-3-1-1", group, 1, 99, env_id="toy", item_id="item", streams={AGENT: stream}, end_reason="terminated",
        info=info, timings={"env_s": 1.5}, num_env_steps=2,
    )  # fmt: skip
    records = make_records(episode, env_version="", train_step=3, max_episode_steps=None)
    again = restore_episode(records, group)
    assert make_records(again, env_version="", train_step=3, max_episode_steps=None) == records
    assert (again.info, again.num_env_steps, again.group) == (info, 2, group)
    assert [turn.is_invalid_action for turn in again.streams[AGENT].turns] == [True, False]


def test_samples_on_disk_come_back_equal_in_any_order_also_while_more_are_added(tmp_path):
    rng = np.random.default_rng(0)
    samples = [Sample(rng.integers(0, 2**30, n), rng.random(n).astype(np.float32)) for n in (3, 1, 8, 2)]
    file = SampleFile(tmp_path)
    for sample in samples[:3]:
        file.append(sample)
    for k in (2, 0):
        assert file[k].tokens.tolist() == samples[k].tokens.tolist()
        assert file[k].weight.tolist() == samples[k].weight.tolist()
    file.append(samples[3])
    assert file[3].tokens.tolist() == samples[3].tokens.tolist()
    assert (len(file), file.num_tokens) == (4, 14)
    assert not list(tmp_path.iterdir())  # nothing is left behind, whatever becomes of the process
    with pytest.raises(IndexError, match="below 4; got 4"):
        file[4]


def test_every_epoch_deals_everything_once_in_an_order_of_its_own_from_any_position():
    order = EpochOrder(5, seed=3)
    dealt = order.indices(0, 10)
    assert sorted(dealt[:5]) == sorted(dealt[5:]) == list(range(5))
    assert dealt[:5] != dealt[5:]
    assert EpochOrder(5, seed=3).indices(4, 3) == dealt[4:7]
    assert EpochOrder(5, seed=4).indices(0, 10) != dealt
