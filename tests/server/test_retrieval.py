"""`rllm-gym serve-index`: Search-R1's protocol, for our retriever and for Search-R1's client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading

import pytest
import requests

from rllm_gym.envs.searchqa.env import SearchQAEnv
from rllm_gym.envs.searchqa.retrievers import Passage, load_retriever
from rllm_gym.envs.searchqa.retrievers.batching import Batcher
from rllm_gym.envs.searchqa.retrievers.http import HttpRetriever
from rllm_gym.errors import EnvError
from tests.serving import ROOT, serving

COMMAND = [sys.executable, "-m", "rllm_gym.cli.main", "rllm-gym", "serve-index"]
QUERIES = ["capital of Nepal", "capital of Peru", "xyzzy"]


@pytest.fixture(scope="module")
def served():
    with serving("--topk", "2", serve="serve-index") as served:
        assert re.fullmatch(
            r"serving 3,451 passages by BM25 \(k1 1\.5, b 0\.75\) at http://127\.0\.0\.1:\d+/retrieve", served.line
        )
        yield served.url


def search_r1s_batch_search(url, queries, topk=3):
    """Do what search_r1/llm_agent/generation.py does with the server's answer, as we understand it."""
    results = requests.post(url, json={"queries": queries, "topk": topk, "return_scores": True}).json()["result"]
    texts = []
    for found in results:
        text = ""
        for number, item in enumerate(found):
            title, *body = item["document"]["contents"].split("\n")
            text += f"Doc {number + 1}(Title: {title}) " + "\n".join(body) + "\n"
        texts.append(text)
    return texts


def test_search_r1s_client_reads_the_passages_of_a_batch(served):
    texts = search_r1s_batch_search(served, QUERIES)
    direct = load_retriever("bm25").search(QUERIES, 3)
    assert texts[0].startswith('Doc 1(Title: "Nepal") ') and texts[0].count("Doc ") == 3
    assert texts[2] == ""
    for text, passages in zip(texts, direct, strict=True):
        assert all(passage.contents.partition("\n")[2] in text for passage in passages)


def test_our_retriever_finds_there_what_it_finds_here(served):
    assert HttpRetriever(served).search(QUERIES, 4) == load_retriever("bm25").search(QUERIES, 4)
    env = SearchQAEnv(retriever="http", url=served)
    env.reset(seed=0)
    terminated = False
    while not terminated:
        _, reward, terminated, _, _ = env.step(env.expert_action())
    assert reward == 1.0


def test_topk_is_the_servers_own_where_none_is_asked_for_and_scores_are_left_out(served):
    result = requests.post(served, json={"queries": ["capital of Nepal"]}).json()["result"]
    assert [set(document) for document in result[0]] == [{"title", "text", "contents"}] * 2
    assert result[0][0]["title"] == "Nepal"
    assert result[0][0]["contents"] == f'"Nepal"\n{result[0][0]["text"]}'
    assert requests.post(served, json={"queries": [], "topk": 3}).json() == {"result": []}


@pytest.mark.parametrize(
    "body",
    [{}, {"queries": "Nepal"}, {"queries": [3]}, {"queries": ["a"], "topk": -1}, {"queries": ["a"], "topk": 9999}],
)
def test_another_form_is_refused_and_named(served, body):
    answer = requests.post(served, json=body)
    assert answer.status_code == 422
    assert "another form" in answer.json()["error"]


def test_requests_at_once_are_answered_each_with_its_own(served):
    answers = {}

    def ask(number):
        body = {"queries": [QUERIES[number % 3]] * (number + 1), "topk": number + 1, "return_scores": True}
        answers[number] = requests.post(served, json=body).json()["result"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in answers.items():
        (expected,) = load_retriever("bm25").search([QUERIES[number % 3]], number + 1)
        assert [[hit["document"]["contents"] for hit in hits] for hits in result] == [
            [passage.contents for passage in expected]
        ] * (number + 1)


def test_with_a_token_none_else_is_let_in(monkeypatch):
    with serving("--token", "se-cret", serve="serve-index") as served:
        url = served.url
        assert requests.post(url, json={"queries": ["a"]}).status_code == 401
        with pytest.raises(EnvError, match="401"):
            HttpRetriever(url).search(QUERIES, 1)
        monkeypatch.setenv("RLLM_GYM_TOKEN", "se-cret")
        assert HttpRetriever(url).search(QUERIES, 1)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "serve-index: who reaches an address from elsewhere must have a token"),
        (("--retriever", "http"), "serve-index: --retriever must be bm25, dense or faiss"),
        (("--retriever", "faiss"), "SearchQAEnv: the retriever faiss needs index, corpus and encoder"),
        (("--index", "/nonexistent"), "SearchQAEnv: index must be a folder written by `rllm-gym index`"),
        (("--retriever", "fais"), "SearchQAEnv: retriever must be one of bm25, dense, faiss, http"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(arguments, message):
    ended = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1 and ended.stderr.startswith(message)


def test_a_search_that_fails_is_an_error_and_names_no_file():
    from fastapi.testclient import TestClient

    from rllm_gym.server.retrieval import retrieval_app

    class Failing:
        def search(self, queries, topk):
            raise EnvError("row 3 of /secret/corpus.jsonl is broken")

    answer = TestClient(retrieval_app(Failing(), 3)).post("/retrieve", json={"queries": ["a"]})
    assert answer.status_code == 500
    assert answer.json() == {"error": "The search failed; the server's log says why."}


def test_what_waits_while_a_search_is_under_way_is_one_search():
    batches, begun, gate = [], threading.Event(), threading.Event()

    def search(queries, topk):
        batches.append((sorted(queries), topk))
        begun.set()
        gate.wait(30)
        return [[Passage(f"{query} {rank}", -rank) for rank in range(topk)] for query in queries]

    batcher, found = Batcher(search, "test"), {}
    threads = [
        threading.Thread(target=lambda n=number: found.update({n: batcher([f"q{n}"], n + 1)})) for number in range(4)
    ]
    threads[0].start()
    begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    while batcher.num_waiting < 3:
        threading.Event().wait(0.01)
    gate.set()
    for thread in threads:
        thread.join()
    assert batches == [(["q0"], 1), (["q1", "q2", "q3"], 4)]
    assert json.dumps(found[2]) == json.dumps([[[f"q2 {rank}", -rank] for rank in range(3)]])
