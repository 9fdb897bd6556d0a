"""Importing the package and playing an environment loads no heavy library."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "huggingface_hub")

PROGRAM = """
import sys

import pytest
import warnings
warnings.simplefilter("error")
import gymnasium
import rllm_gym
env = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="{obs_type}", max_episode_steps=3)
env.reset(seed=0)
action = env.unwrapped.expert_action()
env.step(env.get_wrapper_attr("encode_action")(action) if "{obs_type}" == "token" else action)
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {names}))
"""


def modules_after(obs_type, names):
    program = PROGRAM.format(obs_type=obs_type, names=set(names))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_the_package_and_playing_a_text_environment_loads_no_heavy_library():
    assert modules_after("text", [*HEAVY, "tokenizers", "jinja2"]) == "[]"


def test_playing_at_the_token_level_loads_tokenizers_and_jinja_alone():
    assert modules_after("token", [*HEAVY, "tokenizers", "jinja2"]) == "['jinja2', 'tokenizers']"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "from rllm_gym.rollout.engines import vllm",
        "from rllm_gym.learner.rl_module import load_language_model; load_language_model('tiny', 'float32')",
    ],
)
def test_sampler_and_learner_start_without_libraries_that_they_do_not_use(code):
    unused = ("scipy.optimize", "scipy.signal", "sklearn", "tensorflow")
    code += f"; import sys; print([name for name in {unused} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
