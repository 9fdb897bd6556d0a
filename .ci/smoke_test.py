"""Tries the installed wheel away from the checkout: environments can be made and played, with the shipped tokenizer."""

import sys
from pathlib import Path

import gymnasium

import rllm_gym

assert Path(rllm_gym.__file__).is_relative_to(sys.prefix), f"imported from {rllm_gym.__file__}, not from the wheel"

env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text", max_episode_steps=50)
env.reset(seed=0)
terminated = truncated = False
while not (terminated or truncated):
    _, reward, terminated, truncated, _ = env.step(env.unwrapped.expert_action())
assert terminated
assert reward == 1, reward

env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0")
observation, _ = env.reset(seed=0)
assert env.observation_space.contains(observation)
