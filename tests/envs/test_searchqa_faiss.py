"""FAISS files read as they are, with a tiny E5 made here; BM25's k1 and b."""

import json
import subprocess
import sys

import faiss
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from rllm_gym.envs.searchqa.env import SearchQAEnv
from rllm_gym.envs.searchqa.retrievers import dense, faiss_file, load_retriever
from rllm_gym.envs.searchqa.retrievers.bm25 import Bm25Retriever
from rllm_gym.envs.searchqa.retrievers.build import build_index
from rllm_gym.envs.searchqa.retrievers.encoder import Encoder
from rllm_gym.envs.searchqa.retrievers.faiss_file import open_faiss
from rllm_gym.errors import ConfigError, EnvError

DIM = 32
WORDS = [f"w{i}" for i in range(60)]
TEXTS = [" ".join(words) for words in np.random.default_rng(0).choice(WORDS, (600, 12))]
KINDS = ["Flat", "IVF8,Flat", "HNSW16,Flat", "SQ8", "IVF8,PQ8x4", "PCA16,Flat"]


@pytest.fixture(scope="module")
def e5(tmp_path_factory):
    """A folder as Hugging Face has E5: BERT's architecture, 32 dimensions, random weights."""
    import torch

    folder = tmp_path_factory.mktemp("models") / "tiny-e5-v2"
    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "passage", ":", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocab), hidden_size=DIM, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vectors(e5):
    return Encoder(str(e5), device="cpu").encode_passages(TEXTS)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "wiki.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "contents": f'"T{i}"\n{t}'}) + "\n" for i, t in enumerate(TEXTS)))
    return path


def write_index(path, kind, vectors, metric=faiss.METRIC_INNER_PRODUCT):
    """As Search-R1's index_builder.py does."""
    index = faiss.index_factory(vectors.shape[1], kind, metric)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(path))
    return index


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_finds_what_faiss_finds_and_the_rows_of_the_corpus(tmp_path, e5, vectors, corpus, kind):
    index = write_index(tmp_path / "e5_some.index", kind, vectors)
    retriever = open_faiss(tmp_path / "e5_some.index", corpus=corpus, encoder=str(e5))
    queries = [*TEXTS[:3], "w1 w2", "w5"]
    scores, numbers = index.search(Encoder(str(e5), device="cpu").encode_queries(queries), 4)
    found = retriever.search(queries, 4)
    assert [[hit.contents for hit in hits] for hits in found] == [[f'"T{n}"\n{TEXTS[n]}' for n in r] for r in numbers]
    assert [[hit.score for hit in hits] for hits in found] == [pytest.approx(row, abs=1e-5) for row in scores.tolist()]


def test_queries_are_encoded_as_sentence_transformers_encodes_e5s(e5):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    theirs = SentenceTransformer(
        modules=[Transformer(str(e5)), Pooling(DIM, pooling_mode="mean"), Normalize()], device="cpu"
    )
    queries = ["w1", "w2 w3 w4 w5", "w6 " * 40]
    ours = Encoder(str(e5), device="cpu").encode_queries(queries)
    assert np.abs(ours - theirs.encode(queries, prompt="query: ")).max() < 1e-5
    assert np.abs(ours - theirs.encode(queries)).max() > 1e-3  # the prefix counts


def test_the_prefix_comes_from_the_encoders_name_or_the_indexs_or_the_option(tmp_path, e5, vectors, corpus):
    plain = tmp_path / "models--x" / "snapshots" / "f5e5bd"  # a hash that has the letters
    plain.parent.mkdir(parents=True)
    plain.symlink_to(e5)
    for name in ("e5_Flat.index", "my.index"):
        write_index(tmp_path / name, "Flat", vectors)

    def best(index, encoder, **options):
        return open_faiss(tmp_path / index, corpus=corpus, encoder=str(encoder), **options).search(["w9 w4"], 3)

    assert best("my.index", e5) == best("e5_Flat.index", plain) == best("my.index", plain, query_prefix="query: ")
    assert best("my.index", plain) == best("my.index", e5, query_prefix="") != best("my.index", e5)


def test_an_index_of_distances_has_scores_that_are_the_higher_the_better(tmp_path, e5, vectors, corpus):
    write_index(tmp_path / "l2.index", "Flat", vectors, faiss.METRIC_L2)
    write_index(tmp_path / "ip.index", "Flat", vectors)
    by = {
        name: open_faiss(tmp_path / f"{name}.index", corpus=corpus, encoder=str(e5)).search(["w1 w8"], 5)[0]
        for name in ("l2", "ip")
    }
    assert [hit.contents for hit in by["l2"]] == [hit.contents for hit in by["ip"]]
    assert [hit.score for hit in by["l2"]] == sorted((hit.score for hit in by["l2"]), reverse=True)
    assert by["l2"][0].score == pytest.approx(2 * by["ip"][0].score - 2, abs=1e-4)  # -|q - p|^2 of unit vectors


def test_more_lists_are_searched_with_nprobe(tmp_path, e5, vectors, corpus):
    write_index(tmp_path / "ivf.index", "IVF64,Flat", vectors)
    write_index(tmp_path / "flat.index", "Flat", vectors)

    def found(index, parameters=None):
        retriever = open_faiss(tmp_path / index, corpus=corpus, encoder=str(e5), search_parameters=parameters)
        return [[hit.contents for hit in hits] for hits in retriever.search(TEXTS[::20], 10)]

    exact = found("flat.index")
    assert found("ivf.index", "nprobe=64") == exact != found("ivf.index")
    with pytest.raises(ConfigError, match=r"^SearchQAEnv: search_parameters must be faiss's.*nonsense"):
        found("ivf.index", "nonsense=3")


@pytest.mark.parametrize("kind", ["Flat", "IVF8,Flat", "HNSW16,Flat"])
def test_vectors_stay_on_the_disk(tmp_path, kind):
    """20,000 vectors of 512 numbers are 40 MB; reading them into memory takes that much, mapping next to nothing."""
    write_index(tmp_path / "big.index", kind, np.random.default_rng(0).standard_normal((20_000, 512), np.float32))
    code = (
        "import sys, faiss, pathlib\n"
        "from rllm_gym.envs.searchqa.retrievers.faiss_file import _read\n"
        "def anon(): return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0])\n"
        "before = anon(); index = _read(faiss, pathlib.Path(sys.argv[1])); print(anon() - before)"
    )
    used = subprocess.run([sys.executable, "-c", code, str(tmp_path / "big.index")], capture_output=True, text=True)
    assert int(used.stdout) < 10_000, used.stderr


def test_what_does_not_fit_is_said_in_one_line(tmp_path, e5, vectors, corpus):
    index = tmp_path / "e5_Flat.index"
    write_index(index, "Flat", vectors)
    short = tmp_path / "short.jsonl"
    short.write_text("".join(corpus.read_text().splitlines(keepends=True)[:-1]))
    (tmp_path / "broken.index").write_bytes(index.read_bytes()[:200])
    (tmp_path / "no.index").write_text("IxFI, or not")
    (tmp_path / "wiki.jsonl.gz").write_bytes(__import__("gzip").compress(corpus.read_bytes()))
    (tmp_path / "rows.jsonl").write_text('["no passage"]\n')
    write_index(tmp_path / "wide.index", "Flat", np.tile(vectors, 2))
    for options, message in [
        (
            {"corpus": short},
            r"got 599 rows in .* and 600 vectors in .*\. Name the corpus that the index was built from",
        ),
        ({"index": tmp_path / "wide.index"}, r"the encoder must have the index's 64 dimensions; got 32"),
        ({"index": tmp_path / "broken.index"}, r"broken\.index must be an index of faiss; got "),
        ({"index": tmp_path / "no.index"}, r"no\.index must be an index of faiss; got "),
        ({"index": tmp_path / "none.index"}, r"which is not there: correct the path"),
        ({"index": tmp_path}, r"which is a folder: use retriever dense"),
        ({"corpus": None}, r"needs index, corpus and encoder; got no corpus\. Set it"),
        ({"encoder": None, "index": None}, r"got no index and no encoder"),
        ({"corpus": tmp_path / "wiki.jsonl.gz"}, r"must be unpacked.*Run: gunzip --keep"),
        ({"corpus": tmp_path / "none.jsonl"}, r"the corpus must be a JSONL file; got .*none\.jsonl"),
        ({"corpus": tmp_path / "rows.jsonl"}, r"row 0 of the corpus .* must be \{\"contents\": \.\.\.\}"),
        ({"device": "cuda"}, r"device must be one that torch has; got 'cuda'"),
        ({"url": "http://x"}, r"url belongs to the retriever http; got 'http://x' with retriever='faiss'"),
        ({"k1": 0.9}, r"k1 belongs to the retriever bm25"),
    ]:
        if options.get("device") and __import__("torch").cuda.is_available():
            continue
        with pytest.raises(ConfigError, match=message) as caught:
            SearchQAEnv(retriever="faiss", **{"index": index, "corpus": corpus, "encoder": str(e5), **options})
        assert len(str(caught.value).splitlines()) == 1


def test_numbers_of_an_indexs_own_that_no_row_has_are_the_environments_error(tmp_path, e5, vectors, corpus):
    index = faiss.index_factory(DIM, "IDMap,Flat", faiss.METRIC_INNER_PRODUCT)
    index.add_with_ids(vectors, np.arange(len(vectors)) + 10_000)
    faiss.write_index(index, str(tmp_path / "ids.index"))
    retriever = open_faiss(tmp_path / "ids.index", corpus=corpus, encoder=str(e5))
    with pytest.raises(EnvError, match=r"number its vectors from 0 on.*IDMap"):
        retriever.search(["w1"], 2)


def test_where_rows_begin_is_found_once_and_again_for_another_file(tmp_path, e5, vectors, corpus, monkeypatch):
    monkeypatch.setenv("RLLM_GYM_CACHE", str(tmp_path / "cache"))
    write_index(tmp_path / "e5.index", "Flat", vectors)

    def first():
        return open_faiss(tmp_path / "e5.index", corpus=corpus, encoder=str(e5)).search(["w3"], 1)[0][0].contents

    before = first()
    (kept,) = (tmp_path / "cache" / "corpora").iterdir()
    stamp = kept.stat().st_mtime_ns
    assert first() == before and kept.stat().st_mtime_ns == stamp
    # Another text of another length, with blank lines and without a last line break.
    corpus.write_text("\n\n".join(json.dumps({"title": "A title", "text": f"passage {i}"}) for i in range(600)))
    assert first() == f'"A title"\npassage {before.partition(chr(10))[0][2:-1]}'
    assert len(list((tmp_path / "cache" / "corpora").iterdir())) == 2


def test_on_gpus_an_index_is_spread_in_half_precision(tmp_path, e5, vectors, corpus, monkeypatch):
    """This machine's faiss has no GPU: what would be asked of it, on a CPU that says it is one."""
    write_index(tmp_path / "e5.index", "Flat", vectors)
    asked = []

    class Options:
        pass

    class GpuFaiss:
        get_num_gpus = staticmethod(lambda: 2)
        GpuMultipleClonerOptions = Options

        def __getattr__(self, name):
            return getattr(faiss, name)

        def index_cpu_to_all_gpus(self, index, co):
            asked.append((co.useFloat16, co.shard))
            return index

    class CpuThatSaysCuda(Encoder):
        def __init__(self, name, *, device, query_prefix):
            super().__init__(name, device="cpu", query_prefix=query_prefix)
            self.device = device

        def _encode(self, texts):
            device, self.device = self.device, "cpu"
            vectors = super()._encode(texts)
            self.device = device
            return vectors

    for module in (faiss_file, dense):
        monkeypatch.setattr(module, "need", lambda *names: GpuFaiss())
    monkeypatch.setattr(faiss_file, "Encoder", CpuThatSaysCuda)
    retriever = open_faiss(tmp_path / "e5.index", corpus=corpus, encoder=str(e5), device="cuda")
    assert asked == [(True, True)]
    assert str(retriever) == "600 passages by IndexFlatIP (on 2 GPUs), queries as 'query: ...' encoded on cuda"
    assert len(retriever.search(["w1"], 3)[0]) == 3
    open_faiss(tmp_path / "e5.index", corpus=corpus, encoder=str(e5), device="cpu")
    assert len(asked) == 1


def test_an_environment_plays_with_a_file_of_faiss(tmp_path, e5, vectors, corpus):
    write_index(tmp_path / "e5_Flat.index", "Flat", vectors)
    options = {"index": tmp_path / "e5_Flat.index", "corpus": corpus, "encoder": str(e5)}
    env = SearchQAEnv(retriever="faiss", topk=2, **options)
    env.reset(seed=0)
    reply = env.step("<search>w1 w8</search>")[0]
    first, second = load_retriever("faiss", **options).search(["w1 w8"], 2)[0]
    title, _, text = first.contents.partition("\n")
    assert reply.startswith(f"<information>Doc 1(Title: {title}) {text}\nDoc 2(Title: ")
    assert second.score <= first.score


# BM25's k1 and b.


def bm25_scores(options, tmp_path):
    texts = ["red apple", "red red pear juice", "green kiwi"]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"contents": text}) + "\n" for text in texts))
    build_index(corpus, tmp_path / "index", overwrite=True, **options)
    return [hit.score for hit in Bm25Retriever.open(tmp_path / "index").search(["red"], 3)[0]]


def test_k1_and_b_are_those_of_the_formula_and_pyserinis_have_a_name(tmp_path):
    # "red" is in 2 of 3 passages, once among 2 words and twice among 4; the mean is 8/3 words.
    idf = np.log(1 + 1.5 / 2.5)

    def scores(k1, b):
        norms = [k1 * (1 - b + b * length / (8 / 3)) for length in (2, 4)]
        return sorted([idf * c / (c + norm) for c, norm in zip((1, 2), norms, strict=True)], reverse=True)

    for options, weights in [
        ({}, (1.5, 0.75)),
        ({"preset": "pyserini"}, (0.9, 0.4)),
        ({"k1": 0.9, "b": 0.4}, (0.9, 0.4)),
        ({"preset": "pyserini", "b": 1}, (0.9, 1.0)),
        ({"k1": 0}, (0.0, 0.75)),
    ]:
        assert bm25_scores(options, tmp_path) == pytest.approx(scores(*weights), rel=1e-6), options


def test_the_embedded_corpus_is_searched_with_any_k1_and_b(tmp_path):
    build_index("embedded", tmp_path / "index", preset="pyserini")
    query = ["capital of Nepal"]
    built = load_retriever("bm25", index=tmp_path / "index").search(query, 5)
    pyserini = load_retriever("bm25", preset="pyserini").search(query, 5)
    assert [h.contents for h in pyserini[0]] == [h.contents for h in built[0]]
    assert [h.score for h in pyserini[0]] == pytest.approx([h.score for h in built[0]], rel=1e-5)
    assert pyserini != load_retriever("bm25").search(query, 5)
    env = SearchQAEnv(preset="pyserini", k1=0.9)
    env.reset(seed=0)
    assert "Doc 1" in env.step(env.expert_action())[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k1": -1}, r"^bm25: k1 must be a number, 0 or more; got -1"),
        ({"b": 1.5}, r"^bm25: b must be a number, from 0 to 1; got 1\.5"),
        ({"b": "0.4"}, r"^bm25: b must be a number"),
        ({"preset": "pyserin"}, r"Did you mean 'pyserini'"),
    ],
)
def test_weights_that_are_none_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SearchQAEnv(**options)


def test_an_index_is_searched_with_its_own_weights(tmp_path):
    build_index("embedded", tmp_path / "index", k1=0.9, b=0.4)
    assert "k1 0.9, b 0.4" in str(Bm25Retriever.open(tmp_path / "index", preset="pyserini"))
    with pytest.raises(ConfigError, match=r"built with, 0\.9 and 0\.4; got 1\.2 and 0\.75 for .* build it anew"):
        SearchQAEnv(index=tmp_path / "index", k1=1.2)
    with pytest.raises(ConfigError, match="belong to the kind bm25"):
        build_index("embedded", tmp_path / "other", kind="flat", encoder="tiny", k1=0.9)
