"""kill -9 of a writing process, at random and at chosen moments: nothing acknowledged is lost, nothing comes twice."""

import os
import signal
import subprocess
import sys

import pytest

from rllm_gym.data import EpisodeRecord, TrajectoryWriter, list_shards, read_episodes

# Appends records 0, 1, 2, ... and prints each number after its append has returned. With a moment given, the
# process kills itself at the given call of that function, before the call, after it, or (of a write) halfway.
WRITER = """
import os, signal, sys
from pathlib import Path
from rllm_gym.data import EpisodeRecord, TrajectoryWriter

folder, shard_bytes, owner, name, call, when = sys.argv[1:]
calls = 0

def die_at(real):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls < int(call):
            return real(*args, **kwargs)
        if when == "after":
            real(*args, **kwargs)
        elif when == "halfway":
            real(args[0], args[1][: len(args[1]) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return wrapped

writer = TrajectoryWriter(folder, shard_bytes=int(shard_bytes))
fields = dict(env_id="toy", messages=[], turns=[], end_reason="terminated")
if name:
    target = {"os": os, "Path": Path}[owner]
    setattr(target, name, die_at(getattr(target, name)))
number = writer.num_records
while number < 2000:  # far more than any test waits for
    writer.append([EpisodeRecord(**fields, episode_id=str(number), seed=number, final_observation_ids=[number] * 50)])
    print(number, flush=True)
    number += 1
"""


def run_until_killed(folder, *, shard_bytes, moment=("", "", "0", ""), kill_after=None):
    """Return the number of the last record whose append returned."""
    args = [sys.executable, "-c", WRITER, str(folder), str(shard_bytes), *moment]
    acknowledged = -1
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged == kill_after:
                process.kill()
    assert process.returncode == -signal.SIGKILL
    return acknowledged


def seeds(folder):
    return [record.seed for record in read_episodes(folder)]


def check(folder, acknowledged):
    """Order kept, nothing twice, nothing acknowledged lost; and a new writer goes on where the files end."""
    read = seeds(folder)
    assert read == list(range(len(read)))
    assert len(read) - 1 in (acknowledged, acknowledged + 1)  # a record can be whole, and its append not have returned
    with TrajectoryWriter(folder, shard_bytes=300) as writer:
        assert writer.num_records == len(read)
        fields = {"env_id": "toy", "messages": [], "turns": [], "end_reason": "terminated"}
        writer.append([EpisodeRecord(**fields, episode_id="next", seed=len(read), final_observation_ids=[])])
    assert seeds(folder) == list(range(len(read) + 1))
    expected = {".lock", "manifest.json", *(path.name for path in list_shards(folder))}
    assert {path.name for path in folder.iterdir()} == expected


# Sealing, with shards of one record: fsync of the shard, rename, fsync of the folder, unlink, then fsync and rename of
# the manifest. So the calls below are those of the second sealing.
MOMENTS = {
    "halfway through a record": ("os", "write", "3", "halfway"),
    "before a record": ("os", "write", "3", "before"),
    "after a record": ("os", "write", "3", "after"),
    "before the shard reaches the disk": ("os", "fsync", "4", "before"),
    "before the sealed shard has its name": ("Path", "rename", "3", "before"),
    "between naming the sealed shard and removing the plain one": ("Path", "rename", "3", "after"),
    "before the plain shard is removed": ("Path", "unlink", "2", "before"),
    "after the plain shard is removed": ("Path", "unlink", "2", "after"),
    "before the manifest reaches the disk": ("os", "fsync", "6", "before"),
    "before the manifest has its name": ("Path", "rename", "4", "before"),
    "after the manifest has its name": ("Path", "rename", "4", "after"),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
def test_a_kill_at_a_chosen_moment_loses_no_record_that_was_appended(tmp_path, moment):
    acknowledged = run_until_killed(tmp_path, shard_bytes=1, moment=moment)
    check(tmp_path, acknowledged)


@pytest.mark.parametrize("kill_after", [0, 57, 203])
def test_a_kill_from_outside_loses_no_record_that_was_appended(tmp_path, kill_after):
    # Shards of about three records, so that a good part of the time goes into sealing.
    acknowledged = run_until_killed(tmp_path, shard_bytes=1000, kill_after=kill_after)
    check(tmp_path, acknowledged)


def test_a_folder_killed_again_and_again_stays_in_order(tmp_path):
    for name in (
        "halfway through a record",
        "before the plain shard is removed",
        "before the sealed shard has its name",
    ):
        acknowledged = run_until_killed(tmp_path, shard_bytes=600, moment=MOMENTS[name])
    assert not os.path.exists(tmp_path / "episodes-000000.jsonl")
    check(tmp_path, acknowledged)
