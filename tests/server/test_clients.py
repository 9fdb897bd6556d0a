"""Environments on a server: lost sessions, several servers, servers that are not this package's."""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import gymnasium
import pytest

import rllm_gym
from rllm_gym.envs.remote import env as remote_env
from rllm_gym.envs.remote.agentgym import AgentGymEnv
from rllm_gym.envs.remote.openenv import OpenEnvEnv
from rllm_gym.errors import ConfigError, EnvError
from tests.needs import skip_without
from tests.serving import ROOT, serving

ODD = ("--env", "tests.server.odd_env:odd/Odd-v0", "--workers", "1")


@pytest.fixture(params=["openenv", "agentgym"])
def client(request):
    """Return what makes an environment of one protocol on a server's address."""
    if request.param == "openenv":
        skip_without("openenv")
    make, path = {"openenv": (OpenEnvEnv, ""), "agentgym": (AgentGymEnv, "/agentgym")}[request.param]

    def on(*urls, **kwargs):
        return make(url=[f"{url}{path}" for url in urls], **kwargs)

    return on


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    """The address of a server that may lose its worker, but no more."""
    with serving(*ODD, "--timeout", "1") as served:
        yield served.url


@contextlib.contextmanager
def foreign(which: str):
    skip_without("openenv")
    command = [sys.executable, "-m", "tests.server.foreign_servers", which]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield line.split("at ")[1].strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("action", ["die", "raise", "sleep 60"])
def test_a_failure_there_is_an_error_here_and_a_reset_plays_on(client, odd, action):
    env = client(odd, item_ids=["odd_1"])
    assert env.reset(seed=0)[0] == "item 1"
    with pytest.raises(EnvError):
        env.step(action)
    for _ in range(2):  # and not a step on another environment
        with pytest.raises(EnvError, match="Reset it"):
            env.step("hello")
    assert env.reset(seed=0)[0] == "item 1"
    assert env.step("end")[:3] == ("did end", 0.0, True)
    env.close()


def test_a_dead_server_is_an_error_and_never_a_reward(client, monkeypatch):
    monkeypatch.setattr(remote_env, "OPEN_TIMEOUT_S", 1.0)
    with serving(*ODD) as served:
        env = client(served.url)
        env.reset(seed=0)
        served.process.kill()
        served.process.wait()
        with pytest.raises(EnvError):
            env.step("hello")
        with pytest.raises(EnvError, match="no server gave a session"):
            env.reset(seed=0)
        served.process.returncode = 0
        env.close()


def test_a_server_that_does_not_answer_in_time_is_an_error(client):
    with serving(*ODD) as served:
        env = client(served.url, timeout_s=1.0)
        env.reset(seed=0)
        begun_s = time.perf_counter()
        with pytest.raises(EnvError):
            env.step("sleep 30")
        assert time.perf_counter() - begun_s < 5
        env.close()
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
        served.process.returncode = 0


def test_nothing_that_may_have_acted_is_sent_twice():
    seen: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer({"train": ["odd_0"], "all": ["odd_0"]})

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            seen.append(self.path)
            if self.path == "/step":
                self.close_connection = True  # after it has been carried out
                return
            reply = {"text": "item 0", "reward": 0, "terminated": False, "truncated": False, "info": {}}
            self.answer({"id": 0} if self.path == "/create" else {**reply, "system_prompt": ""})

        def answer(self, body):
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = AgentGymEnv(url=f"http://127.0.0.1:{server.server_address[1]}")
    env.reset(seed=0)
    with pytest.raises(EnvError):
        env.step("hello")
    server.shutdown()
    server.server_close()
    assert seen.count("/step") == 1


def test_turns_before_the_task_come_over_the_wire(client):
    ours = gymnasium.make("rllm_gym/TextCraft-v0", protocol="agentgym")
    with serving("--env", "TextCraft-v0", "--workers", "1", "--env-config", '{"protocol": "agentgym"}') as served:
        theirs = rllm_gym.make_env(lambda **kwargs: client(served.url, **kwargs))
        _, info = ours.reset(seed=3)
        assert [message["role"] for message in info["messages"]] == ["user", "assistant", "user"]
        assert theirs.reset(seed=3)[1]["messages"] == info["messages"]
        theirs.close()


@pytest.mark.slow
def test_sessions_are_spread_over_servers_and_a_full_or_dead_one_is_left_out(client):
    with serving(*ODD, "--max-sessions", "2") as one, serving(*ODD, "--max-sessions", "8") as other:
        urls = [one.url, other.url]
        envs = [client(*urls) for _ in range(4)]
        for env in envs:
            env.reset(seed=0)
        used = [env._session.url.removesuffix("/agentgym") for env in envs]
        assert sorted(used) == sorted(2 * urls)
        more = copy.deepcopy(envs[0])
        more.reset(seed=0)  # the first server is full
        assert more._session.url.startswith(other.url)
        one.process.kill()
        one.process.wait()
        one.process.returncode = 0
        more.close()
        more.reset(seed=1)
        assert more.step("hello")[0] == "did hello"
        for env in (*envs, more):
            env.close()


def test_a_full_server_is_waited_for(client, monkeypatch):
    with serving(*ODD, "--max-sessions", "1") as served:
        first, second = client(served.url), client(served.url)
        first.reset(seed=0)
        threading.Timer(1.0, first.close).start()
        begun_s = time.perf_counter()
        second.reset(seed=0)
        assert time.perf_counter() - begun_s > 0.8
        third = client(served.url)
        monkeypatch.setattr(remote_env, "OPEN_TIMEOUT_S", 0.5)
        with pytest.raises(EnvError, match="All 1 sessions are in use"):
            third.reset(seed=0)
        second.close()


def test_a_forked_process_plays_a_session_of_its_own(client, odd):
    env = client(odd, item_ids=["odd_2"])
    env.reset(seed=0)
    env.step("one")
    reading, writing = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, env.step("two")[0].encode())
        os._exit(0)
    os.wait()
    assert os.read(reading, 100) == b"did two"
    assert env.step("three")[0] == "did three"
    env.close()


def test_another_version_is_said_once(client, monkeypatch):
    from rllm_gym.envs.remote import http

    with serving(*ODD) as served:  # of one that has been asked its version is known
        monkeypatch.setattr(remote_env, "package_version", lambda: "9.9")
        remote_env.warn_of_version.cache_clear()
        http.warn_of_version.cache_clear()
        with pytest.warns(UserWarning, match=r"has rllm_gym .*, this is 9\.9"):
            client(served.url)


@pytest.mark.parametrize("make", [OpenEnvEnv, AgentGymEnv])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "url must be"),
        ({"url": "127.0.0.1:36001"}, "http://"),
        ({"url": "http://127.0.0.1:1", "timeout_s": 0}, "timeout_s"),
    ],
)
def test_bad_options_get_one_line(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_no_server_and_no_such_kind_get_one_line():
    with pytest.raises(EnvError, match="Start it with rllm-gym serve"):
        AgentGymEnv(url="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="Did you mean 'textcraft'"):
        AgentGymEnv(url="http://127.0.0.1:1", env_type="textkraft")


def test_an_action_of_several_fields_is_asked_for_and_parsed():
    with foreign("fields") as url:
        env = OpenEnvEnv(url=url)
        assert env.item_ids is None
        observation, _ = env.reset(seed=0)
        assert observation == "You stand at 0. Go to 2."
        assert '"direction"' in env.system_prompt and "JSON" in env.system_prompt
        for text, problem in (
            ("Action: go right", "must be a JSON object"),
            ('Action: {"steps": 1}', "'direction' is a required property"),
            ('Action: {"direction": "up"}', "'up' is not one of"),
            ('Action: {"direction": "left", "speed": 3}', "'speed' was unexpected"),
        ):
            reply, reward, terminated, _, info = env.step(text)
            assert problem in reply
            assert (reward, terminated, info["is_invalid_action"]) == (0.0, False, True)
        env.step('Thought: right.\nAction: {"direction": "right"}')
        reply, reward, terminated, _, info = env.step('Action: {"direction": "right", "steps": 1}')
        assert (json.loads(reply)["place"], reward, terminated) == (2, 1.0, True)
        assert info["is_success"] and not info["is_invalid_action"]
        env.close()


def test_an_action_of_one_text_field_gets_what_follows_action_and_tasks_are_asked_for():
    with foreign("echo") as url:
        env = OpenEnvEnv(url=url)
        assert env.item_ids == [f"train/{index}" for index in range(5)]
        assert OpenEnvEnv(url=url, split="test").item_ids == ["test/0", "test/1"]
        observation, info = env.reset(seed=0, options={"item_id": "test/1"})
        assert (observation, info["item_id"]) == ("Say test 1.", "test/1")
        assert env.step("Thought: I say it.\nAction: test 1")[:3] == ("test 1", 1.0, True)
        env.close()


def test_tools_are_described_and_called():
    with foreign("tools") as url:
        env = OpenEnvEnv(url=url)
        env.reset(seed=0)
        assert "Add two numbers." in env.system_prompt
        assert "must be a JSON object" in env.step("Action: add 1 2")[0]
        assert "'ad' is not one of" in env.step('Action: {"name": "ad", "arguments": {"a": 1, "b": 2}}')[0]
        assert "'b' is a required property" in env.step('Action: {"name": "add", "arguments": {"a": 1}}')[0]
        assert env.step('Action: {"name": "add", "arguments": {"a": 1, "b": 2}}')[0] == "1 + 2 = 3"
        env.close()
