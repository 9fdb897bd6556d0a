"""Experts of several agents play at the token level, as data for SFT."""

import numpy as np
import pytest

from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.rollout.expert import ExpertPlayer
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import Sample, TaskGroup
from tests.needs import skip_without


def played(name, num_groups, horizon=None, **env_config):
    chat = ChatTokenizer()
    spec = EnvironmentSpec(name, f"rllm_gym:rllm_gym/{name}", env_config)
    player = ExpertPlayer([spec], chat, horizons=[horizon])
    episodes = player.play([TaskGroup((0, 0, k), None, 1) for k in range(num_groups)])
    player.close()
    return chat, episodes


def test_each_crafters_stream_is_its_conversation_and_both_succeed():
    chat, episodes = played("TextCraftDuo-v0", 5)
    for episode in episodes:
        assert (episode.end_reason, episode.error) == ("terminated", None)
        assert all(info["is_success"] for info in episode.info.values())
        assert sum(stream.total_reward for stream in episode.streams.values()) == 2.0
        for stream in episode.streams.values():
            ids = np.concatenate([Sample.of_turns(stream.turns).tokens, stream.final_observation_ids])
            assert ids.tolist() == chat.encode_chat(stream.messages, add_generation_prompt=False)
    first = [min(episode.streams, key=lambda agent: episode.streams[agent].turns[0].env_step) for episode in episodes]
    assert first == ["player_0", "player_1"] * 2 + ["player_0"]  # seats change


def test_kuhns_uniform_expert_makes_every_legal_move_equally_often():
    skip_without("open_spiel")
    chat, episodes = played("KuhnPoker-v0", 400, expert="uniform")
    said = [chat.decode_action(turn.action_ids[:-1]) for e in episodes for s in e.streams.values() for turn in s.turns]
    assert set(said) == {"pass", "bet"} and said.count("bet") / len(said) == pytest.approx(0.5, abs=0.05)
    returns = [sum(stream.total_reward for stream in episode.streams.values()) for episode in episodes]
    assert set(returns) == {0.0} and {e.streams["player_0"].total_reward for e in episodes} == {-2.0, -1.0, 1.0, 2.0}


def test_a_horizon_ends_the_episode_and_leaves_no_stream_without_a_turn():
    _, episodes = played("TextCraftDuo-v0", 3, horizon=1)
    assert [episode.end_reason for episode in episodes] == ["horizon"] * 3
    assert [len(episode.streams) for episode in episodes] == [1, 1, 1]
