"""The index: rows, places in files that grow and are sealed, search, and what it leaves out."""

import json
import shutil

import pytest

from rllm_gym.data import TrajectoryWriter, read_episodes
from rllm_gym.data.keep import Keep
from rllm_gym.errors import ConfigError
from rllm_gym.viewer.episode_index import Index
from rllm_gym.viewer.one_file import choose
from rllm_gym.viewer.rows import parse_row
from tests.data.test_trajectories import record
from tests.viewer.helpers import play, with_numbers, write_run


def rows_of(index):
    return json.loads(index.state(0, index.generation))["rows"]


def test_a_row_says_of_a_record_what_the_record_says(tmp_path):
    whole = with_numbers(play(17, solves=True, group=(3, 5, 1), member=2), advantage=0.5, difference=0.1)
    row = parse_row(whole.model_dump_json().encode(), run=0, trial=0)
    assert (row.env, row.item, row.category, row.success) == (whole.env_id, "textcraft_17", "depth_1", True)
    assert (row.total, row.turns, row.horizon) == (whole.total_reward, len(whole.turns), 9)
    assert row.tokens == sum(len(turn.action_ids) for turn in whole.turns)
    assert (row.version, row.step, row.group, row.member) == (5, 5, "3-5-1", 2)


def test_numbers_within_a_text_are_not_taken_for_token_ids():
    text = 'the "logp":[1, 2] and \\"logp\\":[3]'
    whole = record(1, messages=[{"role": "user", "content": text}], info={"logp": [1.0]}, category='"logp":[1]')
    assert parse_row(whole.model_dump_json().encode(), run=0, trial=0).category == '"logp":[1]'


def test_what_a_run_appends_and_seals_comes_once_and_keeps_its_id(tmp_path):
    folder = tmp_path / "mine" / "trajectories"
    index, ids = None, []
    with TrajectoryWriter(folder, shard_bytes=2000) as writer:
        for number in range(40):
            writer.append([record(number, messages=[{"role": "user", "content": f"number {number}"}])])
            index = index or Index([tmp_path])
            index.refresh()
            assert [row.seed for row in index.rows] == list(range(number + 1))
            assert [row.id for row in index.rows[: len(ids)]] == ids
            ids = [row.id for row in index.rows]
    index.refresh()
    assert len(list(folder.glob("*.zst"))) > 2 and not list(folder.glob("*.jsonl"))
    for number in (0, 17, 39):
        assert json.loads(index.episode(number))["record"]["seed"] == number
    fresh = Index([tmp_path])
    fresh.refresh()
    assert [row.id for row in fresh.rows] == ids
    assert fresh.search("NUMBER 17") == index.search("number 17") == [17]


def test_a_line_that_is_being_written_is_waited_for_and_a_damaged_one_is_said(tmp_path):
    shard = tmp_path / "episodes-000000.jsonl"
    lines = [record(n).model_dump_json().encode() + b"\n" for n in range(3)]
    shard.write_bytes(lines[0] + b'{"schema_version":3, "damaged"\n' + lines[1] + lines[2][:40])
    index = Index([tmp_path])
    index.refresh()
    assert [row.seed for row in index.rows] == [0, 1]
    assert len(index.damaged) == 1 and "line 2" in index.damaged[0]
    with shard.open("ab") as file:
        file.write(lines[2][40:])
    index.refresh()
    assert [row.seed for row in index.rows] == [0, 1, 2] and len(index.damaged) == 1


def test_a_damaged_sealed_file_is_said_once_and_the_rest_is_there(tmp_path):
    with TrajectoryWriter(tmp_path / "bad") as writer:
        writer.append([record(n) for n in range(3)])
    with TrajectoryWriter(tmp_path / "good") as writer:
        writer.append([record(n) for n in range(3, 6)])
    (sealed,) = (tmp_path / "bad").glob("*.zst")
    content = bytearray(sealed.read_bytes())
    content[len(content) // 2] ^= 0xFF
    sealed.write_bytes(content)
    index = Index([tmp_path])
    for _ in range(3):
        index.refresh()
    assert {3, 4, 5} <= {row.seed for row in index.rows} and len(index.damaged) == 1
    assert index.generation == 0 and "intact Zstandard" in index.damaged[0]


def test_a_file_that_is_replaced_by_a_shorter_one_is_read_anew(tmp_path):
    shard = tmp_path / "episodes-000000.jsonl"
    shard.write_bytes(b"".join(record(n).model_dump_json().encode() + b"\n" for n in range(5)))
    index = Index([shard])
    index.refresh()
    shard.write_bytes(record(9).model_dump_json().encode() + b"\n")
    index.refresh()
    index.refresh()
    assert index.generation == 1 and [row.seed for row in index.rows] == [9]
    assert len(json.loads(index.state(5, 0))["rows"]) == 1


def test_when_episodes_are_thinned_out_the_rest_keep_their_ids_and_can_be_opened(tmp_path):
    index = Index([tmp_path])
    with TrajectoryWriter(tmp_path, shard_bytes=4000, keep=Keep(newest=5, best=1, worst=0)) as writer:
        for number in range(60):
            writer.append([record(number, messages=[{"role": "user", "content": f"number {number}" * (number % 7)}])])
            ids = {row.seed: row.id for row in index.rows}
            for _ in range(2):  # the first may find files that have been replaced
                index.refresh()
            assert all(ids.get(row.seed, row.id) == row.id for row in index.rows)
            assert [row.seed for row in index.rows] == [r.seed for r in read_episodes(tmp_path)]
            for row in index.rows:
                assert json.loads(index.episode(index.number_of(row.id)))["record"]["seed"] == row.seed
    assert index.generation > 2 and len(index.rows) < 40


def test_an_episode_that_was_played_again_under_its_name_has_an_id_of_its_own(tmp_path):
    with TrajectoryWriter(tmp_path) as writer:
        writer.append([record(1, end_reason="error", error="x"), record(1)])
    index = Index([tmp_path])
    index.refresh()
    assert len({row.id for row in index.rows}) == 2


def test_of_what_a_resumed_trial_has_played_again_the_later_counts_as_for_readers(tmp_path):
    run = tmp_path / "run"
    write_run(run, num_steps=3)
    later = run / "2026-01-02_00-00-00_00000"
    later.mkdir()
    (later / "result.json").touch()
    origin = {"trial": "2026-01-01_00-00-00_00000", "checkpoint": "checkpoint_000001", "training_iteration": 1}
    (later / "resumed_from.json").write_text(json.dumps(origin))
    with TrajectoryWriter(later / "trajectories") as writer:
        writer.append([play(17, solves=True, group=(0, 3, 0), member=k) for k in range(4)])
    index = Index([run])
    index.refresh()
    shown = [row for k, row in enumerate(index.rows) if k not in index.hidden]
    stored = list(read_episodes(run))
    assert sorted((r.episode, r.total) for r in shown) == sorted((r.episode_id, r.total_reward) for r in stored)
    assert len(index.hidden) == 4


def test_search_finds_what_was_said_in_any_case_and_language_and_no_name_of_a_field(tmp_path):
    said = ['Hello "World"', "caf\u00c9 \u65e5\u672c", "tab\there", "content and role are words", "nothing"]
    with TrajectoryWriter(tmp_path) as writer:
        writer.append([record(n, messages=[{"role": "user", "content": text}]) for n, text in enumerate(said)])
    index = Index([tmp_path])
    index.refresh()
    assert index.search('hello "w') == [0]
    assert index.search("CAF\u00e9 \u65e5") == [1]
    assert index.search("\t") == [2]
    assert index.search("role") == index.search("CONTENT and") == [3]


def test_runs_of_one_name_are_told_apart(tmp_path):
    for parent in ("a", "b"):
        write_run(tmp_path / parent / "same", num_steps=1)
    index = Index([tmp_path / "a", tmp_path / "b"])
    index.refresh()
    assert index.labels == ["same", "b/same"]


def test_tokens_have_texts_also_where_a_token_ends_within_a_character(runs):
    index = Index(runs)
    index.refresh()
    episode = json.loads(index.episode(0))
    turn = episode["record"]["turns"][0]
    text = "".join(episode["texts"][str(i)] for i in turn["action_ids"])
    assert text == episode["record"]["messages"][2]["content"] + "<|im_end|>"
    from rllm_gym.viewer.token_texts import _text

    assert _text("\u00e2\u0124", is_byte_level=True) == "\\xe2\\x82" and _text("\u0120a", is_byte_level=True) == " a"


def test_without_a_tokenizer_ids_are_shown_and_the_page_says_why(tmp_path):
    with TrajectoryWriter(tmp_path) as writer:
        writer.append([play(3, solves=True)])
    index = Index([tmp_path])
    index.refresh()
    episode = json.loads(index.episode(0))
    assert episode["texts"] == {} and "do not say which tokenizer" in episode["textsProblem"]
    told = Index([tmp_path], tokenizer="tiny")
    told.refresh()
    assert "<|im_end|>" in json.loads(told.episode(0))["texts"].values()


def test_curves_have_the_metrics_the_horizon_and_the_evaluations(runs):
    index = Index(runs)
    index.refresh()
    [curve] = index.curves()
    assert curve["run"] == "quickstart" and curve["steps"] == [1, 2, 3]
    assert curve["metrics"]["max_episode_steps"] == [2, 2, 6]
    assert curve["evaluations"] == {"eval": [[0, 0.1], [3, 0.6]]} or curve["evaluations"] == {
        "eval": [(0, 0.1), (3, 0.6)]
    }
    assert "config/lr" not in curve["metrics"]


def test_a_run_without_episodes_has_curves(tmp_path):
    trial = write_run(tmp_path / "run", num_steps=2)
    shutil.rmtree(trial / "trajectories")
    for path in (tmp_path, tmp_path / "run", trial):
        index = Index([path])
        index.refresh()
        assert index.labels == ["run"] and not index.rows
        assert [curve["steps"] for curve in index.curves()] == [[1, 2]]


def test_a_path_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="not there"):
        Index([tmp_path / "nothing"])


def test_an_export_takes_whole_groups_from_everywhere():
    rows = []
    for step in range(100):
        for member in range(4):
            line = record(step, group=[0, step, 0], member=member, train_step=step, episode_id=f"{step}-{member}")
            rows.append(parse_row(line.model_dump_json().encode(), run=0, trial=0))
    kept = choose(rows, 42)
    steps = [rows[k].step for k in kept]
    assert len(kept) == 40 and all(steps.count(step) == 4 for step in steps)
    assert min(steps) == 0 and max(steps) > 80 and kept == sorted(kept)
    assert choose(rows, 1000) == list(range(400))
    assert len(choose(rows, 3)) == 3
