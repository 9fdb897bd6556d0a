"""PPO end to end on toy environments of several turns: learns, warms up, resumes bit for bit, and hides its critic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.algorithms.ppo import PPO, PPOConfig
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.export import export_policy
from tests.algorithms.algorithm_helpers import equal, module_weights, not_finite, numbers

CRITIC = "default_policy_critic"

pytestmark = pytest.mark.slow


def ppo_config(base_model, env: str = "say_the_word", **options) -> PPOConfig:
    """PPO on a toy environment: 64 episodes of two turns, each with a reward of its own."""
    config = PPOConfig().environment(env)
    defaults = {
        "base_model": str(base_model),
        "env_config": {"num_turns": 2},
        "max_model_len": 256,
        "max_new_tokens": 6,
        "groups_per_step": 64,
        "lr": 1e-3,
        "critic_lr": 1e-3,
        "engine_options": {"kv_cache_memory_bytes": 64 * 2**20},
        "num_envs_per_env_runner": 64,
        "save_trajectories": False,
    }
    for name, value in {**defaults, **options}.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic": "none"}, "critic must be one of separate, shared, centralised; got 'none'."),
        ({"gae_per": "step"}, "gae_per must be one of token, turn; got 'step'."),
        ({"lambda": 1.5}, "lambda_ must be a number of at least 0 and at most 1; got 1.5."),
        ({"gamma": -0.1}, "gamma must be a number of at least 0 and at most 1; got -0.1."),
        ({"vf_clip": 0}, "vf_clip must be a number above 0 or null; got 0."),
        (
            {"critic": "shared", "critic_epochs": 2},
            "critic_epochs are the separate critic's; got 2 with critic: shared.",
        ),
        ({"critic_warmup_steps": -1}, "critic_warmup_steps must be a whole number of at least 0; got -1."),
        ({"vf_clip_param": 10.0}, "got 'vf_clip_param'. Did you mean 'vf_clip'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options, message):
    with pytest.raises(ConfigError) as error:
        PPOConfig().environment("rllm_gym/TextCraft-v0").update_from_dict(options).validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_must_not_have_the_id_of_anothers_critic():
    config = PPOConfig().environment("rllm_gym/TextCraft-v0")
    config.multi_agent(policies={"bob", "bob_critic"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "bob")
    with pytest.raises(ConfigError, match="the critic of policy 'bob' takes the id 'bob_critic'"):
        config.validate()


# Gain in return of the last three of 15 train steps over the first three, seeds 0 to 4 on CPU: 0.38 0.34 0.37 0.19 0.26
# (separate), 0.32 0.35 0.33 0.24 0.35 (shared); explained variance at the end 0.70 0.82 0.83 0.13 0.57 and 0.18 0.35
# 0.46 0.31 0.27.
@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_it_learns_words_of_several_turns(tiny_model, build, critic):
    algo = build(ppo_config(tiny_model, critic=critic, lr=3e-3, critic_lr=3e-3))
    results = [algo.train() for _ in range(15)]
    returns = [result["env_runners"]["episode_return_mean"] for result in results]
    print("returns", np.round(returns, 3))
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.15
    learners = [result["learners"]["default_policy"] for result in results]
    explained = [learner["explained_variance"] for learner in learners]
    print("explained variance", np.round(explained, 2))
    # Of a single step it is noisy; and a shared critic, whose loss counts a tenth, lags behind returns that rise.
    assert critic == "shared" or np.mean(explained[-5:]) > 0.1
    assert learners[-1]["logp_difference_max"] < 1e-3  # the samplers hold the trained policy


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_a_checkpoint_resumes_bit_for_bit_is_evaluated_and_exports_the_policy_alone(
    tiny_model, build, tmp_path, critic
):
    config = ppo_config(tiny_model, critic=critic, groups_per_step=16, critic_warmup_steps=2, max_episode_steps=1)
    algo = build(config)

    def all_weights(of) -> dict:
        state = of.learner_group.get_weights()
        return {f"{module_id}/{name}": value.copy() for module_id in state for name, value in state[module_id].items()}

    algo.train()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    saved = all_weights(algo)
    expected = [algo.train() for _ in range(2)]  # the last of the warm-up, and the first after it
    straight = all_weights(algo)
    assert not equal(saved, straight)
    restored = PPO.from_checkpoint(path)
    try:
        assert equal(saved, all_weights(restored))
        resumed = [restored.train() for _ in range(2)]
        assert equal(straight, all_weights(restored))
        assert restored.evaluation.split("train", 4, horizon=1, seed=0)[0]["num_episodes"] == 4
    finally:
        restored.stop()
    for name in ("vf_loss", "explained_variance", "gradient_norm", "num_optimizer_steps"):
        assert [r["learners"]["default_policy"][name] for r in resumed] == [
            e["learners"]["default_policy"][name] for e in expected
        ]
    algo.restore_from_path(path)
    for _ in range(2):
        algo.train()
    assert equal(straight, all_weights(algo))

    assert export_policy(Path(path), tmp_path / "model") == "default_policy"
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).state_dict()
    assert all(np.array_equal(value.numpy(), saved[f"default_policy/lm.{name}"]) for name, value in exported.items())


def test_in_the_warm_up_the_samplers_keep_their_weights_and_the_policy_its_version(tiny_model, build):
    algo = build(ppo_config(tiny_model, critic_warmup_steps=2, groups_per_step=16))
    start, of_critic = module_weights(algo), module_weights(algo, CRITIC)
    results = [algo.train() for _ in range(2)]
    assert equal(start, module_weights(algo))
    assert not equal(of_critic, module_weights(algo, CRITIC))
    assert [result["learners"]["default_policy"]["num_optimizer_steps"] for result in results] == [0, 0]
    results += [algo.train() for _ in range(2)]
    assert not equal(start, module_weights(algo))
    assert [result["policy_version"] for result in results] == [0, 0, 0, 1]
    assert results[-1]["learners"]["default_policy"]["logp_difference_max"] < 1e-3
    names = [{name for name in numbers(result) if not name.startswith("timers/")} for result in results]
    assert names[0] == names[-1]
    assert not [name for result in results for name in not_finite(result)]


def test_every_policy_that_is_trained_has_a_critic_of_its_own(tiny_model, build):
    config = ppo_config(tiny_model, "pass_the_word", env_config={}, groups_per_step=16)
    config.multi_agent(
        policies={"alice", "bob"},
        policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id,
        policies_to_train=["alice"],
    )
    algo = build(config)
    assert set(algo.learner_group.get_weights()) == {"alice", "alice_critic", "bob"}
    before = {name: module_weights(algo, name) for name in ("alice", "alice_critic", "bob")}
    result = [algo.train() for _ in range(2)][-1]
    assert not equal(before["alice"], module_weights(algo, "alice"))
    assert not equal(before["alice_critic"], module_weights(algo, "alice_critic"))
    assert equal(before["bob"], module_weights(algo, "bob"))
    assert result["learners"]["alice"]["vf_loss"] > 0


def test_agents_with_one_shared_policy_share_its_critic(tiny_model, build):
    config = ppo_config(tiny_model, "pass_the_word", env_config={}, groups_per_step=16)
    config.multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "shared")
    algo = build(config)
    algo.train()
    result = algo.train()
    assert set(algo.learner_group.get_weights()) == {"shared", "shared_critic"}
    assert result["learners"]["shared"]["logp_difference_max"] < 1e-3
    assert result["learners"]["shared"]["critic_gradient_norm"] > 0
