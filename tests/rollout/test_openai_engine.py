"""The engine that asks an endpoint: what it sends, counts, tries again and gives up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.engines import check_options, engine_maker
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import CompletionRequest, SamplingParams

PARAMS = SamplingParams(max_new_tokens=32, temperature=0.5, top_p=0.9)
MESSAGES = [{"role": "user", "content": "Where to?"}]


class Endpoint(ThreadingHTTPServer):
    """Answers with `replies`, one after the other: a text, or (status, headers, body). Keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers.get("Authorization"))
        reply = self.server.replies.pop(0)
        if isinstance(reply, tuple):
            status, headers, body = reply
        else:
            choice = {"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
            status, headers = 200, {}
            body = {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        content = json.dumps(body).encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def make(endpoint, tiny_model, monkeypatch):
    """Make the engine for the endpoint."""
    engines = []
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def make_engine(**options: Any) -> Any:
        options = {"model": "them", "base_url": endpoint.url} | options
        engine = engine_maker("openai")(
            str(tiny_model), dtype="float32", max_model_len=512, max_num_seqs=4, options=options
        )
        engines.append(engine)
        return engine

    yield make_engine
    for engine in engines:
        engine.close()


@pytest.fixture
def ask(tiny_model):
    chat = ChatTokenizer(str(tiny_model))

    def ask_for(engine: Any, number: int = 1) -> list[Any]:
        for k in range(number):
            engine.submit(CompletionRequest(str(k), [1, 2], chat.stop_ids, PARAMS, seed=7, messages=MESSAGES))
        found: list[Any] = []
        while len(found) < number:
            found += engine.step()
        return sorted(found, key=lambda completion: completion.request_id)

    return ask_for


def test_an_answer_becomes_tokens_that_say_the_same(make, ask, endpoint, tiny_model):
    endpoint.replies = ["Thought: “go” <|im_end|> 你好\n\nAction: left"]
    [completion] = ask(make())
    chat = ChatTokenizer(str(tiny_model))
    *ids, last = completion.token_ids.tolist()
    assert last == chat.end_of_turn_id and last not in ids
    assert chat.decode_action(ids) == "Thought: “go” <|im_end|> 你好\n\nAction: left"
    assert completion.logp.tolist() == [0.0] * len(completion.token_ids)
    assert endpoint.bodies == [
        {"model": "them", "messages": MESSAGES, "max_tokens": 32, "temperature": 0.5, "top_p": 0.9, "seed": 7}
    ]
    assert endpoint.keys == [None]


def test_an_answer_that_was_cut_has_no_end_of_turn(make, ask, endpoint, tiny_model):
    choice = {"message": {"content": "Action: le"}, "finish_reason": "length"}
    endpoint.replies = [(200, {}, {"choices": [choice]})]
    [completion] = ask(make())
    assert ChatTokenizer(str(tiny_model)).decode_action(completion.token_ids.tolist()) == "Action: le"


def test_tokens_and_dollars_are_counted_and_keys_of_the_request_are_the_users(make, ask, endpoint, monkeypatch):
    monkeypatch.setenv("THEIR_KEY", "secret")
    endpoint.replies = ["a", "b", "c"]
    engine = make(
        api_key_env="THEIR_KEY",
        price={"prompt": 2.0, "completion": 10.0},
        request={"seed": None, "max_tokens": None, "max_completion_tokens": 32},
    )
    ask(engine, 3)
    assert engine.usage["requests"] == 3
    assert engine.usage["prompt_tokens"] == 300 and engine.usage["completion_tokens"] == 30
    assert engine.usage["cost"] == pytest.approx((300 * 2.0 + 30 * 10.0) / 1e6)
    assert set(endpoint.keys) == {"Bearer secret"}
    expected = {"model", "messages", "temperature", "top_p", "max_completion_tokens"}
    assert all(set(body) == expected for body in endpoint.bodies)


def test_a_busy_endpoint_is_asked_again_after_the_time_that_it_names(make, ask, endpoint, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    endpoint.replies = [(429, {"Retry-After": "17"}, {}), (503, {}, {}), "left"]
    [completion] = ask(make())
    assert completion.error is None and len(endpoint.bodies) == 3
    assert waits[0] == 17 and 0 < waits[1] < 17


def test_a_request_that_is_refused_fails_its_episode_with_the_endpoints_words(make, ask, endpoint):
    endpoint.replies = [(400, {}, {"error": {"message": "context length exceeded"}}), "left"]
    first, second = ask(make(), 2)
    [failed] = [completion for completion in (first, second) if completion.error]
    assert "400" in failed.error and "context length exceeded" in failed.error
    assert len(failed.token_ids) == 0


def test_a_wrong_key_ends_the_run_in_one_line(make, ask, endpoint):
    endpoint.replies = [(401, {}, {"error": {"message": "no such key"}})]
    with pytest.raises(
        ConfigError, match=r"engine: openai \(them at http.*401.*no such key.*Check base_url, model and"
    ):
        ask(make())


def test_requests_begin_at_the_rate_that_is_allowed(make, ask, endpoint, monkeypatch):
    starts: list[float] = []
    monkeypatch.setattr("rllm_gym.rollout.engines.openai.time.sleep", starts.append)
    endpoint.replies = ["a", "b", "c"]
    ask(make(requests_per_minute=30), 3)
    assert sorted(round(start) for start in starts) == [0, 2, 4]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs the endpoint's name of a model"),
        ({"model": 3}, "model must be a str; got 3"),
        ({"model": "m", "modle": "n"}, "takes model, .*got 'modle'"),
        ({"model": "m", "num_attempts": 0}, "num_attempts must be a int above 0; got 0"),
        ({"model": "m", "price": {"prompt": 1}}, r"price must be like \{prompt: 0.25, completion: 2.0\}"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(options, says):
    with pytest.raises(ConfigError, match=says):
        check_options("openai", options)


def test_a_key_that_is_named_must_be_there(make):
    with pytest.raises(ConfigError, match="api_key_env must name a set environment variable; got 'NO_SUCH_KEY'"):
        make(api_key_env="NO_SUCH_KEY")
