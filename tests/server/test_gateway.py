"""The gateway: which conversation a request belongs to, when one ends, and what is recorded of it."""

import json
import socket
import threading
import time
from dataclasses import replace

import pytest
import requests

from rllm_gym.data.pairs import best_and_worst
from rllm_gym.data.reader import read_episodes
from rllm_gym.data.writer import Recorder
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import AGENT, EndReason, SamplingParams
from tests.envs.test_program import ScriptedEngine, letters

pytest.importorskip("openai")
pytest.importorskip("anthropic")
pytest.importorskip("fastapi")

from rllm_gym.envs.program import endpoint
from rllm_gym.envs.program.endpoint import serve_in_thread
from rllm_gym.server import gateway as module
from rllm_gym.server.app import Binding, guarded, listen
from rllm_gym.server.gateway import Gateway, guards_error, make_loop, played


class Talks:
    """A gateway that an engine answers by a script, at a free port."""

    def __init__(self, answer, *, max_sessions=8, session_ttl_s=600.0, has_rewards=False):
        self.gateway = Gateway("m", max_sessions=max_sessions, session_ttl_s=session_ttl_s, has_rewards=has_rewards)
        self.chat = ChatTokenizer()
        self.engine = ScriptedEngine(self.chat, answer)
        params = SamplingParams(max_new_tokens=64)
        self.loop = make_loop(self.gateway, self.chat, self.engine, params=params, max_model_len=1024)
        self.groups = []
        self._binding = Binding("127.0.0.1", 0, None, max_bytes=1 << 20, drain_s=5.0)
        self._listen = listen(self._binding)
        listening, self.url = self._listen.__enter__()
        self._end_server = serve_in_thread(guarded(self.gateway.app, self._binding, error_body=guards_error), listening)
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self):
        for group in played(self.gateway, self.loop, drain_s=5.0):
            self.groups.append(group)

    def ask(self, *said, session=None):
        """Return the answer to what the user and the model have said by turns, and the name of its conversation."""
        roles = ("user", "assistant")
        messages = [{"role": roles[k % 2], "content": text} for k, text in enumerate(said)]
        headers = {} if session is None else {"X-Session-ID": session}
        reply = self.post("/v1/chat/completions", {"model": "m", "messages": messages}, headers)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["message"]["content"], reply.headers["x-session-id"]

    def post(self, path, body, headers=None):
        return requests.post(f"{self.url}{path}", json=body, headers=headers, timeout=30)

    def wait_for(self, num_groups):
        end_s = time.monotonic() + 20
        while len(self.groups) < num_groups and time.monotonic() < end_s:
            time.sleep(0.01)
        assert len(self.groups) == num_groups

    def end(self):
        """End the gateway; return its episodes and those that failed, by the names of their conversations."""
        self.gateway.is_ending = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._end_server()
        self._listen.__exit__(None, None, None)
        self.loop.close()
        episodes = {e.info["session"]: e for group in self.groups for e in group.episodes}
        return episodes, [episode for group in self.groups for episode in group.failed]


@pytest.fixture
def talks():
    made = []

    def talks(answer=lambda messages: "ok", **options):
        made.append(Talks(answer, **options))
        return made[-1]

    yield talks
    for one in made:
        if not one.gateway.is_ending:
            one.end()


def test_what_goes_on_is_one_episode_with_the_ids_that_were_sampled_and_what_begins_anew_is_another(talks):
    talk = talks(lambda messages: letters(ChatTokenizer(), "four it is"))
    answer, first = talk.ask("2+2?")
    assert talk.ask("2+2?", answer, "Sure?") == ("four it is", first)
    _, second = talk.ask("2+2?")
    _, third = talk.ask("2+2?", "five", "Sure?")  # nobody here has said so
    assert len({first, second, third}) == 3
    episodes, failed = talk.end()
    assert not failed and set(episodes) == {first, second, third}
    turns = episodes[first].streams[AGENT].turns
    assert [turn.context_index for turn in turns] == [0, 0]
    assert [*turns[0].observation_ids, *turns[0].action_ids, *turns[1].observation_ids] == talk.engine.prompts[1]
    assert episodes[first].end_reason == EndReason.TERMINATED
    assert episodes[first].info["is_success"] is None
    assert episodes[first].item_id == episodes[second].item_id != episodes[third].item_id


def test_conversations_that_begin_alike_go_on_each_by_itself(talks):
    talk = talks()
    names = {talk.ask("a")[1] for _ in range(3)}
    assert {talk.ask("a", "ok", f"b{k}")[1] for k in range(3)} == names == set(talk.end()[0])


def test_a_header_names_a_conversation_whatever_it_says(talks):
    talk = talks()
    assert [talk.ask(text, session="mine")[1] for text in ("a", "b")] == ["mine", "mine"]
    long = talk.post("/v1/chat/completions", {}, {"X-Session-ID": "x" * 300})
    assert long.status_code == 400
    [episode] = talk.end()[0].values()
    assert [turn.context_index for turn in episode.streams[AGENT].turns] == [0, 1]


def test_a_reward_ends_its_conversation_and_pairs_are_made_of_the_better_and_the_worse(talks, tmp_path):
    talk = talks(has_rewards=True)
    _, good = talk.ask("a")
    _, bad = talk.ask("a")
    _, silent = talk.ask("b")
    for body, name, status in [
        ({"reward": "much"}, good, 400), (10**400, good, 400), ({"reward": 1, "is_success": "no"}, good, 400),
        ({"reward": 1}, "nobody", 404), ({"reward": 1}, good, 200),
        (0, bad, 200), (0, bad, 404),
    ]:  # fmt: skip
        assert talk.post("/reward", body, {"X-Session-ID": name}).status_code == status
    episodes, [failed] = talk.end()
    assert {name: (e.streams[AGENT].total_reward, e.info["is_success"]) for name, e in episodes.items()} == {
        good: (1.0, True), bad: (0.0, False)
    }  # fmt: skip
    assert silent in failed.error and "without a reward" in failed.error
    recorder = Recorder(tmp_path, [EnvironmentSpec("gateway", "gateway")])
    recorder.append([*episodes.values(), failed], train_step=None)
    recorder.close()
    [(best, worst)] = best_and_worst(tmp_path)
    records = list(read_episodes(tmp_path))
    assert (records[best].total_reward, records[worst].total_reward) == (1.0, 0.0)


def test_without_rewards_none_is_taken(talks):
    talk = talks()
    _, name = talk.ask("a")
    refused = talk.post("/reward", 1, {"X-Session-ID": name})
    assert refused.status_code == 400 and "--rewards" in refused.text


def test_the_longest_idle_conversation_ends_where_another_needs_its_place(talks):
    talk = talks(max_sessions=2)
    _, first = talk.ask("a")
    _, second = talk.ask("b")
    talk.ask("a", "ok", "c")
    _, third = talk.ask("d")
    talk.wait_for(1)
    assert talk.groups[0].episodes[0].info["session"] == second
    assert set(talk.end()[0]) == {first, second, third}


def test_an_idle_conversation_ends_and_what_goes_on_from_it_begins_another(talks):
    talk = talks(session_ttl_s=0.2)
    _, first = talk.ask("a")
    talk.wait_for(1)
    assert talk.ask("a", "ok", "b")[1] != first


def test_without_a_token_other_hosts_names_and_other_sites_pages_are_refused(talks):
    talk = talks()
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert requests.get(f"{talk.url}/v1/models", headers=headers, timeout=30).status_code == 403
    assert requests.get(f"{talk.url}/v1/models", timeout=30).json()["data"][0]["id"] == "m"


@pytest.mark.parametrize(("status", "kind"), [(401, "authentication_error"), (403, "permission_error")])
def test_who_may_not_ask_is_told_in_the_form_of_his_sdk(status, kind):
    body = guards_error("/v1/chat/completions", status, "No.")
    assert body["error"] == {
        "message": "No.", "type": "invalid_request_error", "param": None, "code": body["error"]["code"]
    }  # fmt: skip
    body = guards_error("/v1/messages", status, "No.")
    assert (body["type"], body["error"]["type"]) == ("error", kind)


def test_refused_bodies_have_the_sdks_form_and_lone_surrogates_are_replaced(talks):
    talk = talks()
    large = talk.post("/v1/messages", {"model": "m" * (1 << 20)})
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    assert talk.ask("a\ud800b")[0] == "ok"


def test_a_fault_of_the_endpoint_itself_is_an_error_of_the_sdk(talks, monkeypatch):
    talk = talks()

    def answer(request, choices, usage):
        raise ZeroDivisionError

    path = "/v1/messages"
    monkeypatch.setitem(endpoint.FORMS, path, replace(endpoint.FORMS[path], answer=answer))
    messages = [{"role": "user", "content": "a"}]
    broken = talk.post(path, {"model": "m", "max_tokens": 5, "messages": messages})
    assert (broken.status_code, broken.json()["error"]["type"]) == (500, "api_error")
    assert talk.ask("a")[0] == "ok"


def test_a_prompt_without_room_for_an_answer_is_refused_by_openais_code(talks):
    talk = talks()
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 2000}]}
    refused = talk.post("/v1/chat/completions", body)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert talk.ask("a")[0] == "ok"


def test_a_conversation_that_has_had_its_turns_goes_on_as_another(talks, monkeypatch):
    monkeypatch.setattr(module, "MAX_TURNS", 2)
    talk = talks()
    from openai import OpenAI

    client = OpenAI(base_url=f"{talk.url}/v1", api_key="any")
    messages = [{"role": "user", "content": "a"}]
    for _ in range(3):
        messages.append(client.chat.completions.create(model="m", messages=messages).choices[0].message)
        messages.append({"role": "user", "content": "b"})
    episodes, failed = talk.end()
    assert not failed
    assert sorted(len(e.streams[AGENT].turns) for e in episodes.values()) == [1, 2]
    assert {e.end_reason for e in episodes.values()} == {EndReason.HORIZON, EndReason.TERMINATED}


def test_the_end_waits_for_answers_under_way(talks):
    begun, goes_on = threading.Event(), threading.Event()

    def answer(messages):
        begun.set()
        assert goes_on.wait(20)
        return "late"

    talk = talks(answer)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(talk.ask("a")[0]))
    asking.start()
    assert begun.wait(20)
    talk.gateway.is_ending = True
    goes_on.set()
    asking.join(20)
    refused = talk.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "b"}]})
    assert answers == ["late"] and refused.status_code == 503
    assert len(talk.end()[0]) == 1


@pytest.mark.promise
@pytest.mark.timeout(300)
def test_sdks_talk_to_a_model_by_its_token_and_what_it_said_is_seen_and_learnt(tmp_path, engines):
    import anthropic
    import openai

    from rllm_gym.algorithms.sft import SFTConfig
    from rllm_gym.viewer.episode_index import Index
    from tests.algorithms.conftest import stopped
    from tests.algorithms.offline_helpers import offline_config
    from tests.in_process import in_this_process
    from tests.serving import serving

    folder = tmp_path / "said"
    config = json.dumps({"engine": "transformers", "max_new_tokens": 8})
    options = ("--record", str(folder), "--config", config)
    with serving("tiny", *options, serve="gateway", env={"RLLM_GYM_TOKEN": "se-cret"}) as served:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong").models.list()
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="se-cret")
        assert client.models.list().data[0].id == "tiny"
        messages = [{"role": "user", "content": "Craft a stick."}]
        messages.append(client.chat.completions.create(model="m", messages=messages).choices[0].message)
        messages.append({"role": "user", "content": "Go on."})
        stream = client.chat.completions.create(model="m", messages=messages, stream=True, n=2)
        assert {chunk.choices[0].index for chunk in stream} == {0, 1}
        other = anthropic.Anthropic(base_url=served.url, api_key="se-cret")
        other.messages.create(model="m", max_tokens=4, messages=[{"role": "user", "content": "Craft a door."}])
    records = list(read_episodes(folder))
    assert [len(record.turns) for record in records] in ([3, 1], [1, 3])
    assert all(logp < 0 for record in records for turn in record.turns for logp in turn.logp)
    index = Index([folder])
    index.refresh()
    shown = json.loads(index.episode(0))
    assert shown["textsProblem"] == "" and index.trials[0].model == "tiny"
    with in_this_process(engines), stopped() as build:
        algo = build(offline_config(SFTConfig(), "tiny", env=None, data=str(folder), evaluation_interval=None))
        assert algo.train()["learners"]["default_policy"]["loss"] > 0


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc"], ids=["nothing", "half"])
def test_a_connection_without_a_request_is_closed_and_one_that_waits_for_an_answer_is_not(monkeypatch, sent):
    monkeypatch.setattr("rllm_gym.server.app.KEEP_ALIVE_S", 0.5)

    def answer(messages):
        time.sleep(1.5)
        return "b"

    talks = Talks(answer)
    host, _, port = talks.url.removeprefix("http://").partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as idle:
            idle.sendall(sent)
            assert talks.ask("a")[0] == "b"
            assert idle.recv(1) == b""
    finally:
        talks.end()
