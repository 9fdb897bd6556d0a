"""Real runs, their processes, and moments to kill one of them at.

A run and all that it starts carry a mark in their environment, by which they are found, also when their parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml

from rllm_gym.checkpoints import newest_checkpoint, read_results
from rllm_gym.data import read_episodes
from rllm_gym.data.records import EpisodeRecord

REPOSITORY = Path(__file__).parents[2]
SEED = int(os.environ.get("KILL_SEED", "0"))
PHASES = ("sampling", "training", "writing")
NAME = "kills"
MARK = "RLLM_GYM_TESTED_RUN"
START_S = 240.0  # until the first train step; a quiet machine takes a tenth of it
END_S = 400.0

SMALL: dict[str, Any] = {
    "base_model": "tiny",
    "groups_per_step": 4,
    "group_size": 4,
    "num_envs_per_env_runner": 16,
    "num_env_workers": 0,
    "max_model_len": 1024,
    "max_new_tokens": 32,
    "max_episode_steps": 2,
    "max_empty_steps": 1000,
    "engine": "transformers",
    "lr": 1e-4,
}
TEXTCRAFT: dict[str, Any] = {"env": "rllm_gym/TextCraft-v0", "env_config": {"depth": 1, "system_prompt": ""}}

T = TypeVar("T")


@dataclass(frozen=True)
class Moment:
    """When to kill: in which phase after which train step, and how far into it."""

    after_step: int
    phase: str
    fraction: float


def draw_moment(what: str, last_step: int) -> Moment:
    """Draw a moment for a kind of process from the seed; it leaves a checkpoint to go on from and two train steps."""
    rng = random.Random(f"{SEED} {what}")
    return Moment(rng.randint(2, last_step - 2), rng.choice(PHASES), round(rng.random(), 3))


@dataclass
class Run:
    """An experiment in a folder of its own, trained by the command as often as it is started."""

    folder: Path
    temp: Path
    config: dict[str, Any]
    num_steps: int
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = None
    num_starts: int = 0
    checkpoint_frequency: int = 1

    @property
    def env(self) -> dict[str, str]:
        mine = {MARK: self.mark, "TMPDIR": str(self.temp), "PYTHONPATH": str(REPOSITORY)}
        return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | mine

    @property
    def output(self) -> str:
        """The output of the last start."""
        return (self.folder / f"output{self.num_starts}.txt").read_text()

    def start(self, *arguments: str) -> None:
        experiment = {
            "run": "GRPO",
            "stop": {"training_iteration": self.num_steps},
            "checkpoint_config": {"checkpoint_frequency": self.checkpoint_frequency, "num_to_keep": 2},
            "env": self.config["env"],
            "config": {key: value for key, value in self.config.items() if key != "env"},
        }
        path = self.folder / "x.yaml"
        path.write_text(yaml.safe_dump({NAME: experiment}))
        command = [sys.executable, "-m", "rllm_gym.cli.main", "rllib", "train", "file", str(path)]
        command += [*self.arguments, *arguments]
        self.num_starts += 1
        with (self.folder / f"output{self.num_starts}.txt").open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=output, stderr=output, text=True, process_group=0
            )

    def wait(self) -> int:
        """Return the exit code."""
        assert self.process is not None
        return self.process.wait(END_S)

    # --- its files ---

    @property
    def runs(self) -> Path:
        return self.folder / "runs" / NAME

    @property
    def trials(self) -> list[Path]:
        return sorted(path.parent for path in self.runs.glob("*/params.json"))

    def rows(self) -> list[dict[str, Any]]:
        return read_results(self.trials[-1]) if self.trials else []

    def episodes(self) -> list[EpisodeRecord]:
        return list(read_episodes(self.runs))

    def weights(self) -> dict[str, Any]:
        """Return the weights of the newest checkpoint, by name."""
        import torch

        checkpoint = newest_checkpoint(self.runs)
        assert checkpoint is not None
        [file] = checkpoint.path.glob("deepspeed/default_policy/engine/mp_rank_00_model_states.pt")
        return torch.load(file, weights_only=False)["module"]

    # --- its processes ---

    def processes(self) -> list[psutil.Process]:
        return marked(self.mark)

    def victims(self, kind: str) -> list[psutil.Process]:
        return [process for process in self.processes() if is_kind(kind, process)]

    def kill(self, kind: str, moment: Moment) -> int:
        """Kill a process of a kind at a moment; returns its id."""
        self.await_moment(moment)
        victim = self.await_(lambda: self.victims(kind), f"a {kind} to kill")[0]
        victim.kill()
        return victim.pid

    def await_moment(self, moment: Moment) -> None:
        self.await_(lambda: self.num_rows() >= moment.after_step, f"train step {moment.after_step}", START_S)
        row = self.rows()[-1]
        if moment.phase == "sampling":
            time.sleep(moment.fraction * row["sampling_s"])
        elif moment.phase == "training":
            size = self._num_stored()
            self.await_(lambda: self._num_stored() > size, "the next train step's episodes")
            time.sleep(moment.fraction * row["learning_s"])
        else:
            # Names count from 0: of the next train step, which is written below the eyes of who waits for it.
            path = self.trials[-1] / f"checkpoint_{self._num_checkpoints():06d}"
            self.await_(path.exists, "the next checkpoint")
            time.sleep(moment.fraction * 0.05)

    def await_(self, get: Callable[[], T], what: str, timeout_s: float = 120.0, interval_s: float = 0.005) -> T:
        """Return what is there as soon as it is."""
        end_s = time.monotonic() + timeout_s
        while not (found := get()):
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the run ended while {what} was awaited:\n{self.output}")
            if time.monotonic() > end_s:
                raise AssertionError(f"{what}: nothing within {timeout_s:g} s:\n{self.output}")
            time.sleep(interval_s)
        return found

    def num_rows(self) -> int:
        files = [trial / "result.json" for trial in self.trials[-1:]]
        return sum(file.read_bytes().count(b"\n") for file in files if file.exists())

    def _num_stored(self) -> int:
        return sum(file.stat().st_size for file in self.trials[-1].glob("trajectories/*.jsonl"))

    def _num_checkpoints(self) -> int:
        numbers = [int(path.name.rpartition("_")[2]) for path in self.trials[-1].glob("checkpoint_*")]
        return max(numbers, default=-1) + 1

    # --- what must hold at its end ---

    def assert_goes_on(self) -> None:
        """It ends by itself, with every train step and every episode, and leaves nothing over."""
        code = self.wait()
        assert code == 0, self.output
        self.assert_is_whole()

    def assert_is_whole(self) -> None:
        rows, episodes = self.rows(), self.episodes()
        assert [row["training_iteration"] for row in rows] == [*range(1, self.num_steps + 1)]
        keys = [(episode.episode_id, episode.agent_id) for episode in episodes]
        assert len(keys) == len(set(keys))
        for step, row in enumerate(rows):
            of_step = [episode for episode in episodes if episode.train_step == step]
            failed = [episode for episode in of_step if episode.end_reason == "error"]
            assert len(failed) == row["env_runners"]["num_failed_episodes"], [episode.error for episode in failed]
            assert len(of_step) == self.config["groups_per_step"] * self.config["group_size"]
            assert row["fault_tolerance"]["num_groups_killed_runners"] == 0
        self.assert_nothing_is_left()

    def assert_nothing_is_left(self) -> None:
        """No process, and after an end in order no temporary folder."""
        await_end(self.mark, within_s=15.0)
        assert not list(self.temp.glob("rllm_gym_*"))

    def age_temporary_folders(self) -> None:
        """Make what a killed run left so old that the next start takes it for that."""
        for folder in self.temp.glob("rllm_gym_*"):
            os.utime(folder, (0, 0))

    def stop(self) -> None:
        end_marked(self.mark)
        if self.process is not None:
            self.process.wait()


def marked(mark: str) -> list[psutil.Process]:
    """Return everything that carries a mark and lives."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def await_end(mark: str, *, within_s: float = 90.0) -> None:
    """Make sure that all that carries a mark ends by itself; Ray's agents look for a killed raylet for a minute."""
    end_s = time.monotonic() + within_s
    while (left := marked(mark)) and time.monotonic() < end_s:
        time.sleep(0.2)
    assert not [_told(process) for process in left]


def _told(process: psutil.Process) -> str:
    """Return what a process is and does."""
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} of {process.ppid()} {process.status()} {' '.join(process.cmdline())[:200]!r}"
    return f"{process.pid} has ended"


def end_marked(mark: str) -> None:
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            process.kill()


def is_kind(kind: str, process: psutil.Process) -> bool:
    try:
        line = process.cmdline()
        parent = process.parent()
        parent_line = parent.cmdline() if parent is not None else []
    except psutil.Error:
        return False
    title, text = line[0] if line else "", " ".join(line)
    match kind:
        case "driver":
            return "rllm_gym.cli.main" in line
        case "runner":
            return title.startswith("ray::LLMEnvRunner")
        case "trainer":
            return title.startswith("ray::GRPO")
        case "raylet" | "gcs_server":
            return title.rpartition("/")[2] == kind
        case "learner":
            return title.startswith(("ray::_WrappedExecutable", "ray::_RayTrainWorker"))  # as Ray Train calls it
        case "jvm":
            return "py4j.GatewayServer" in text
        case "browser":
            return "--headless" in text and "--type=" not in text
        case "game":
            return "game_server.py" in text and "game_server.py" in " ".join(parent_line)
    raise ValueError(kind)


@contextlib.contextmanager
def run(folder: Path, num_steps: int, *arguments: str, checkpoint_frequency: int = 1, **config: Any) -> Iterator[Run]:
    """Have a run to start; whatever is left of it at the end is killed."""
    # Ray's sockets lie in the temporary folder, whose path must be short; a test's own folder is too deep.
    temp = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    found = Run(folder, temp, TEXTCRAFT | SMALL | config, num_steps, arguments=arguments)
    found.checkpoint_frequency = checkpoint_frequency
    try:
        yield found
    finally:
        found.stop()
        shutil.rmtree(temp, ignore_errors=True)
