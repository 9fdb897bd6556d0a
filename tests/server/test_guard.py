"""Who may ask, how much, and what an answer never says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
import requests

from tests.needs import skip_without
from tests.serving import ROOT, serving

HEADERS = {"Authorization": "Bearer se-cret"}


@pytest.fixture(scope="module")
def guarded():
    skip_without("openenv")
    arguments = ("--env", "TextCraft-v0", "--workers", "1", "--max-request-mb", "0.01", "--max-sessions", "3")
    with serving(*arguments, env={"RLLM_GYM_TOKEN": "se-cret"}) as served:
        yield served.url


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rllm_gym.cli.main", "rllm-gym", "serve", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ})


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "se-cret"}])
def test_without_the_token_nothing_is_answered(guarded, headers):
    answer = requests.get(f"{guarded}/health", headers=headers, timeout=10)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert requests.post(f"{guarded}/agentgym/create", json={}, headers=headers, timeout=10).status_code == 401
    assert requests.get(f"{guarded}/health", headers=HEADERS, timeout=10).status_code == 200


def test_a_websocket_needs_the_token_too(guarded):
    from openenv.core.generic_client import GenericEnvClient

    with pytest.raises(ConnectionError, match="403"):
        GenericEnvClient(base_url=guarded).sync().connect()
    with GenericEnvClient(base_url=guarded, headers=HEADERS).sync() as client:
        assert client.reset(seed=0).observation["text"].startswith("Crafting commands:")


def test_our_clients_take_the_token_and_say_when_it_is_refused(guarded, monkeypatch):
    import rllm_gym
    from rllm_gym.errors import EnvError

    env = rllm_gym.make_env("rllm_gym.envs.remote.openenv:OpenEnvEnv", obs_type="text", url=guarded, token="se-cret")
    assert env.reset(seed=0)[0].startswith("Crafting commands:")
    env.close()
    with pytest.raises(EnvError, match=r"401.*token"):
        rllm_gym.make_env("rllm_gym.envs.remote.openenv:OpenEnvEnv", obs_type="text", url=guarded, token="no")
    monkeypatch.setenv("RLLM_GYM_TOKEN", "se-cret")
    env = rllm_gym.make_env("rllm_gym.envs.remote.agentgym:AgentGymEnv", obs_type="text", url=f"{guarded}/agentgym")
    assert env.reset(seed=0)[0].startswith("Crafting commands:")
    env.close()


def test_a_large_request_is_refused(guarded):
    url = f"{guarded}/agentgym/step"
    assert requests.post(url, data=b"x" * 20_000, headers=HEADERS, timeout=10).status_code == 413
    chunks = (b"x" * 1000 for _ in range(20))  # without a content-length
    assert requests.post(url, data=chunks, headers=HEADERS, timeout=10).status_code == 413


def test_a_large_message_ends_its_connection_and_no_other(guarded):
    from openenv.core.generic_client import GenericEnvClient
    from websockets.exceptions import ConnectionClosed

    with GenericEnvClient(base_url=guarded, headers=HEADERS).sync() as beside:
        beside.reset(seed=0)
        with GenericEnvClient(base_url=guarded, headers=HEADERS).sync() as client:
            client.reset(seed=0)
            with pytest.raises(ConnectionClosed):
                client.step({"text": "x" * 20_000})
        assert beside.step({"text": "inventory"}).observation["text"].startswith("Inventory")


def test_full_is_503_over_http_and_capacity_reached_over_the_websocket(guarded):
    from openenv.core.generic_client import GenericEnvClient

    def create():
        return requests.post(f"{guarded}/agentgym/create", json={}, headers=HEADERS, timeout=10)

    sessions = [create().json()["id"] for _ in range(3)]
    full = create()
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")
    with (
        GenericEnvClient(base_url=guarded, headers=HEADERS).sync() as client,
        pytest.raises(RuntimeError, match="CAPACITY_REACHED"),
    ):
        client.reset(seed=0)
    for session in sessions:
        requests.post(f"{guarded}/agentgym/close", json={"id": session}, headers=HEADERS, timeout=10)
    with GenericEnvClient(base_url=guarded, headers=HEADERS).sync() as client:
        client.reset(seed=0)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("agentgym/step", {"id": 10**30, "action": "x"}, 404),
        ("agentgym/step", {"id": "../../etc/passwd", "action": "x"}, 422),
        ("agentgym/reset", {"id": 0, "data_idx": -1, "seed": -1}, 422),
        ("reset", {"seed": 0, "item_id": "../../etc/passwd"}, 404),
        ("reset", {"seed": 0, "split": "__class__"}, 404),
        ("reset", {"seed": 0, "index": 10**30, "split": "train"}, 404),
        ("reset", {"seed": 0, "idx": 3}, 400),
        ("step", {"action": {"text": "x"}}, 400),
        ("step", {"action": {"text": 3}}, 422),
        ("TextCraft-v0/tasks", {"split": "none"}, 404),
        ("TextCraft-v0/task", {"split": "train", "index": 10**6}, 404),
    ],
)
def test_what_makes_no_sense_is_refused_without_quoting_files(guarded, path, body, status):
    answer = requests.post(f"{guarded}/{path}", json=body, headers=HEADERS, timeout=10)
    assert answer.status_code == status, answer.text
    assert "Traceback" not in answer.text and "/work" not in answer.text and ".py" not in answer.text


def test_lone_surrogates_are_refused_where_an_answer_could_not_quote_them(guarded):
    for path, body in (("agentgym/step", {"id": 1, "action": "\ud800"}), ("mcp", {"jsonrpc": "2.0", "id": "\udc00"})):
        answer = requests.post(f"{guarded}/{path}", data=json.dumps(body), headers=HEADERS, timeout=10)
        assert answer.status_code == 400
    pair = json.dumps({"id": 99, "action": "\U0001f332"})  # a whole character, as two escapes
    assert requests.post(f"{guarded}/agentgym/step", data=pair, headers=HEADERS, timeout=10).status_code in (404, 422)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--env", "TextCraft-v0", "--host", "0.0.0.0"), "must have a token"),
        (("--env", "TextCraft-v1"), "Did you mean"),
        (("--env", "TextCraft-v0", "--protocol", "agentgm"), "Did you mean 'agentgym'"),
        (("--env", "TextCraft-v0", "--env-config", '{"depht": 1}'), "depht"),
        (("--env", "TextCraft-v0", "--env-config", "{}", "--env-config", "{}"), "once for each"),
        (("--env", "TextCraft-v0", "--env", "rllm_gym/TextCraft-v0"), "twice"),
        (("--env", "TextCraft-v0", "--workers", "none"), "--workers"),
    ],
)
def test_bad_options_get_one_line(arguments, message):
    ended = run_serve("--port", "0", *arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("first", [b"", b"{}\n"])
def test_a_worker_whose_server_is_gone_before_it_has_started_ends_without_a_word(first):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "rllm_gym.server.worker", str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as worker:
            ours.sendall(first)
            theirs.close()
            ours.close()
            assert worker.communicate(timeout=60)[1] == b""


def test_a_public_address_is_served_with_a_token():
    with serving("--env", "TextCraft-v0", "--host", "0.0.0.0", "--token", "t", "--workers", "1") as served:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        assert requests.get(f"{url}/agentgym/", timeout=10).status_code == 401


def test_a_port_in_use_is_said_in_one_line(guarded):
    port = guarded.rpartition(":")[2]
    ended = run_serve("--env", "TextCraft-v0", "--port", port)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1].startswith("serve: the address must be free")


@pytest.fixture(scope="module")
def unguarded():
    skip_without("openenv")
    with serving("--env", "TextCraft-v0", "--workers", "1") as served:
        yield served


ELSEWHERE = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Host": "evil.example:36001"},
    {"Host": "evil.example:36001", "Origin": "http://evil.example:36001"},
    {"Origin": "http://127.0.0.1:1"},
]


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_without_a_token_no_other_sites_page_gets_in(unguarded, headers):
    for method, path in (("GET", "/health"), ("POST", "/agentgym/create"), ("POST", "/reset"), ("POST", "/mcp")):
        answer = requests.request(method, unguarded.url + path, headers=headers, timeout=10)
        assert answer.status_code == 403, path
    own = {"Origin": unguarded.url}
    assert requests.get(f"{unguarded.url}/health", headers=own, timeout=10).status_code == 200
    named = {"Host": "localhost:36001"}
    assert requests.get(f"{unguarded.url}/health", headers=named, timeout=10).status_code == 200


def test_without_a_token_a_websocket_of_another_sites_page_is_refused(unguarded):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    url = unguarded.url.replace("http", "ws") + "/ws"
    with pytest.raises(InvalidStatus, match="403"):
        connect(url, origin="https://evil.example")
    with connect(url, origin=unguarded.url) as own:
        own.send('{"type": "reset", "data": {"seed": 0}}')
        assert json.loads(own.recv())["type"] == "observation"


def test_with_a_token_a_server_may_have_any_name(guarded):
    headers = {**HEADERS, "Host": "games.example", "Origin": "https://page.example"}
    assert requests.get(f"{guarded}/health", headers=headers, timeout=10).status_code == 200


def test_a_sessions_number_cannot_be_guessed(unguarded):
    numbers = [requests.post(f"{unguarded.url}/agentgym/create", json={}, timeout=10).json()["id"] for _ in range(20)]
    assert all(isinstance(number, int) and 0 <= number < 2**53 for number in numbers)
    assert len(set(numbers)) == 20
    assert max(numbers) > 2**40


MANY = 50_000


@pytest.mark.parametrize(
    "path", ["TextCraft-v0/tasks", "TextCraft-v0/task", "reset", "step", "mcp", "agentgym/step", "agentgym/reset"]
)
@pytest.mark.parametrize(
    "body",
    [
        {"split": "train", **{str(i): 0 for i in range(MANY)}},
        {str(i): 0 for i in range(900)},
        {"k" * 10**6: 0},
        {"id": [[0]] * MANY, "split": [0] * MANY, "method": [0] * MANY, "action": [[0]] * MANY},
    ],
    ids=["keys", "some keys", "long key", "values"],
)
def test_a_refused_request_gets_a_short_answer(unguarded, path, body):
    answer = requests.post(f"{unguarded.url}/{path}", json=body, timeout=60)
    assert answer.status_code < 500
    assert len(answer.content) < 300_000
    assert answer.elapsed.total_seconds() < 3  # for all of which others wait


def test_a_message_of_many_keys_ends_its_websocket(unguarded):
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    with connect(unguarded.url.replace("http", "ws") + "/ws") as client:
        client.send(json.dumps({"type": "reset", "data": {}, **{str(i): 0 for i in range(MANY)}}))
        with pytest.raises(ConnectionClosed, match="1009"):
            client.recv(timeout=10)


@pytest.mark.parametrize("block", [b"a" * 2**20, b"a: b\r\n" * 2**17], ids=["one header", "many headers"])
def test_a_header_without_an_end_is_cut_off(unguarded, block):
    port = int(unguarded.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client, pytest.raises(OSError):
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: ")
        for _ in range(30):
            client.sendall(block)
