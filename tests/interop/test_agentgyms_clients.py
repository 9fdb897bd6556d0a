"""AgentGym's own client classes on our server, and our client on AgentGym's own server, from `AGENTGYM_SRC`."""

from __future__ import annotations

import os
import warnings

import gymnasium
import pytest

from rllm_gym.envs.contract import NONSENSE
from rllm_gym.envs.remote.agentgym import AgentGymEnv
from tests.serving import serving
from tools.agentgym_server import own_server
from tools.record_agentgym import PLAYED, item_of_goal, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.interop,
    pytest.mark.skipif(not os.environ.get("AGENTGYM_SRC"), reason="AGENTGYM_SRC names no checkout of AgentGym"),
]


@pytest.mark.parametrize("env_type", PLAYED)
def test_agentgyms_client_plays_the_expert_to_success(env_type):
    with serving("--env", PLAYED[env_type][1], "--workers", "1", "--protocol", "agentgym") as served:
        rewards = play(env_type, served.url)
    assert len(rewards) == 2 and min(rewards) > 0
    if env_type != "babyai":  # which pays less for more moves
        assert rewards == [1.0, 1.0]


def test_our_client_plays_agentgyms_own_server_as_in_process():
    local = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text")
    with own_server("textcraft") as url, warnings.catch_warnings():
        env = AgentGymEnv(url=url, env_type="textcraft")
        assert env.item_ids == local.unwrapped.item_ids
        for seed in range(5):
            observation, _ = env.reset(seed=seed)
            assert env.system_prompt == local.unwrapped.system_prompt
            local.reset(seed=seed, options={"item_id": item_of_goal(observation.rpartition("\n")[2])})
            for text in NONSENSE[1:4]:
                assert env.step(text)[1:4] == (0.0, False, False)
            terminated = False
            while not terminated:
                action = local.unwrapped.expert_action()
                expected = local.step(action)
                reply, reward, terminated, truncated, info = env.step(action)
                assert (reply, reward, terminated, truncated) == expected[:4]
            assert info["is_success"] and reward == 1.0
        with pytest.raises(NotImplementedError):
            env.expert_action()
        env.close()
