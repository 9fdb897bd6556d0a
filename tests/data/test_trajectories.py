"""Writing and reading trajectories: order, sealing, torn tails, locks, what is refused."""

import json
import os
import tracemalloc

import pytest
import zstandard

from rllm_gym.data import SCHEMA_VERSION, EpisodeRecord, TrajectoryWriter, list_shards, read_episodes
from rllm_gym.errors import TrajectoryError


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
    assert manifest["schema_version"] == SCHEMA_VERSION == 2
    assert manifest["num_records_sealed"] == 3
    assert [(shard["name"], shard["num_records"]) for shard in manifest["shards"]] == [
        (f"episodes-00000{index}.jsonl.zst", 1) for index in range(3)
    ]
    for damaged in ("{torn", "", "[]", '{"shards": []}', '{"schema_version": 2, "shards": [3]}'):
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
    with pytest.raises(OSError, match="bytes fit into"):
        writer.append([record(1), record(2)])
    monkeypatch.undo()
    writer.append([record(3)])
    assert writer.num_records == 2
    writer.close()
    assert seeds(tmp_path) == [0, 3]


def test_a_writer_that_never_wrote_leaves_no_empty_shard(tmp_path, monkeypatch):
    writer = TrajectoryWriter(tmp_path)
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(OSError, match="only 0 of"):
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
        ({"schema_version": 1}, r"schema_version must be 2; got 1 in .*\.jsonl:2\. Read it with"),
        ({"schema_version": 7}, r"schema_version must be 2; got 7 in .*\.jsonl:2\. Read it with"),
        ({"seed": "x"}, r"\.jsonl:2 must be a trajectory record; got seed: .* valid integer"),
        ({"colour": 1}, "got colour: Extra inputs are not permitted"),
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
    other = json.dumps({**json.loads(line(1)), "schema_version": 7}).encode()
    shard = open_shard(tmp_path, line(0) + other)
    with pytest.raises(TrajectoryError, match="schema_version must be 2; got 7"):
        seeds(tmp_path)
    TrajectoryWriter(tmp_path)
    assert shard.read_bytes() == line(0) + other + b"\n"


def test_a_damaged_line_in_the_middle_is_an_error_and_not_a_torn_tail(tmp_path):
    open_shard(tmp_path, line(0) + line(1)[:20] + b"\n" + line(2))
    with pytest.raises(TrajectoryError, match=r"\.jsonl:2 must be a trajectory record"):
        seeds(tmp_path)


def test_a_folder_of_an_unknown_schema_version_is_not_appended_to(tmp_path):
    write(tmp_path, [0])
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 2', '"schema_version": 9'))
    with pytest.raises(TrajectoryError, match="schema_version must be 2; got 9"):
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
