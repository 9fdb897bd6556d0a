"""Environments in processes of their own: a main thread, and an end when one hangs or dies."""

from __future__ import annotations

import os
import signal
import time

import gymnasium
import pytest

from rllm_gym.envs import UnicodeText
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
from rllm_gym.tokens import chat_tokenizer
from rllm_gym.types import SamplingParams, TaskGroup


class AlarmEnv(gymnasium.Env):
    """Sets a timer with each step, as only a main thread may; `how` it ends its second step."""

    def __init__(self, how="well"):
        self.observation_space = self.action_space = UnicodeText(100)
        self.how = how

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return f"Process {os.getpid()}.", {"handle": (part for part in "abc"), "pid": os.getpid()}

    def step(self, action):
        self.num_steps += 1
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 100.0)
        if self.num_steps == 2 and self.how == "dies":
            os._exit(3)
        if self.num_steps == 2 and self.how == "hangs":
            time.sleep(100.0)
        return f"You said {action}.", 1.0, self.num_steps == 2, False, {"is_success": True, "pid": os.getpid()}


@pytest.fixture
def play(make_loop):
    chat = chat_tokenizer(None)
    engine = ScriptedEngine(lambda prompt: chat.encode_action("7"))

    def play(env_config, *, num_episodes=2, **options):
        spec = EnvironmentSpec("Alarm", lambda config: AlarmEnv(**env_config))
        loop = make_loop(
            engine, lambda i: make_token_env(spec, chat, in_process=True), num_envs=2, max_model_len=1024,
            params=SamplingParams(8), **options,
        )  # fmt: skip
        loop.submit([TaskGroup((0, 0, k), None, 1) for k in range(num_episodes)], max_episode_steps=None)
        return loop, [e for g in loop.finished_groups() for e in (*g.episodes, *g.failed)]

    return play


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.promise
def test_an_environment_of_a_process_has_a_main_thread_and_ends_with_the_loop(play):
    loop, episodes = play({}, num_episodes=4, num_env_workers=2)
    assert [(e.error, e.end_reason, e.num_env_steps) for e in episodes] == [(None, "terminated", 2)] * 4
    assert [turn.reward for turn in episodes[0].streams["agent"].turns] == [1.0, 1.0]
    pids = {e.info["pid"] for e in episodes}
    assert len(pids) == 2
    assert os.getpid() not in pids
    loop.close()
    assert not any(map(is_there, pids))


@pytest.mark.slow
def test_a_process_that_dies_fails_its_episode_alone(play):
    _, episodes = play({"how": "dies"}, num_episodes=1, max_retries=1)
    assert episodes[0].num_retries == 1
    assert "AlarmEnv: the environment's process has ended with 3." in episodes[0].error


@pytest.mark.slow
def test_a_process_that_hangs_is_killed_and_its_thread_goes_on(play):
    loop, episodes = play({"how": "hangs"}, num_episodes=2, max_retries=0, env_timeout_s=15.0)
    assert [e.num_env_timeouts for e in episodes] == [1, 1]
    assert "in step of AlarmEnv, which is abandoned" in episodes[0].error
    loop.close()


def test_a_stop_text_ends_a_turn_of_a_process_too():
    chat = chat_tokenizer(None)
    spec = EnvironmentSpec("Alarm", lambda config: AlarmEnv())
    env = make_token_env(spec, chat, stop=("STOP",), in_process=True)
    env.reset(0, None)
    ids = chat.encode_action("go STOP on")
    ends = [k for k in range(1, len(ids) + 1) if env.early_end()(ids[:k])]
    assert "STOP" in chat.decode(ids[: ends[0]]) and "STOP" not in chat.decode(ids[: ends[0] - 1])
    assert env.turn_length(ids) == ends[0]
    env.close()
