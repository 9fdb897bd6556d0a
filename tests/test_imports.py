"""What importing the package and making a text environment must not load."""

import subprocess
import sys

HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers")

PROGRAM = f"""
import sys
import gymnasium
import rllm_gym
env = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text", max_episode_steps=3)
env.reset(seed=0)
env.step(env.unwrapped.expert_action())
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_importing_the_package_and_playing_a_text_environment_loads_no_heavy_library():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
