"""Small GRPO runs on toy environments with a tiny random model."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch

# Module-level functions travel to worker processes by name, and so share what this module holds there.
COUNTER: Counter = Counter()


def make_say_the_word(config):
    from tests.envs.toy_environments import SayTheWord

    return SayTheWord(**config)


def make_flaky(config):
    """All the environments of a process count their failures together."""
    from tests.envs.toy_environments import FlakyEnv

    return FlakyEnv(counter=COUNTER, **config)


def make_deadly(config):
    from tests.envs.toy_environments import DeadlyEnv

    return DeadlyEnv(**config)


def make_pass_the_word(config):
    from tests.envs.toy_multi_agent import PassTheWord

    return PassTheWord(**config)


def make_take_away(config):
    from tests.envs.toy_multi_agent import TakeAway

    return TakeAway(**config)


def toy_config(base_model, env: str = "say_the_word", method: str = "GRPO", **options):
    """A method on a toy environment: 8 groups of 16 episodes of one turn, two seconds a train step."""
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
        "num_envs_per_env_runner": 128,
        "save_trajectories": False,
    }
    if options.get("engine") != "transformers":
        defaults["engine_options"] = {"kv_cache_memory_bytes": 64 * 2**20}
    for name, value in {**defaults, **options}.items():
        setattr(config, name, value)
    return config


def module_weights(algo, module_id: str = "default_policy"):
    return {name: value.copy() for name, value in algo.learner_group.get_weights()[module_id].items()}


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def numbers(result, prefix="") -> dict[str, float]:
    """All numbers of a result, under their whole names."""
    flat = {}
    for key, value in result.items():
        if key == "perf":  # RLlib's samples of the machine's load: none in a step of milliseconds
            continue
        if isinstance(value, dict) and key != "config":
            flat |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float, np.floating)):
            flat[prefix + key] = float(value)
    return flat


def not_finite(result) -> list[str]:
    """The names of a result's numbers that are no finite ones."""
    return [name for name, value in numbers(result).items() if not math.isfinite(value)]


@torch.no_grad()
def distance(lm, stream) -> float:
    """The largest difference between the sampler's log-probabilities and a model's."""
    ids, at, sampled = [], [], []
    for turn in stream.turns:
        ids += [*turn.observation_ids]
        at += range(len(ids), len(ids) + len(turn.action_ids))
        ids += [*turn.action_ids]
        sampled += [*turn.logp]
    tokens = torch.tensor(ids)
    logp = torch.log_softmax(lm(input_ids=tokens[None]).logits[0, :-1], -1).gather(-1, tokens[1:, None])[:, 0]
    return (logp[torch.tensor(at) - 1] - torch.tensor(sampled)).abs().max().item()
