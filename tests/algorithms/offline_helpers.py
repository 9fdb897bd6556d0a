"""Offline methods on toy worlds and on learner groups of their own."""

from __future__ import annotations

import math

import numpy as np
from algorithm_helpers import module_weights
from gymnasium.spaces import Discrete
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.spaces.repeated import Repeated

from rllm_gym.learner.rl_module import LLMModule
from rllm_gym.learner.samples import SampleData
from rllm_gym.types import Sample

MODULE = "default_policy"
SPACE = Repeated(Discrete(200), 512)


def offline_config(config, base_model, **options):
    """A configuration on a toy world; 40 expert episodes, no EnvRunner unless it is to be evaluated."""
    defaults = {
        "env": "say_the_word",
        "base_model": str(base_model),
        "max_model_len": 256,
        "max_new_tokens": 6,
        "max_episode_steps": 3,
        "num_expert_episodes": 40,
        "num_evaluation_samples": 8,
        "samples_per_step": 16,
        "lr": 3e-3,
        "engine_options": {"kv_cache_memory_bytes": 64 * 2**20},
        "num_envs_per_env_runner": 64,
        "evaluation_duration": 16,
        "save_trajectories": False,
    }
    for name, value in {**defaults, **options}.items():
        setattr(config, name, value)
    return config


def make_samples(num, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 40, num)
    return [Sample(rng.integers(0, 200, n), np.r_[0, 1, rng.integers(0, 2, n - 2)].astype(np.float32)) for n in lengths]


def make_group(config, base_model, **options) -> LearnerGroup:
    """A learner group whose update is plain gradient descent at rate 1: the weights' change is minus the gradient."""
    sgd = {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}
    options = {"base_model": str(base_model), "deepspeed": sgd, "grad_clip": 0.0, "zero_stage": 0, **options}
    for name, value in options.items():
        setattr(config, name, value)
    spec = RLModuleSpec(LLMModule, SPACE, SPACE, model_config=config._model_config_auto_includes)
    return LearnerGroup(config=config, module_spec=MultiRLModuleSpec(rl_module_specs={MODULE: spec}))


def group_weights(group) -> dict[str, np.ndarray]:
    return {name: value.copy() for name, value in group.get_weights()[MODULE].items()}


def step(group, items) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """One train step; returns the gradient and the metrics."""
    before = group_weights(group)
    results = group.update(training_data=SampleData(episodes=list(items)), timesteps={})
    after = group_weights(group)
    return {name: before[name] - after[name] for name in before}, {
        name: float(stats.peek()) for name, stats in results[0][MODULE].items()
    }


def distance(a, b) -> float:
    """The largest difference, as a share of the largest value of `a`."""
    return max(float(np.abs(a[n] - b[n]).max()) for n in a) / max(float(np.abs(a[n]).max()) for n in a)


def equal(a, b) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


def not_finite(result, prefix="") -> list[str]:
    """The names of a result's numbers that are no finite ones."""
    found = []
    for key, value in result.items():
        if isinstance(value, dict) and key not in ("config", "perf"):
            found += not_finite(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float, np.floating)) and not math.isfinite(value):
            found.append(prefix + key)
    return found


__all__ = ["distance", "equal", "make_group", "make_samples", "module_weights", "not_finite", "offline_config", "step"]
