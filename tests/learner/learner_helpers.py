"""Learner groups over a tiny random model, and random episodes and samples for them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from gymnasium.spaces import Discrete
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.utils.metrics import LEARNER_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.rllib.utils.spaces.repeated import Repeated

from rllm_gym.algorithms.policy_gradient import StepSamples
from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.training.algorithm import LLMAlgorithm
from rllm_gym.training.config import LLMConfig
from rllm_gym.training.samples import samples_from_episode
from rllm_gym.types import AGENT, DEFAULT_MODULE, EndReason, Episode, Sample, Stream, TaskGroup, Turn

VOCABULARY = 200
SPACE = Repeated(Discrete(VOCABULARY), 512)
MODULE = DEFAULT_MODULE
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}


def make_config(base_model, method: str = "GRPO", **options) -> LLMConfig:
    """A configuration whose update is plain gradient descent at rate 1: the weights' change is minus the gradient."""
    config = get_algorithm_class(method).get_default_config()
    options = {"base_model": str(base_model), "deepspeed": SGD, "grad_clip": 0.0, "zero_stage": 0, **options}
    for name, value in options.items():
        setattr(config, name, value)
    return config


def module_spec(config: LLMConfig) -> MultiRLModuleSpec:
    return config.get_multi_rl_module_spec(spaces={MODULE: (SPACE, SPACE)})


def make_group(config: LLMConfig) -> LearnerGroup:
    return LearnerGroup(config=config, module_spec=module_spec(config))


def make_episodes(num: int, seed: int = 0, *, logp: float = -5.3, num_turns: int = 3) -> list[Episode]:
    """Episodes of random tokens, of various lengths, which the horizon has ended."""
    rng = np.random.default_rng(seed)
    episodes = []
    for k in range(num):
        count = int(rng.integers(1, num_turns + 1))
        sizes = rng.integers(1, 24, size=count + 1), rng.integers(1, 10, size=count)
        observations = [rng.integers(0, VOCABULARY, n) for n in sizes[0]]
        turns = [
            Turn(observations[i], rng.integers(0, VOCABULARY, n), np.full(n, logp, np.float32), 0, env_step=i)
            for i, n in enumerate(sizes[1])
        ]
        stream = Stream(AGENT, MODULE, turns, observations[-1])
        task = TaskGroup((0, 0, k // 3), None, 3)  # three episodes of every task
        episodes.append(Episode(f"e{k}", task, k % 3, seed=k, streams={AGENT: stream}, end_reason=EndReason.HORIZON))
    return episodes


def make_samples(num: int, seed: int = 0, **options: Any) -> list[Sample]:
    """Such episodes as samples, each with an advantage at random."""
    rng = np.random.default_rng((seed, 1))
    samples = [
        sample
        for episode in make_episodes(num, seed, **options)
        for sample in samples_from_episode(episode, lambda _: 0)
    ]
    for sample in samples:
        sample.advantage = sample.weight * np.float32(rng.normal())
    return samples


def driver_of(group: LearnerGroup) -> Any:
    """The method's algorithm, with these learners and without EnvRunners."""
    driver = object.__new__(group.config.algo_class)
    driver.config, driver.learner_group, driver.metrics = group.config, group, MetricsLogger(root=True)
    with mock.patch.object(LLMAlgorithm, "setup"):
        driver.setup(group.config)
    return driver


def assess(driver: Any, episodes: list[Episode]) -> list[Sample]:
    """Return the episodes' samples with the method's advantages."""
    driver.sampled = StepSamples()
    if episodes:
        driver._assess(episodes)
    return driver.sampled.trained


def update(group: LearnerGroup, items: list, *, train_step: int = 0, driver: Any = None) -> dict[str, float]:
    """Take one train step on samples as they are, or on episodes; returns the module's metrics."""
    driver = driver or driver_of(group)
    driver._iteration = train_step
    samples = assess(driver, items) if items and isinstance(items[0], Episode) else items
    driver.score(samples, getattr(group.config, "scores_for_loss", []))
    driver.results = driver.update(samples, kl_coeff=getattr(driver, "kl_coeff", {}))
    metrics = driver.metrics.peek((LEARNER_RESULTS, MODULE)) | driver.results[0][MODULE]
    return {name: float(value.peek() if hasattr(value, "peek") else value) for name, value in metrics.items()}


def weights(group: LearnerGroup) -> dict[str, np.ndarray]:
    return {name: value.copy() for name, value in group.get_weights()[MODULE].items()}


def step(group: LearnerGroup, items: list, weights=weights) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """One train step; returns the gradient and the metrics."""
    before = weights(group)
    metrics = update(group, items)
    return change(weights(group), before), metrics


def gradient(group: LearnerGroup, items: list) -> dict[str, np.ndarray]:
    return step(group, items)[0]


def change(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: after[name] - before[name] for name in before}


def largest(state: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(value).max()) for value in state.values())


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    return largest(change(a, b))
