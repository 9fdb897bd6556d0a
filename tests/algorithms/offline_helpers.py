"""Offline methods on toy environments, and random samples for their learners."""

from __future__ import annotations

import numpy as np

from rllm_gym.types import Sample


def offline_config(config, base_model, **options):
    """A configuration on a toy environment; 40 expert episodes, no EnvRunner unless it is to be evaluated."""
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
        "num_envs_per_env_runner": 64,
        "evaluation_duration": 16,
        "save_trajectories": False,
        "engine": "transformers",  # starts in half the time
    }
    if hasattr(config, "expert_threshold"):  # a random model's best episodes are no expert's
        defaults |= {"expert_threshold": None, "reward_gap": 0.0}
    if options.get("engine") == "vllm":
        defaults["engine_options"] = {"kv_cache_memory_bytes": 64 * 2**20}
    for name, value in {**defaults, **options}.items():
        setattr(config, name, value)
    return config


def make_samples(num, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 40, num)
    return [Sample(rng.integers(0, 200, n), np.r_[0, 1, rng.integers(0, 2, n - 2)].astype(np.float32)) for n in lengths]
