import gymnasium
import pytest
from my_env.env import MyEnv

from rllm_gym.envs.contract import check_env


def test_it_keeps_the_rules_of_an_environment():
    check_env(MyEnv)


@pytest.mark.parametrize(
    ("action", "reply", "reward", "is_invalid"),
    [
        ("Action: 41", "Higher.", 0.0, False),
        ("I think it is lower.\nAction: 43", "Lower.", 0.0, False),
        ("Action: 42", "Right.", 1.0, False),
        ("Action: 101", "Say a number from 1 to 100.", 0.0, True),
        ("fly to the moon", "Say a number from 1 to 100.", 0.0, True),
    ],
)
def test_what_it_answers(action, reply, reward, is_invalid):
    env = MyEnv()
    env.reset(options={"item_id": "my_env_41"})
    observation, got, terminated, truncated, info = env.step(action)
    assert (observation, got, terminated, truncated) == (reply, reward, reward == 1.0, False)
    assert info["is_invalid_action"] is is_invalid


def test_it_is_made_by_its_id_at_both_levels():
    text = gymnasium.make("my_env:my_env/MyEnv-v0", obs_type="text", max_episode_steps=10)
    tokens = gymnasium.make("my_env:my_env/MyEnv-v0", max_episode_steps=10)
    assert text.reset(seed=0)[0] == tokens.reset(seed=0)[1]["messages"][-1]["content"]
