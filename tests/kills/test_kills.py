"""Whatever of a run is killed, and whenever: it goes on or is resumed, and no episode is lost, doubled or made up.

`KILL_SEED` draws other moments. A failing test prints its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from ray.cluster_utils import Cluster

from rllm_gym.checkpoints import find_damage, newest_checkpoint
from rllm_gym.data.records import CLOCKED, EpisodeRecord
from tests.kills.harness import MARK, SEED, Moment, Run, await_end, draw_moment, end_marked, run
from tests.needs import skip_without

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BIT_FOR_BIT = pytest.mark.xdist_group("bit_for_bit")  # they share a run that nothing has happened to
NUM_STEPS = 5
STORE_BYTES = 150 * 2**20


def say(kind: str, moment: Moment) -> None:
    print(f"KILL_SEED={SEED}: {kind} killed {moment}")  # pytest shows it where the test fails


def as_trained(episodes: list[EpisodeRecord]) -> list[dict]:
    """Return episodes without what a clock has measured, in an order that does not depend on the files."""
    found = [episode.model_dump(exclude=CLOCKED) for episode in episodes]
    return sorted(found, key=lambda episode: (episode["train_step"], episode["episode_id"]))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing has happened to."""
    with run(tmp_path_factory.mktemp("straight"), NUM_STEPS) as found:
        found.start()
        found.assert_goes_on()
        assert any(turn.reward for episode in found.episodes() for turn in episode.turns)
        yield found


def assert_equal(found: Run, straight: Run) -> None:
    """Two runs have ended with the same weights, bit for bit, by way of the same episodes."""
    assert as_trained(found.episodes()) == as_trained(straight.episodes())
    weights, expected = found.weights(), straight.weights()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@BIT_FOR_BIT
def test_a_killed_driver_is_resumed_bit_for_bit(tmp_path: Path, straight: Run) -> None:
    moment = draw_moment("driver", NUM_STEPS)
    say("driver", moment)
    with run(tmp_path, NUM_STEPS) as killed:
        killed.start()
        killed.await_moment(moment)
        killed.process.kill()
        killed.wait()
        await_end(killed.mark)
        killed.age_temporary_folders()
        killed.start("--resume")
        killed.assert_goes_on()
        assert_equal(killed, straight)


@BIT_FOR_BIT
def test_a_killed_main_process_of_a_trial_is_one_line_and_is_resumed_bit_for_bit(tmp_path: Path, straight: Run) -> None:
    moment = draw_moment("trainer", NUM_STEPS)
    say("trainer", moment)
    with run(tmp_path, NUM_STEPS) as killed:
        killed.start()
        killed.kill("trainer", moment)
        assert killed.wait() == 1
        assert_one_line(killed, "failed: the trial's main process died")
        killed.age_temporary_folders()
        killed.start("--resume")
        killed.assert_goes_on()
        assert_equal(killed, straight)


def test_a_killed_learner_is_one_line_and_the_run_is_resumed(tmp_path: Path) -> None:
    moment = draw_moment("learner", NUM_STEPS)
    say("learner", moment)
    with run(tmp_path, NUM_STEPS, num_learners=2) as killed:
        killed.start()
        killed.kill("learner", moment)
        assert killed.wait() == 1
        assert_one_line(killed, "failed: GRPO: learner ")
        killed.age_temporary_folders()
        killed.start("--resume")
        killed.assert_goes_on()


@BIT_FOR_BIT
@pytest.mark.parametrize("kind", ["raylet", "gcs_server"])
def test_a_killed_process_of_ray_is_one_line_soon_and_the_run_is_resumed(
    kind: str, tmp_path: Path, straight: Run
) -> None:
    moment = draw_moment(kind, NUM_STEPS)
    say(kind, moment)
    with run(tmp_path, NUM_STEPS) as killed:
        killed.start()
        killed.kill(kind, moment)
        assert killed.wait() == 1
        assert_one_line(killed, f"failed: Ray's process {kind} has ended")
        assert "The newest checkpoint is " in killed.output
        killed.age_temporary_folders()
        killed.start("--resume")
        killed.assert_goes_on()
        assert_equal(killed, straight)


@BIT_FOR_BIT
@pytest.mark.parametrize("whom", ["the group", "every process"])
def test_a_schedulers_signal_ends_the_run_with_a_checkpoint(whom: str, tmp_path: Path, straight: Run) -> None:
    """`timeout`, Slurm and a closing shell send SIGTERM to the process group, systemd to every process."""
    moment = draw_moment(whom, NUM_STEPS)
    say(f"SIGTERM to {whom}", moment)
    with run(tmp_path, NUM_STEPS, checkpoint_frequency=0) as ended:
        ended.start()
        # Early: a signal in the last train step ends nothing, and the run well.
        ended.await_moment(Moment(1, "sampling", moment.fraction))
        if whom == "the group":
            os.killpg(ended.process.pid, signal.SIGTERM)
        else:
            for process in ended.processes():
                with contextlib.suppress(psutil.Error):
                    process.terminate()
        assert ended.wait() == 143, ended.output
        assert "ending after this train step, with a checkpoint" in ended.output
        assert "Traceback" not in ended.output
        ended.assert_nothing_is_left()
        ended.start("--resume")
        ended.assert_goes_on()
        assert_equal(ended, straight)


@pytest.mark.parametrize("checkpoint_mib", [6, 40], ids=["at the first checkpoint", "in a later one"])
def test_a_full_disk_is_one_line_and_no_half_checkpoint_is_the_newest(checkpoint_mib: int, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={checkpoint_mib}m", "tmpfs", disk], check=False).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        with run(tmp_path, NUM_STEPS) as full:
            full.arguments = ("--storage-path", str(disk))
            full.start()
            assert full.wait() == 1, full.output
            assert "No space left on device" in full.output and "Traceback" not in full.output
            await_end(full.mark)
            newest = newest_checkpoint(disk / "kills")
            assert newest is None or find_damage(newest.path) is None
            subprocess.run(["mount", "-o", "remount,size=400m", disk], check=True)
            if newest is not None:
                full.age_temporary_folders()
                full.start("--resume")
                assert full.wait() == 0, full.output
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_run_folder_that_is_removed_ends_the_run_in_one_line(tmp_path: Path) -> None:
    with run(tmp_path, 50) as lost:
        lost.start()
        lost.await_moment(Moment(2, "sampling", 0.5))
        shutil.rmtree(lost.runs)
        assert lost.wait() == 1, lost.output
        assert_one_line(lost, "failed: ")
        await_end(lost.mark)


def assert_one_line(killed: Run, begin: str) -> None:
    """The run has said once what was wrong, and that it can be resumed; without a traceback."""
    [line] = [line for line in killed.output.splitlines() if line.startswith("failed: ")]
    assert line.startswith(begin)
    assert "--resume" in line
    assert "Traceback" not in killed.output


def test_a_killed_env_runner_with_its_engine_is_replaced(tmp_path: Path) -> None:
    moment = draw_moment("runner", NUM_STEPS)
    say("runner", moment)
    options = {"engine": "vllm", "engine_options": {"kv_cache_memory_bytes": 2**26}}
    with run(tmp_path, NUM_STEPS, **options) as killed:
        killed.start()
        pid = killed.kill("runner", moment)
        killed.await_(lambda: [p for p in killed.victims("runner") if p.pid != pid], "another runner")
        killed.assert_goes_on()
        assert "\x1b" not in killed.output  # Ray says that a worker has died
        assert killed.rows()[-1]["fault_tolerance"]["num_groups_killed_runners"] == 0
        assert not any(episode.end_reason == "error" for episode in killed.episodes())


def test_environments_whose_processes_are_killed_play_their_episodes_again(tmp_path: Path) -> None:
    """The replies are the same to each of a group: so are its episodes, whatever befell one of them."""
    for what in ("java", "browser", "textworld"):
        skip_without(what)
    rng = random.Random(f"{SEED} environments")
    kinds = ["jvm", "browser", "game"]
    rng.shuffle(kinds)
    moments = [Moment(k + 1, "sampling", round(rng.random(), 3)) for k in range(3)]
    environments = [
        {"id": "rllm_gym/SciWorld-v0", "env_config": {"tasks": ["find-plant"], "system_prompt": ""}},
        {"id": "rllm_gym/TextWorld-v0", "env_config": {"levels": [1], "system_prompt": ""}},
        {
            "id": "rllm_gym/MiniWoB-v0",
            "env_config": {"item_ids": ["miniwob_click-tab"], "max_observation_tokens": 256, "system_prompt": ""},
        },
    ]
    options = {
        "env": environments,
        "env_config": {},
        "engine": "scripted",
        "engine_options": {"replies": "tests.kills.replies:reply"},
        "groups_per_step": 6,
        "group_size": 2,
        "num_envs_per_env_runner": 12,
        "num_env_workers": 4,
        "max_model_len": 4096,
        "max_episode_steps": 3,
    }
    with run(tmp_path, NUM_STEPS, **options) as killed:
        killed.start()
        for kind, moment in zip(kinds, moments, strict=True):
            say(kind, moment)
            killed.kill(kind, moment)
        killed.assert_goes_on()
        groups: dict[tuple, list[EpisodeRecord]] = {}
        for episode in killed.episodes():
            assert episode.end_reason != "error", episode.error
            groups.setdefault(tuple(episode.group), []).append(episode)
        for episodes in groups.values():
            said = [[(turn.observation_ids, turn.action_ids, turn.reward) for turn in e.turns] for e in episodes]
            assert said == said[:1] * len(said)


@contextlib.contextmanager
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray whose head has the main process's place; nothing of it is left over, nor of a node that was killed."""
    mark, temp = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("RAY_TMPDIR", str(temp))
    head = {"num_cpus": 1, "resources": {"main": 1}, "object_store_memory": STORE_BYTES}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield nodes
        nodes.shutdown()
        await_end(mark)
    finally:
        nodes.shutdown()
        end_marked(mark)
        shutil.rmtree(temp, ignore_errors=True)


def test_a_killed_node_s_runner_comes_back_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = draw_moment("node", NUM_STEPS)
    say("node", moment)
    options = {
        "custom_resources_for_main_process": {"main": 1},
        "custom_resources_per_env_runner": {"sampler": 1},
    }
    with cluster(monkeypatch) as nodes:
        sampler = nodes.add_node(num_cpus=1, resources={"sampler": 1}, object_store_memory=STORE_BYTES)
        with run(tmp_path, NUM_STEPS, "--ray-address", nodes.address, **options) as killed:
            killed.start()
            killed.await_moment(moment)
            nodes.remove_node(
                sampler, allow_graceful=False
            )  # SIGKILL, and without a zombie, which would keep its workers
            nodes.add_node(num_cpus=1, resources={"sampler": 1}, object_store_memory=STORE_BYTES)
            killed.assert_goes_on()
            assert not any(episode.end_reason == "error" for episode in killed.episodes())


def test_a_stopped_env_runner_is_told_and_replaced(tmp_path: Path) -> None:
    """SIGSTOP stands for native code that holds Python's lock: no thread of the process runs."""
    moment = draw_moment("stopped", NUM_STEPS)
    say("stopped", moment)
    with run(tmp_path, NUM_STEPS, env_timeout_s=70) as stopped:
        stopped.start()
        stopped.await_moment(Moment(moment.after_step, "sampling", moment.fraction))
        [runner] = stopped.victims("runner")
        runner.suspend()
        stopped.assert_goes_on()
        assert "has stood still for 6" in stopped.output and "is replaced" in stopped.output
