"""An algorithm in this process alone: learner, runner and a scripted engine, with everything written down that passes.

Building one takes half a second, so that every option can be tried.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from ray.rllib.algorithms import algorithm as rllib_algorithm
from ray.tune.registry import register_env

from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.learner.deepspeed import DeepSpeedLearner
from rllm_gym.rollout import policies
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import Completion, CompletionRequest
from tests.in_process import Runners
from tests.wiring.maze import make_maze

COMPUTE_LOSS = DeepSpeedLearner._loss
REPLIES = ("go", "left", "", "open the door", "look around you", "right", "take it")


register_env("maze", make_maze)


class Recorder(ScriptedEngine):
    """Says one of `REPLIES`, by the prompt and the request's own seed, so that a group's episodes differ.

    Log-probabilities lie around the tiny model's: some ratios are above 1, some below. `arguments` are what it was made
    with, `params` what each request asked for.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        self.num_cache_resets = self.max_running = 0
        super().__init__(lambda prompt_ids: [], max_context_tokens=arguments["max_model_len"])
        self.model, self.arguments, self.chat = model, arguments, ChatTokenizer(model)

    @property
    def params(self) -> list[Any]:
        return [request.params for request in self.requests]

    def submit(self, request: CompletionRequest) -> None:
        seed = 0 if request.params.temperature == 0 else int(request.seed or 0)
        text = REPLIES[zlib.crc32(repr((list(request.prompt_ids), seed)).encode()) % len(REPLIES)]
        self._reply = lambda prompt_ids: self.chat.encode_action(text)
        super().submit(request)
        self.max_running = max(self.max_running, len(self._running))

    def step(self) -> list[Completion]:
        completions = super().step()
        for completion in completions:
            rng = np.random.default_rng(zlib.crc32(completion.token_ids.tobytes()))
            completion.logp[:] = rng.normal(-5.5, 0.4, len(completion.token_ids))
        return completions

    def reset_prefix_cache(self) -> None:
        self.num_cache_resets += 1


@dataclass
class Run:
    """The record of some train steps."""

    algo: Any
    results: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)  # each micro-batch that a loss was computed of
    losses: list[float] = field(default_factory=list)
    before: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def runner(self) -> Any:
        return self.algo.env_runner_group.runner

    @property
    def engine(self) -> Recorder:
        return self.runner.engines["default_policy"]

    @property
    def learner(self) -> Any:
        return self.algo.learner_group._learner

    @property
    def deepspeed(self) -> Any:
        return self.learner.engines["default_policy"]

    @property
    def optimizer(self) -> Mapping[str, Any]:
        return self.deepspeed.basic_optimizer.param_groups[0]

    @property
    def samples(self) -> list[Any]:
        return self.algo.sampled.samples

    @property
    def trained(self) -> list[Any]:
        return self.algo.sampled.trained

    @property
    def metrics(self) -> dict[str, Any]:
        return self.results[-1]["learners"]["default_policy"]

    @property
    def env_metrics(self) -> dict[str, Any]:
        return self.results[-1]["env_runners"]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        state = self.algo.learner_group.get_weights().get("default_policy", {})  # of several policies none
        return {name: torch.as_tensor(value).float().numpy().copy() for name, value in state.items()}

    @property
    def moved(self) -> float:
        """How far the weights have gone from the first train step's."""
        after = self.weights
        return float(sum(np.abs(after[name] - self.before[name]).sum() for name in after))

    def advantages(self) -> list[float]:
        return [round(float(sample.advantage.sum()), 6) for sample in self.trained]


@contextmanager
def run(base_model: Any, *, method: str = "GRPO", steps: int = 1, **options: Any) -> Iterator[Run]:
    """Build a method with options, take train steps, and hand over what passed."""
    config = get_algorithm_class(method).get_default_config().environment(options.pop("env", "maze"))
    settings = {
        "base_model": str(base_model),
        "max_model_len": 160,
        "max_new_tokens": 24,
        "groups_per_step": 3,
        "group_size": 4,
        "lr": 1e-3,
        "save_trajectories": False,
        "zero_stage": 0,
    }
    if "scaling_inter" not in options:
        settings["max_episode_steps"] = 3
    config.update_from_dict(settings | options)
    config.log_sys_usage = False  # the end of a run waits for that thread's sleep
    torch.manual_seed(0)
    found: Run

    def spy(learner: Any, module_id: str, part: Any, counts: Any, out: Any) -> Any:
        loss = COMPUTE_LOSS(learner, module_id, part, counts, out)  # not an earlier run's spy, which is open still
        found.batches.append(dict(part.tensors))
        found.losses.append(float(loss))
        return loss

    with (
        mock.patch.object(rllib_algorithm, "EnvRunnerGroup", Runners),
        mock.patch.object(policies, "engine_maker", lambda engine: functools.partial(Recorder, engine=engine)),
        mock.patch.object(DeepSpeedLearner, "_loss", spy),
    ):
        found = Run(config.build_algo())
        found.before = found.weights
        try:
            for _ in range(steps):
                found.results.append(found.algo.train())
            yield found
        finally:
            found.algo.stop()


def callback(algo: Any, kind: type) -> Any:
    """Return an algorithm's callback of a class."""
    [found] = [of for of in algo.callbacks if type(of) is kind]
    return found
