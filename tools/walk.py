"""How far one GRPO step travels through our files: `python tools/walk.py` prints `files` and `changes of file`.

Traces the calls into this package's Python files in one train step of two episodes of two turns: the shipped tiny
model, a local learner, and the EnvRunner in this process. A change of file is a call from one of our files into
another, or a return from it, in one thread. A newcomer who follows the step opens each of these files, and turns from
one to another that often.

What anybody brings is not counted: the environment is ten lines below, and a scripted engine stands for vLLM.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import ray
from ray.tune.registry import register_env

from rllm_gym.algorithms import GRPOConfig
from rllm_gym.envs.text_space import UnicodeText
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.env_runner import LLMEnvRunner
from rllm_gym.tokens import ChatTokenizer

ROOT = Path(__file__).resolve().parent.parent


class Walk:
    """Counts, while it is on, the files of ours that are called into, and the changes from one to another.

    It follows this thread, and those that begin after it was made: one steps the environment while this one waits.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.changes: Counter[tuple[str, str]] = Counter()
        self._files: dict[int, str] = {}  # of each thread: whose turn it is changes nothing
        self._is_on = False
        threading.setprofile(self._profile)

    def __enter__(self) -> Walk:
        self._is_on = True
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_on = False
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame: FrameType | None, event: str, _: Any) -> None:
        if not self._is_on or threading.current_thread().name.endswith("-reports"):  # they only watch
            return
        if event == "return":  # back to the nearest caller of ours
            frame = frame and frame.f_back
            while frame is not None and not is_ours(frame):
                frame = frame.f_back
        if frame is None or event not in ("call", "return") or not is_ours(frame):
            return
        file = os.path.relpath(os.path.realpath(frame.f_code.co_filename), ROOT)
        self.calls[file] += event == "call"
        before, self._files[threading.get_ident()] = self._files.get(threading.get_ident(), file), file
        self.changes[before, file] += before != file


def is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    brought = name == __file__ or "/rollout/engines/" in name
    return name.startswith(str(ROOT)) and ".venv" not in name and not brought


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--verbose", action="store_true", help="also list the files and the most frequent changes")
    options = parser.parse_args()
    walk = trace_one_step()
    print(f"files {len(walk.calls)}")
    print(f"changes of file {walk.changes.total()}")
    if options.verbose:
        for file, count in walk.calls.most_common():
            print(f"{count:6} calls  {file}")
        for (before, after), count in walk.changes.most_common(30):
            print(f"{count:6} x  {before} -> {after}")


class Echo(gymnasium.Env[str, str]):
    """Says what it was told, for ever."""

    observation_space = action_space = UnicodeText(1000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "Speak.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"You said {action}.", 0.0, False, False, {"is_success": False}


def says_hello(model: str, **arguments: Any) -> ScriptedEngine:
    """Return an engine that says hello."""
    reply = ChatTokenizer(model).encode_action("Hello")
    return ScriptedEngine(lambda prompt_ids: reply, max_context_tokens=arguments["max_model_len"])


class InProcess:
    """What an algorithm asks of its group of EnvRunners, for one that is in this process."""

    def __init__(self, runner: LLMEnvRunner) -> None:
        self.runner = runner

    def healthy_worker_ids(self) -> list[int]:
        return [self.runner.worker_index]

    def foreach_env_runner(self, function: Any, **_: Any) -> list[Any]:
        functions = function if isinstance(function, list) else [function]
        return [f(self.runner) for f in functions]

    def sync_weights(self, *, from_worker_or_learner_group: Any, **_: Any) -> None:
        state = from_worker_or_learner_group.get_state(components="learner/rl_module", inference_only=True)
        self.runner.set_state(state["learner"])


def trace_one_step() -> Walk:
    """Build the algorithm, and trace its second train step: the first one also makes what is made once."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_env("echo", lambda _: Echo())
    config = (
        GRPOConfig()
        .environment("echo")
        .rl_module(base_model="tiny")
        .env_runners(engine=says_hello, group_size=2, groups_per_step=1, max_episode_steps=2, max_new_tokens=32)
        .training(filter_groups="off")
    )
    algo = config.build_algo()
    walk = Walk()
    actors, algo.env_runner_group = algo.env_runner_group, InProcess(LLMEnvRunner(config=algo.config, worker_index=1))
    algo.training_step()
    with walk:
        algo.training_step()
    algo.env_runner_group = actors
    algo.stop()
    ray.shutdown()
    return walk


if __name__ == "__main__":
    main()
