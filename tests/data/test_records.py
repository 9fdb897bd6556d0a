"""What an in-memory episode becomes when it is stored."""

import re
from collections import defaultdict
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from rllm_gym.data import SCHEMA_VERSION, EpisodeRecord, Recorder, TurnRecord, make_records, read_episodes
from rllm_gym.data.records import CLOCKED, NOT_RECORDED, restore_stream
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.training.task_sampler import evaluation_groups
from rllm_gym.types import AGENT, EndReason, Episode, Sample, Stream, TaskGroup, Turn


def turn(observation, action, *, reward=0.0, env_step=0, policy_version=3):
    logp = np.log(np.linspace(0.1, 0.9, len(action))).astype(np.float32)
    return Turn(np.array(observation), np.array(action), logp, policy_version, env_step, reward)


def episode(streams, **fields):
    group = TaskGroup(key=(7, 4, 2), item_id="textcraft_17", size=8)
    given = {
        "env_id": "rllm_gym/TextCraft-v0",
        "item_id": "textcraft_17",
        "end_reason": EndReason("terminated"),
        **fields,
    }
    return Episode("7-4-2-5", group, 5, 99, streams={s.agent_id: s for s in streams}, **given)


def stored(episode, **given):
    return make_records(episode, **{"env_version": "0.1.0", "train_step": 4, "max_episode_steps": 6, **given})


def test_an_episode_is_stored_as_it_was_played():
    messages = [{"role": "user", "content": "get 1 oak planks"}, {"role": "assistant", "content": "Action: look"}]
    stream = Stream(
        AGENT, "main", [turn([1, 2], [3, 4]), turn([5], [6], reward=1.0, env_step=1)], np.array([7]), messages
    )
    info = {"is_success": np.True_, "category": "depth_1", "split": "train", "score": np.float32(0.5)}
    info["messages"] = messages
    [record] = stored(episode([stream], info=info, timings={"env_s": 0.25}))

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
    assert (record.timings, record.end_reason) == ({"env_s": 0.25}, "terminated")
    assert [(turn.advantage, turn.trainer_logp) for turn in record.turns] == [(None, None)] * 2
    assert record.info == {"score": 0.5}


def test_an_evaluations_group_has_its_split_beside_the_key_that_seeds_are_drawn_from():
    stream = Stream(AGENT, "main", [turn([1, 2], [3, 4])])
    of_splits = [stored(episode([stream]), split=split, is_evaluation=True)[0] for split in ("train", "eval")]
    assert [record.group for record in of_splits] == [[7, 4, 2, "train"], [7, 4, 2, "eval"]]
    assert {record.seed_key for record in of_splits} == {(7, 4, 2)}
    [trained] = stored(episode([stream]), split="train")
    assert trained.group == [7, 4, 2]
    older = EpisodeRecord.model_validate({**of_splits[0].model_dump(), "group": [7, 4, 2]})
    assert older.seed_key == (7, 4, 2)


def test_no_stored_group_mixes_the_tasks_of_two_splits(tmp_path):
    environment = EnvironmentSpec("TextCraft-v0", "rllm_gym/TextCraft-v0")
    recorder = Recorder(tmp_path, [environment])
    for split, items in (("train", ["a", "b", "c"]), ("eval", ["d", "e", "f"])):
        groups = evaluation_groups({0: items}, 6, seed=10_000)
        played = [
            Episode(f"{split}-{k}", group, 0, 1, item_id=group.item_id, end_reason=EndReason("terminated"))
            for k, group in enumerate(groups)
        ]
        recorder.append(played, train_step=3, split=split)
    recorder.close()
    items_of = defaultdict(set)
    for record in read_episodes(tmp_path):
        items_of[tuple(record.group)].add(record.item_id)
    assert len(items_of) == 12
    assert all(len(items) == 1 for items in items_of.values())


EVERY_FIELD = Turn(
    observation_ids=np.array([1, 2]),
    action_ids=np.array([3, 4]),
    logp=np.array([-0.5, -0.25], np.float32),
    policy_version=3,
    env_step=4,
    reward=0.5,
    is_invalid_action=True,
    context_index=2,
    kind="plan",
    attempt=2,
    rewards={"brevity": 0.25},
    token_versions=np.array([3, 4]),
)


def test_every_field_of_a_turn_comes_back_from_its_record():
    [record] = stored(episode([Stream(AGENT, "main", [EVERY_FIELD])]))
    [back] = restore_stream(EpisodeRecord.model_validate_json(record.model_dump_json())).turns
    for each in fields(Turn):
        given, found = getattr(EVERY_FIELD, each.name), getattr(back, each.name)
        if each.name in NOT_RECORDED:
            continue
        assert type(found) is type(given) and np.array_equal(found, given), each.name
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        default = each.default if each.default is not MISSING else each.default_factory() if has_default else None
        assert not has_default or not np.array_equal(given, default), (
            f"{each.name}: give it another value than its default"
        )


def test_a_change_of_a_turns_fields_is_a_new_version():
    assert (SCHEMA_VERSION, sorted(TurnRecord.model_fields)) == (
        7,
        ["action_ids", "advantage", "attempt", "context_index", "env_step", "is_invalid_action", "kind", "logp",
         "observation_ids", "policy_version", "reward", "rewards", "token_versions", "trainer_logp"],
    ), "add a version to VERSIONS, and the fields here"  # fmt: skip


def test_a_training_episodes_split_is_that_of_its_environment(tmp_path):
    specs = [EnvironmentSpec("one", "one-v0"), EnvironmentSpec("two", "two-v3", {"split": "hard"})]
    recorder = Recorder(tmp_path, specs)
    played = [episode([Stream(AGENT, "main", [turn([1], [2])])]) for _ in specs]
    for index, each in enumerate(played):
        each.group = TaskGroup((0, 0, index), None, 1, index)
    records = recorder.append(played, train_step=0)
    assert [(record.split, record.env_version) for record in records] == [("train", "v0"), ("hard", "v3")]
    evaluated = recorder.append(played, train_step=0, split="eval")
    assert [(record.split, record.is_evaluation) for record in evaluated] == [("eval", True)] * 2
    recorder.close()


def test_every_stored_field_has_a_row_on_its_page():
    page = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text()
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    rows = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    fields_stored = {*EpisodeRecord.model_fields, *TurnRecord.model_fields}
    assert fields_stored <= rows, f"docs/trajectories.md: add a row for {', '.join(sorted(fields_stored - rows))}"


def test_what_a_clock_has_measured_is_left_out_where_equal_runs_are_compared():
    [record] = stored(episode([Stream(AGENT, "main", [EVERY_FIELD])]))
    compared = record.model_dump(exclude=CLOCKED)
    of_clocks = [name for part in (compared, *compared["turns"]) for name in part if name.endswith("_s")]
    assert not of_clocks and "timings" not in compared, f"CLOCKED: add {', '.join(of_clocks)}"


def test_log_probabilities_come_back_as_the_same_float32():
    logp = np.log(np.random.default_rng(0).random(10_000)).astype(np.float32)
    stream = Stream(AGENT, "main", [Turn(np.array([1]), np.arange(len(logp)), logp, 0, 0)])
    [record] = stored(episode([stream]))
    read = EpisodeRecord.model_validate_json(record.model_dump_json())
    np.testing.assert_array_equal(np.array(read.turns[0].logp, np.float32), logp)


def sample_of(turns, **labels):
    """A sample whose advantage and trainer's log-probability are 1, 2, 3, ... and -1, -2, -3, ... by its tokens."""
    sample = Sample.of_turns(turns, final_observation_ids=np.array([9, 9]), **labels)
    sample.advantage = np.arange(1, len(sample) + 1, dtype=np.float32)
    sample.trainer_logp = -sample.advantage
    return sample


def test_each_agent_has_a_record_with_its_own_turns_info_and_advantages():
    streams = [Stream("ada", "m0", [turn([1], [2])]), Stream("bob", "m1", [turn([3], [4], env_step=1)])]
    played = episode(streams, info={"ada": {"is_success": True}, "bob": {"is_success": False}})
    ada, bob = stored(played, samples={"bob": [sample_of(streams[1].turns)]})
    assert (ada.agent_id, ada.module_id, ada.is_success, ada.turns[0].advantage) == ("ada", "m0", True, None)
    assert (bob.agent_id, bob.module_id, bob.is_success, bob.turns[0].advantage) == ("bob", "m1", False, [2.0])
    assert (ada.turns[0].action_ids, bob.turns[0].action_ids) == ([2], [4])
    assert ada.episode_id == bob.episode_id


def test_what_was_computed_for_a_token_is_stored_with_its_turn_whichever_part_it_is_of():
    turns = [turn([1, 2], [3, 4]), turn([5], [6], env_step=1), turn([7, 7, 7], [8, 9, 10], env_step=2)]
    # tokens     1 2 3 4 5 6 | F F     7 7 7 8 9 10 | F F
    # advantage      3 4   6                4 5  6
    parts = [sample_of(turns[:2], context_index=0), sample_of(turns[2:], context_index=1)]
    [record] = stored(episode([Stream(AGENT, "main", turns)]), samples={AGENT: parts[::-1]})
    assert [turn.advantage for turn in record.turns] == [[3, 4], [6], [4, 5, 6]]
    assert [turn.trainer_logp for turn in record.turns] == [[-3, -4], [-6], [-4, -5, -6]]
    for part in parts:
        part.trainer_logp = None  # scored for no sample of this train step
    [record] = stored(episode([Stream(AGENT, "main", turns)]), samples={AGENT: parts})
    assert [turn.advantage for turn in record.turns] == [[3, 4], [6], [4, 5, 6]]
    assert [turn.trainer_logp for turn in record.turns] == [None] * 3


def test_an_invalid_action_is_stored_with_its_turn():
    turns = [turn([1], [2]), turn([3], [4], env_step=1)]
    turns[1].is_invalid_action = True
    [record] = stored(episode([Stream(AGENT, "main", turns)]))
    assert [turn.is_invalid_action for turn in record.turns] == [False, True]


def test_an_episode_that_failed_before_its_first_turn_keeps_its_error():
    [record] = stored(episode([], end_reason="error", error="server did not answer"), train_step=None)
    assert (record.error, record.turns, record.train_step) == ("server did not answer", [], None)


def test_info_that_json_cannot_hold_is_stored_as_its_text():
    info = {"screenshot": np.zeros((2, 2)), "page": object(), "png": b"\xff", "visits": np.int64(3), "path": [1, "a"]}
    [record] = stored(episode([Stream(AGENT, "main")], info=info))
    assert record.info.pop("page").startswith("<object object at")
    png = r"b'\xff'"
    assert record.info == {"screenshot": [[0.0, 0.0]] * 2, "png": png, "visits": 3, "path": [1, "a"]}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"logp": [-0.1]}, "logp must be as long as action_ids"),
        ({"logp": [-0.1, float("nan")]}, "finite number"),
        ({"advantage": [0.5]}, r"advantage must be as long as action_ids \(2\); got 1"),
        ({"trainer_logp": [-0.1, -0.2, -0.3]}, r"trainer_logp must be as long as action_ids \(2\); got 3"),
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
