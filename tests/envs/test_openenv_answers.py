"""How an answer of an OpenEnv server is read: as it is meant, or as an error of the environment."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rllm_gym.envs.remote.openenv import OpenEnvSession
from rllm_gym.errors import EnvError


def read(observation=None, reward=None, done=False, metadata=None):
    session = OpenEnvSession.__new__(OpenEnvSession)
    session.url = "http://a"
    observation = {"text": "Hi.", **(observation or {})}
    reply = session._reply(SimpleNamespace(observation=observation, reward=reward, done=done, metadata=metadata))
    return reply.reward, reply.terminated, reply.truncated


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        ({"reward": 0.5, "done": True}, (0.5, True, False)),
        ({"reward": None, "done": False}, (0.0, False, False)),  # on the way
        ({"reward": 1, "done": True, "metadata": {"truncated": True}}, (1.0, False, True)),
        ({"done": None, "observation": {"reward": 0.25, "done": True}}, (0.25, True, False)),
    ],
)
def test_an_answer_is_read_as_it_is_meant(answer, meant):
    assert read(**answer) == meant


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ({"reward": None, "done": True}, "the last answer of an episode needs a reward; got null"),
        ({"done": False, "metadata": {"truncated": True}}, "the last answer of an episode needs a reward"),
        ({"reward": "much", "done": True}, "reward as a number; got True, 'much'"),
        ({"reward": True, "done": True}, "reward as a number"),
        ({"reward": 1.0, "done": "no"}, "done as a bool"),
    ],
)
def test_an_answer_without_a_meaning_is_an_error_and_no_reward_of_0(answer, rule):
    with pytest.raises(EnvError, match=rule):
        read(**answer)


def test_a_late_answer_is_not_taken_for_that_to_the_next_call():
    session = OpenEnvSession.__new__(OpenEnvSession)
    closed = []
    session.url, session._client = "http://a", SimpleNamespace(close=lambda: closed.append(True))

    def times_out():
        raise TimeoutError

    with pytest.raises(EnvError, match="the session is lost"):
        session._call(times_out)
    assert closed == [True]
