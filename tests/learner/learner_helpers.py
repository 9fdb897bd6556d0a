"""Learner groups over a tiny random model, and random episodes for them."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Discrete
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.spaces.repeated import Repeated
from ray.tune.result import TRAINING_ITERATION
from rllm_gym.learner.connectors import EpisodeData
from rllm_gym.learner.samples import SampleData

from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.training.config import LLMConfig

VOCABULARY = 200
SPACE = Repeated(Discrete(VOCABULARY), 512)
MODULE = "default_policy"
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}


def make_config(base_model, method: str = "GRPO", **options) -> LLMConfig:
    """A configuration whose update is plain gradient descent at rate 1: the weights' change is minus the gradient."""
    config = get_algorithm_class(method).get_default_config()
    options = {"base_model": str(base_model), "deepspeed": SGD, "grad_clip": 0.0, "zero_stage": 0, **options}
    for name, value in options.items():
        setattr(config, name, value)
    return config


def make_group(config: LLMConfig) -> LearnerGroup:
    return LearnerGroup(config=config, module_spec=config.get_multi_rl_module_spec(spaces={MODULE: (SPACE, SPACE)}))


def make_episodes(num: int, seed: int = 0, *, logp: float = -5.3, num_turns: int = 3) -> list[SingleAgentEpisode]:
    """Episodes of random tokens, of various lengths, with random advantages."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(num):
        turns = int(rng.integers(1, num_turns + 1))
        sizes = rng.integers(1, 24, size=turns + 1), rng.integers(1, 10, size=turns)
        episode = SingleAgentEpisode(
            observations=[rng.integers(0, VOCABULARY, n) for n in sizes[0]],
            actions=[rng.integers(0, VOCABULARY, n) for n in sizes[1]],
            rewards=[0.0] * turns,
            truncated=True,
            extra_model_outputs={"action_logp": [np.full(n, logp, np.float32) for n in sizes[1]]},
            len_lookback_buffer=0,
        )
        episode.custom_data["advantage"] = float(rng.normal())
        episodes.append(episode)
    return episodes


def update(group: LearnerGroup, items: list, *, train_step: int = 0) -> dict[str, float]:
    """Take one train step on episodes, or on samples or pairs; returns the module's metrics."""
    data = EpisodeData if not items or isinstance(items[0], SingleAgentEpisode) else SampleData
    results = group.update(training_data=data(episodes=items), timesteps={TRAINING_ITERATION: train_step})
    return {name: float(stats.peek()) for name, stats in results[0][MODULE].items()}


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
