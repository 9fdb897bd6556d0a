"""Agents whose history is rewritten, with vLLM: log-probabilities agree in every context, they learn, and resume."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_gym.algorithms.grpo import GRPO
from tests.algorithms.algorithm_helpers import equal, module_weights, toy_config

pytestmark = pytest.mark.slow
AGENT = {"plan": True, "context": {"last_n_turns": 1}}


def agent_config(model, agent, **options):
    env_config = {"num_turns": 4, "agent": agent}
    return toy_config(model, env_config=env_config, max_model_len=512, max_episode_steps=12, **options)


@pytest.mark.parametrize(
    ("method", "agent"),
    [
        ("GRPO", AGENT),
        ("PPO", AGENT),
        ("GRPO", {"context": {"summarize_observations": 2}, "reflect": {"every": 2}}),
        ("GRPO", {"attempts": 3, "format": "react"}),
    ],
    ids=["last_n_turns", "of_ppo", "summarize_observations", "attempts"],
)
def test_sampler_and_trainer_agree_in_every_context(tiny_model, build, agent, method):
    algo = build(agent_config(tiny_model, agent, method=method, groups_per_step=2, group_size=8))
    for _ in range(2):
        result = algo.train()
    # In a context with another token before it, a token's log-probability is another: the model is far from flat.
    assert result["learners"]["default_policy"]["logp_difference_max"] < 1e-3
    assert (result["env_runners"]["num_samples_mean"] > 1) == ("context" in agent)
    assert result["env_runners"]["prefix_cache_hit_fraction"] <= 1


def test_it_learns_in_contexts_of_one_turn(tiny_model, build):
    env_config = {"num_turns": 3, "agent": {"context": {"last_n_turns": 1}}}
    algo = build(toy_config(tiny_model, env_config=env_config, lr=3e-3, max_episode_steps=3, max_model_len=512))
    results = [algo.train()["env_runners"] for _ in range(30)]
    returns = [result["episode_return_mean"] for result in results]
    print("returns", np.round(returns, 3))
    assert results[-1]["num_samples_mean"] == 2  # the first two turns, and the third with the second before it
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.2


def test_two_runners_and_two_learners_train_like_one_of_each_and_resume_bit_for_bit(
    tiny_model, build, toy_environments, tmp_path
):
    options = {"groups_per_step": 4, "engine": "transformers"}  # which starts in half the time
    one = build(agent_config(tiny_model, AGENT, **options))
    two_of_each = {"num_env_runners": 2, "num_learners": 2, "zero_stage": 2, "tokens_per_micro_batch": 2000}
    many = build(agent_config(tiny_model, AGENT, **options, **two_of_each))
    for _ in range(2):
        first, second = one.train(), many.train()
    for name in ("gradient_norm", "policy_loss", "num_sampled_tokens_trained"):
        expected = first["learners"]["default_policy"][name]
        assert second["learners"]["default_policy"][name] == pytest.approx(expected, rel=1e-3, abs=1e-4), name
    path = one.save_to_path(str(tmp_path / "checkpoint"))
    one.train()
    straight = module_weights(one)
    restored = GRPO.from_checkpoint(path)
    try:
        restored.train()
        assert equal(straight, module_weights(restored))
    finally:
        restored.stop()
