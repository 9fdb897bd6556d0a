"""What `render` returns, and what is said of render modes that are not there."""

import gymnasium
import numpy as np
import pytest

import rllm_gym
from rllm_gym.envs.babyai.env import BabyAIEnv
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.errors import ConfigError
from tests.envs.toy_environments import SayTheWord

TRANSCRIPT = (
    "Be quick.\n\n{}\n\n> Thought: I look.\n> \n> Action: inventory\n\nInventory: You are not carrying anything."
)


@pytest.mark.parametrize("obs_type", ["text", "token"])
def test_ansi_is_the_episode_so_far_at_both_levels(obs_type):
    env = gymnasium.make(
        "rllm_gym/TextCraft-v0", obs_type=obs_type, render_mode="ansi", system_prompt="Be quick.", max_episode_steps=5
    )
    task, _ = TextCraftEnv().reset(seed=3)
    for _ in range(2):  # a reset begins a new text
        env.reset(seed=3)
        assert env.render() == f"Be quick.\n\n{task}"
        action = "Thought: I look.\n\nAction: inventory"
        env.step(action if obs_type == "text" else env.get_wrapper_attr("encode_action")(action))
        assert env.render() == TRANSCRIPT.format(task)


def test_vector_environments_render_each_environments_text():
    envs = gymnasium.make_vec(
        "rllm_gym/TextCraft-v0", num_envs=2, vectorization_mode="sync", obs_type="text", render_mode="ansi"
    )
    observations, _ = envs.reset(seed=0)
    rendered = envs.render()
    assert all(text.endswith(observation) for text, observation in zip(rendered, observations, strict=True))
    envs.close()


def test_babyai_has_a_text_and_a_picture_at_the_token_level():
    for mode in ("ansi", "rgb_array"):
        env = gymnasium.make("rllm_gym/BabyAI-v0", render_mode=mode)
        env.reset(seed=0)
        shown = env.render()
        if mode == "ansi":
            assert "Your goal: " in shown
        else:
            assert shown.dtype == np.uint8 and shown.ndim == 3 and shown.shape[2] == 3


def test_without_a_mode_there_is_nothing_to_see_and_nothing_is_kept():
    env = SayTheWord()
    env.reset(seed=0)
    env.step("cat")
    assert env.render() is None and env._transcript == []


def test_a_mode_that_an_environment_has_not_is_refused_with_those_it_has():
    with pytest.raises(ConfigError, match=r"^TextCraftEnv: render_mode must be None or one of 'ansi'; got 'human'"):
        TextCraftEnv(render_mode="human")
    with pytest.raises(ConfigError, match=r"None or one of 'ansi', 'rgb_array'; got 'human'"):
        BabyAIEnv(render_mode="human")
    with pytest.raises(gymnasium.error.ResetNeeded, match="render comes after reset"):
        TextCraftEnv(render_mode="ansi").render()


def test_what_an_author_has_forgotten_is_said_in_one_line():
    class Bare(SayTheWord):
        name = ""
        category = rllm_gym.envs.TextEnv.category

    with pytest.raises(ConfigError, match=r"^Bare: a TextEnv needs .*; got none of category, name\. Write them[^\n]*$"):
        Bare()
