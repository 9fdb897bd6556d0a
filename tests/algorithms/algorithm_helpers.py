"""Small GRPO runs on toy worlds with a tiny random model."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

TOYS = Path(__file__).parents[1] / "envs"
PATHS = os.pathsep.join(map(str, (TOYS, Path(__file__).parent)))
sys.path[:0] = PATHS.split(os.pathsep)


def start_ray(num_cpus: int = 6) -> None:
    import ray
    from ray.tune.registry import register_env

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": PATHS}},
        log_to_driver=False,
    )
    register_env("say_the_word", make_say_the_word)
    register_env("flaky", make_flaky)
    register_env("pass_the_word", make_pass_the_word)


# Module-level functions travel to worker processes by name, and so share what this module holds there.
COUNTER: Counter = Counter()


def make_say_the_word(config):
    from toy_worlds import SayTheWord

    return SayTheWord(**config)


def make_flaky(config):
    """All the worlds of a process count their failures together."""
    from toy_worlds import FlakyEnv

    return FlakyEnv(counter=COUNTER, **config)


def make_pass_the_word(config):
    from toy_multi_agent import PassTheWord

    return PassTheWord(**config)


def toy_config(base_model, env: str = "say_the_word", method: str = "GRPO", **options):
    """A method on a toy world: 8 groups of 16 episodes of one turn, two seconds a train step."""
    from rllm_gym.algorithms.registry import get_algorithm_class

    config = get_algorithm_class(method).get_default_config().environment(env)
    defaults = {
        "base_model": str(base_model),
        "max_model_len": 256,
        "max_new_tokens": 6,
        "max_episode_steps": 3,
        "group_size": 16,
        "groups_per_step": 8,
        "lr": 1e-3,
        "engine_options": {"kv_cache_memory_bytes": 64 * 2**20},
        "num_envs_per_env_runner": 128,
        "save_trajectories": False,
    }
    for name, value in {**defaults, **options}.items():
        setattr(config, name, value)
    return config


def module_weights(algo, module_id: str = "default_policy"):
    return {name: value.copy() for name, value in algo.learner_group.get_weights()[module_id].items()}
