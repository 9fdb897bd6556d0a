"""An algorithm's EnvRunner and its engines in this process: without Ray, and with engines that several runs take."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ray
from ray.rllib.algorithms import algorithm as rllib_algorithm
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.trainable import trainable
from transformers import AutoModelForCausalLM  # before an algorithm imports it in a thread, beside its runner

from rllm_gym.cli.train.check import Faults, check_fully, check_quickly
from rllm_gym.cli.train.experiment import read_experiment
from rllm_gym.rollout import policies
from rllm_gym.types import Engine

make_engine = policies.engine_maker


class Runners:
    """Stands in for an algorithm's group of EnvRunners, with one runner in this process."""

    local_env_runner = None
    _worker_manager = SimpleNamespace(actors=dict)  # no runner is an actor, whose standstill could be told

    def __init__(self, *, config: Any, **_: Any) -> None:
        self.runner = config.env_runner_cls(config=config, worker_index=1)

    def healthy_worker_ids(self) -> list[int]:
        return [1]

    def get_spaces(self) -> Any:
        return self.runner.get_spaces()

    def foreach_env_runner(self, function: Any, *_: Any, **__: Any) -> list[Any]:
        if isinstance(function, str):
            return [getattr(self.runner, function)()]
        return [f(self.runner) for f in (function if isinstance(function, list) else [function])]

    def sync_weights(self, *, from_worker_or_learner_group: Any, **_: Any) -> None:
        state = from_worker_or_learner_group.get_state(components="learner/rl_module", inference_only=True)
        self.runner.set_state(state["learner"])

    def sync_env_runner_states(self, **_: Any) -> None:
        pass

    def probe_unhealthy_env_runners(self, *_: Any, **__: Any) -> list[int]:
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("num_"):
            return lambda: 0
        raise AttributeError(name)

    def stop(self) -> None:
        self.runner.stop()


class EnginePool:
    """Engines that were closed, for the next who asks for such a one: it gets the model's own weights again."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, ...], list[Engine]] = defaultdict(list)

    def engine_maker(self, name: str) -> Callable[..., Engine]:
        def make(model: str, **arguments: Any) -> Engine:
            free = self._free[name, model, repr(sorted(arguments.items()))]
            if free:
                engine = free.pop()
                engine.load_weights(_weights(model), 0)
                return engine
            engine = make_engine(name)(model, **arguments)
            engine.close = lambda: free.append(engine)  # type: ignore[method-assign]
            return engine

        return make


def _weights(model: str) -> dict[str, Any]:
    return AutoModelForCausalLM.from_pretrained(model).state_dict()


def _runners(*, config: Any, **arguments: Any) -> Any:
    return (Runners if config.num_env_runners == 1 else EnvRunnerGroup)(config=config, **arguments)


def config_in(path: Path) -> Any:
    """Return the config that `rllib train file` would build of an experiment's file."""
    experiment = read_experiment(path)
    faults = Faults(experiment.source)
    checked = check_fully(experiment, check_quickly(experiment, faults), faults, allow_lookup=False)
    faults.raise_any()
    assert checked is not None
    [config] = checked.configs
    return config


@contextmanager
def in_this_process(engines: EnginePool) -> Iterator[None]:
    """Give every algorithm that is built with one runner its runner in this process, with an engine from a pool.

    Where a test wants Ray, it asks for the session's: one that starts by itself would be in the way of that.
    """
    had_ray = ray.is_initialized()
    with (
        mock.patch.object(rllib_algorithm, "EnvRunnerGroup", _runners),
        mock.patch.object(policies, "engine_maker", engines.engine_maker),
        # Where an algorithm that nobody gave a place writes: else ~/ray_results.
        mock.patch.object(trainable, "DEFAULT_STORAGE_PATH", tempfile.gettempdir()),
    ):
        yield
    assert ray.is_initialized() == had_ray, "Ray has started by itself: ask for `toy_environments`"
