"""Tries the installed wheel away from the checkout: environments can be made and played, with the shipped tokenizer."""

import sys
from pathlib import Path

import gymnasium

import rllm_gym

assert Path(rllm_gym.__file__).is_relative_to(sys.prefix), f"imported from {rllm_gym.__file__}, not from the wheel"

for obs_type in ("text", "token"):
    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type=obs_type, max_episode_steps=50)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    terminated = truncated = False
    while not (terminated or truncated):
        action = env.unwrapped.expert_action()
        if obs_type == "token":
            action = env.get_wrapper_attr("encode_action")(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert env.observation_space.contains(observation)
    assert terminated
    assert reward == 1, reward
