"""Writing and reading trajectories: order, sealing, torn tails, locks, what is refused."""

import json
import os
import shutil
import tracemalloc

import pytest
import zstandard

from rllm_gym.data import SCHEMA_VERSION, EpisodeRecord, TrajectoryWriter, list_shards, read_episodes
from rllm_gym.data.pairs import best_and_worst
from rllm_gym.data.reader import read_stored
from rllm_gym.data.records import VERSIONS_IN_WORDS
from rllm_gym.errors import StorageError, TrajectoryError

KNOWN, NEXT = VERSIONS_IN_WORDS, SCHEMA_VERSION + 1


def record(number, **fields):
    given = {"env_id": "toy", "messages": [], "turns": [], "final_observation_ids": [1], "end_reason": "terminated"}
    return EpisodeRecord(**{**given, "episode_id": str(number), "seed": number, **fields})


def write(folder, numbers, **options):
    with TrajectoryWriter(folder, **options) as writer:
        for number in numbers:
            writer.append([record(number)])


def seeds(path):
    return [r.seed for r in read_episodes(path)]


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def open_shard(folder, lines):
    """A folder as a killed writer leaves it: one open shard with these bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    shard = folder / "episodes-000000.jsonl"
    shard.write_bytes(lines)
    return shard


def line(number):
    return record(number).model_dump_json().encode() + b"\n"


def test_records_come_back_equal_and_in_order_across_shards(tmp_path):
    written = [record(n, messages=[{"role": "user", "content": "caf\u00e9\n\u2028"}]) for n in range(10)]
    with TrajectoryWriter(tmp_path, shard_bytes=1000) as writer:
        writer.append(written[:3])
        for one in written[3:]:
            writer.append([one])
        assert list(read_episodes(tmp_path)) == written  # while the last shard is open
    assert list(read_episodes(tmp_path)) == written
    assert len(list_shards(tmp_path)) > 2


def test_full_shards_are_compressed_and_the_open_one_is_plain(tmp_path):
    writer = TrajectoryWriter(tmp_path, shard_bytes=1)
    for number in range(3):
        writer.append([record(number)])
    assert names(tmp_path) == [
        "episodes-000000.jsonl.zst",
        "episodes-000001.jsonl.zst",
        "episodes-000002.jsonl",
        "manifest.json",
    ]
    writer.close()
    writer.close()
    assert names(tmp_path)[2] == "episodes-000002.jsonl.zst"


def test_the_manifest_counts_sealed_records_and_reading_needs_none(tmp_path):
    write(tmp_path, range(3), shard_bytes=1)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert manifest["num_records_sealed"] == 3
    assert [(shard["name"], shard["num_records"]) for shard in manifest["shards"]] == [
        (f"episodes-00000{index}.jsonl.zst", 1) for index in range(3)
    ]
    for damaged in ("{torn", "", "[]", '{"shards": []}', '{"schema_version": 6, "shards": [3]}'):
        (tmp_path / "manifest.json").write_text(damaged)
        assert seeds(tmp_path) == [0, 1, 2]
        with TrajectoryWriter(tmp_path) as writer:
            assert writer.num_records == 3
        assert json.loads((tmp_path / "manifest.json").read_text()) == manifest


def test_a_closed_folder_is_continued_in_order(tmp_path):
    write(tmp_path, [0, 1])
    write(tmp_path, [])
    write(tmp_path, [2])
    assert seeds(tmp_path) == [0, 1, 2]


def test_a_run_is_read_with_all_its_trials_in_order(tmp_path):
    for trial, numbers in [("b", [2, 3]), ("a", [0, 1])]:
        write(tmp_path / "run" / trial / "trajectories", numbers)
    (tmp_path / "run" / "a" / "result.json").write_text('{"loss": 1}\n')
    assert seeds(tmp_path / "run") == [0, 1, 2, 3]
    assert seeds(tmp_path / "run" / "b") == [2, 3]
    assert seeds(str(tmp_path / "run" / "b" / "trajectories" / "episodes-000000.jsonl.zst")) == [2, 3]


# Half a record after two whole ones: cut inside a key, and inside a multi-byte character.
@pytest.mark.parametrize("tail", [line(2)[:20], line(2)[:-2], '{"env_id":"caf\u00e9'.encode()[:-1], b"\x00\x00"])
def test_a_torn_tail_is_skipped_with_its_size_and_cut_off_at_start_up(tmp_path, caplog, tail):
    shard = open_shard(tmp_path, line(0) + line(1) + tail)
    assert seeds(tmp_path) == [0, 1]
    assert f"{shard}:3: skipped a torn tail of {len(tail)} bytes" in caplog.text
    caplog.clear()
    write(tmp_path, [2])
    assert f"cut a torn tail of {len(tail)} bytes" in caplog.text
    caplog.clear()
    assert seeds(tmp_path) == [0, 1, 2]
    assert caplog.text == ""


def test_a_torn_tail_longer_than_a_block_is_cut_off_whole(tmp_path):
    open_shard(tmp_path, line(0) + b'{"env_id":"' + b"x" * 3_000_000)
    write(tmp_path, [1])
    assert seeds(tmp_path) == [0, 1]


def test_a_last_record_that_only_lacks_its_newline_is_kept(tmp_path):
    open_shard(tmp_path, line(0) + line(1)[:-1])
    assert seeds(tmp_path) == [0, 1]
    write(tmp_path, [2])
    assert seeds(tmp_path) == [0, 1, 2]


def test_a_shard_in_both_forms_is_read_once_and_the_plain_one_goes_at_start_up(tmp_path):
    write(tmp_path, [0, 1])
    open_shard(tmp_path, line(0) + line(1))
    assert seeds(tmp_path) == [0, 1]
    write(tmp_path, [2])
    assert seeds(tmp_path) == [0, 1, 2]
    assert "episodes-000000.jsonl" not in names(tmp_path)


def test_a_shard_that_is_sealed_between_listing_and_opening_is_still_read(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.append([record(0)])
    reading = read_episodes(tmp_path)
    writer.close()
    assert [r.seed for r in reading] == [0]


def test_a_record_that_is_being_written_is_left_to_the_next_reader(tmp_path, caplog):
    shard = open_shard(tmp_path, line(0) + line(1)[:30])
    assert seeds(tmp_path) == [0]
    with shard.open("ab") as file:
        file.write(line(1)[30:])
    assert seeds(tmp_path) == [0, 1]


def test_a_second_writer_is_refused_until_the_first_closes(tmp_path):
    first = TrajectoryWriter(tmp_path)
    first.append([record(0)])
    with pytest.raises(TrajectoryError, match=r"one writer at a time; got .*which process \d+ is writing\. End"):
        TrajectoryWriter(tmp_path)
    first.append([record(1)])
    first.close()
    write(tmp_path, [2])
    assert seeds(tmp_path) == [0, 1, 2]


def test_a_closed_writer_refuses_records(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.close()
    with pytest.raises(TrajectoryError, match="closed writer"):
        writer.append([record(0)])
    assert seeds(tmp_path) == []


def test_when_the_disk_is_full_nothing_of_the_append_stays(tmp_path, monkeypatch):
    writer = TrajectoryWriter(tmp_path)
    writer.append([record(0)])
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) - 5]))
    with pytest.raises(StorageError, match=r"does not take them: only \d+ of \d+ bytes fit in\. Make room"):
        writer.append([record(1), record(2)])
    monkeypatch.undo()
    writer.append([record(3)])
    assert writer.num_records == 2
    writer.close()
    assert seeds(tmp_path) == [0, 3]


def test_a_disk_that_is_full_is_said_by_its_name(tmp_path, monkeypatch):
    writer = TrajectoryWriter(tmp_path)
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777: real("/dev/full", os.O_WRONLY))
    monkeypatch.setattr(os, "ftruncate", lambda fd, size: None)
    with pytest.raises(StorageError, match=f"{tmp_path} does not take them: No space left on device"):
        writer.append([record(0)])


def test_a_folder_that_is_deleted_swallows_no_episodes(tmp_path):
    folder = tmp_path / "trajectories"
    writer = TrajectoryWriter(folder)
    writer.append([record(0)])
    shutil.rmtree(folder)
    with pytest.raises(StorageError, match=r"its open shard episodes-000000\.jsonl was deleted"):
        writer.append([record(1)])
    sealing = TrajectoryWriter(tmp_path / "other", shard_bytes=1)
    sealing.append([record(0)])
    shutil.rmtree(tmp_path / "other")
    with pytest.raises(StorageError, match="No such file or directory"):
        sealing.append([record(1)])


def test_a_writer_that_never_wrote_leaves_no_empty_shard(tmp_path, monkeypatch):
    writer = TrajectoryWriter(tmp_path)
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(StorageError, match="only 0 of"):
        writer.append([record(0)])
    writer.close()
    assert names(tmp_path) == ["manifest.json"]


def test_an_append_is_one_write_of_whole_lines(tmp_path, monkeypatch):
    calls = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append(data) or real(fd, data))
    with TrajectoryWriter(tmp_path) as writer:
        writer.append([record(0), record(1)])
        writer.append([])
    assert calls == [line(0) + line(1)]


def test_half_a_surrogate_pair_in_an_environments_text_does_not_end_the_run(tmp_path):
    with TrajectoryWriter(tmp_path) as writer:
        writer.append([record(0, messages=[{"role": "user", "content": "a\ud83d b"}]), record(1)])
    first, second = read_episodes(tmp_path)
    assert first.messages[0]["content"] == "a? b"
    assert second.seed == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 1}, rf"schema_version must be {KNOWN}; got 1 in .*\.jsonl:2\. Read it with"),
        ({"schema_version": NEXT}, rf"schema_version must be {KNOWN}; got {NEXT} in .*\.jsonl:2\. Read it with"),
    ],
)
def test_a_record_of_another_schema_is_named_with_its_file_and_line(tmp_path, change, message):
    bad = json.dumps({**json.loads(line(1)), **change}).encode() + b"\n"
    open_shard(tmp_path, line(0) + bad + line(2))
    reading = read_episodes(tmp_path)
    assert next(reading).seed == 0
    with pytest.raises(TrajectoryError, match=message):
        next(reading)


def test_a_last_record_of_another_schema_is_never_taken_for_a_torn_tail(tmp_path):
    other = json.dumps({**json.loads(line(1)), "schema_version": NEXT}).encode()
    shard = open_shard(tmp_path, line(0) + other)
    with pytest.raises(TrajectoryError, match=f"schema_version must be {KNOWN}; got {NEXT}"):
        seeds(tmp_path)
    TrajectoryWriter(tmp_path)
    assert shard.read_bytes() == line(0) + other + b"\n"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (line(1)[:20] + b"\n", "got record: Invalid JSON"),
        (b"\x00\xff" * 40 + b"\n", "got record: Invalid JSON"),
        (line(1).replace(b'"seed":1', b'"seed":"x"'), "got seed: Input should be a valid integer"),
        (line(1).replace(b'"seed":1', b'"seed":1,"colour":1'), "got colour: Extra inputs are not permitted"),
    ],
)
def test_a_damaged_record_is_lost_alone_and_said_with_its_file_and_line(tmp_path, caplog, bad, why):
    shard = open_shard(tmp_path, line(0) + bad + line(2) + bad)
    assert seeds(tmp_path) == [0, 2]
    first, second, total = [message for message in caplog.messages if "torn tail" not in message]
    assert first.startswith(f"read_episodes: {shard}:2 must be a trajectory record; {why}")
    assert second.startswith(f"read_episodes: {shard}:4 must be")
    assert total == f"read_episodes: left out 2 damaged records of {tmp_path}; read 2"


def test_a_path_without_one_good_record_is_an_error(tmp_path):
    shard = open_shard(tmp_path, b'{"prompt": "a"}\n{"prompt": "b"}\n')
    with pytest.raises(TrajectoryError, match=f"{shard}:1 must be a trajectory record; got env_id: Field required"):
        seeds(tmp_path)


def resumed(run, name, origin, numbers, **fields):
    """A trial of a run, which goes on from another one, and played these episodes."""
    write(run / name / "trajectories", numbers, **fields)
    if origin:
        (run / name / "resumed_from.json").write_text(
            json.dumps({"trial": origin, "checkpoint": "checkpoint_0", "training_iteration": 0})
        )


def test_of_episodes_that_a_resumed_trial_plays_again_only_its_own_are_read(tmp_path):
    # a: 0 1 2 3 (killed); b went on after 0 and was killed, then c from the same checkpoint; d went on from c.
    resumed(tmp_path, "1_a", None, [0, 1, 2, 3], shard_bytes=1)
    resumed(tmp_path, "2_b", "1_a", [1, 2])
    resumed(tmp_path, "3_c", "1_a", [1])
    resumed(tmp_path, "4_d", "3_c", [3, 4])
    resumed(tmp_path, "5_other", None, [0, 1])  # began anew: episodes of its own, whatever their ids
    found = [(shard.parent.parent.name, record.seed) for shard, record in read_stored(tmp_path)]
    assert found == [("1_a", 0), ("2_b", 2), ("3_c", 1), ("4_d", 3), ("4_d", 4), ("5_other", 0), ("5_other", 1)]
    assert seeds(tmp_path / "1_a") == [0, 1, 2, 3]  # nothing is stored twice there
    assert best_and_worst(tmp_path) == []


def test_only_the_agent_that_is_stored_again_is_left_out(tmp_path):
    for name, agents in (("a", "xy"), ("b", "x")):
        resumed(tmp_path, name, {"b": "a"}.get(name), [])
        with TrajectoryWriter(tmp_path / name / "trajectories") as writer:
            writer.append([record(7, agent_id=agent, info={"episode_id": '"episode_id":"8"'}) for agent in agents])
    assert [(shard.parent.parent.name, r.agent_id) for shard, r in read_stored(tmp_path)] == [("a", "y"), ("b", "x")]


def test_a_folder_of_an_unknown_schema_version_is_not_appended_to(tmp_path):
    write(tmp_path, [0])
    manifest = tmp_path / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {NEXT}')
    )
    with pytest.raises(TrajectoryError, match=f"schema_version must be {KNOWN}; got {NEXT}"):
        TrajectoryWriter(tmp_path)


def test_a_compressed_file_that_is_cut_short_or_damaged_does_not_pass_for_whole(tmp_path, caplog):
    shard = tmp_path / "episodes-000000.jsonl.zst"
    noisy = [record(n, final_observation_ids=[(n * 7919 + i * i) % 50_000 for i in range(3000)]) for n in range(60)]
    with TrajectoryWriter(tmp_path) as writer:
        writer.append(noisy)
    whole = shard.read_bytes()
    assert zstandard.get_frame_parameters(whole).has_checksum
    shard.write_bytes(whole[: len(whole) * 3 // 4])
    read = seeds(tmp_path)
    assert read == list(range(len(read)))
    assert 0 < len(read) < 60
    assert "is cut short; its last records are missing" in caplog.text
    shard.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    with pytest.raises(TrajectoryError, match="must be an intact Zstandard file"):
        seeds(tmp_path)


def test_a_compressed_file_of_another_program_is_read(tmp_path):
    # Several frames, and no size in the header: what `zstd` writes from a pipe, and `cat` of two files.
    compress = zstandard.ZstdCompressor(write_content_size=False).compress
    (tmp_path / "mine.jsonl.zst").write_bytes(compress(line(0) + line(1)) + compress(line(2)))
    assert seeds(tmp_path) == [0, 1, 2]


def test_a_path_that_is_not_there_or_no_trajectory_is_refused_at_the_call(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"read_episodes: path must exist; got .*nowhere"):
        read_episodes(tmp_path / "nowhere")
    with pytest.raises(TrajectoryError, match="must be a folder or a regular file; got /dev/zero"):
        read_episodes("/dev/zero")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(TrajectoryError, match=r"must end in .jsonl or .jsonl.zst; got .*result.json"):
        read_episodes(tmp_path / "result.json")


def test_reading_holds_one_record_at_a_time(tmp_path):
    with TrajectoryWriter(tmp_path, shard_bytes=2**21) as writer:
        for number in range(300):
            writer.append([record(number, final_observation_ids=list(range(5000)))])  # about 24 kB each
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_episodes(tmp_path)) == 300
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # the records together are 7 MB as text, far more as objects


def test_records_of_the_version_before_are_read_and_their_folder_goes_on(tmp_path):
    with TrajectoryWriter(tmp_path) as writer:
        writer.append([record(1)])
    [shard] = tmp_path.glob("*.zst")
    old = {**json.loads(record(0).model_dump_json()), "schema_version": 6}
    for number, turn in enumerate(old["turns"]):
        del turn["context_index"]
        turn["sample"] = number
    shard.unlink()
    (tmp_path / "episodes-000000.jsonl").write_text(json.dumps(old) + "\n")
    (tmp_path / "manifest.json").write_text('{"schema_version": 6, "shards": []}')
    with TrajectoryWriter(tmp_path) as writer:
        writer.append([record(2)])
    first, second = read_episodes(tmp_path)
    assert [(r.schema_version, r.item_id) for r in (first, second)] == [
        (6, record(0).item_id),
        (SCHEMA_VERSION, record(2).item_id),
    ]
    assert [turn.context_index for turn in first.turns] == list(range(len(first.turns)))
