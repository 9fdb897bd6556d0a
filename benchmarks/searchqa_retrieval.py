"""Search in 100,000 passages: median time per query of bm25 and of HNSW, and what building their indexes takes.

Passages are 100 words long, as wiki-18's, drawn from 200,000 made-up words by Zipf's law; a query is eight words of one
passage. The vectors, of MiniLM's 384 dimensions, come from 1,000 clusters, a query near one of them; encoding is not
measured. The baseline of the ratio is the limit, 20 ms.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import mean_and_spread, print_row

LIMIT_MS = 20.0
DIM, NUM_CLUSTERS, NUM_WORDS, WORDS_PER_PASSAGE, TOPK = 384, 1000, 200_000, 100, 3


def write_corpus(path: Path, num_passages: int, rng: np.random.Generator) -> list[str]:
    """Write passages and return queries."""
    queries = []
    with open(path, "w") as file:
        for number in range(num_passages):
            ranks = np.minimum(rng.zipf(1.3, WORDS_PER_PASSAGE), NUM_WORDS)
            words = [_word(rank) for rank in ranks]
            file.write(json.dumps({"id": str(number), "contents": f'"{words[-1]}"\n' + " ".join(words)}) + "\n")
            if len(queries) < 300 and number % 300 == 0:
                queries.append(" ".join(rng.choice(words, 8, replace=False)))
    return queries


def _word(rank: int) -> str:
    letters = ""
    while rank:
        rank, letter = divmod(int(rank), 20)
        letters += "bcdfghjklmnpqrstvwxz"[letter] + "aeiou"[letter % 5]
    return letters + "n"


def median_ms(search: Callable[[Any], Any], queries: Sequence[Any]) -> float:
    for query in queries[:20]:
        search(query)
    times = []
    for query in queries:
        start = time.perf_counter()
        search(query)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def build_in_child(corpus: Path, folder: Path) -> tuple[float, float]:
    """Return the seconds of `rllm-gym index` and the most memory it held, in MB."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "rllm_gym.cli.main", "rllm-gym", "index", str(corpus), str(folder)]
    subprocess.run(command, check=True)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def bm25(folder: Path, num_passages: int, rng: np.random.Generator) -> tuple[float, str]:
    from rllm_gym.envs.searchqa.retrievers.bm25 import Bm25Retriever

    queries = write_corpus(folder / "corpus.jsonl", num_passages, rng)
    build_s, peak_mb = build_in_child(folder / "corpus.jsonl", folder / "bm25")
    retriever = Bm25Retriever.open(folder / "bm25")
    time_ms = median_ms(lambda query: retriever.search([query], TOPK), queries)
    return time_ms, f"index built in {build_s:.0f} s with {peak_mb:.0f} MB at most"


def hnsw(folder: Path, num_passages: int, rng: np.random.Generator) -> tuple[float, str]:
    import faiss

    from rllm_gym.envs.searchqa.retrievers.dense import build_hnsw

    centres = rng.standard_normal((NUM_CLUSTERS, DIM), np.float32)

    def draw(count: int) -> np.ndarray:
        vectors = centres[rng.integers(NUM_CLUSTERS, size=count)] + rng.standard_normal((count, DIM), np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    vectors, queries = draw(num_passages), draw(300)
    start = time.perf_counter()
    build_hnsw(vectors, folder / "hnsw.faiss", lambda stage, done, total: None)
    build_s = time.perf_counter() - start
    index = faiss.read_index(str(folder / "hnsw.faiss"))
    time_ms = median_ms(lambda query: index.search(query[None], TOPK), queries)
    exact = faiss.knn(queries, vectors, TOPK, metric=faiss.METRIC_INNER_PRODUCT)[1]
    found = index.search(queries, TOPK)[1]
    recall = statistics.mean(len(set(a) & set(b)) / TOPK for a, b in zip(exact.tolist(), found.tolist(), strict=True))
    return time_ms, f"graph built in {build_s:.0f} s, recall of the top {TOPK} {recall:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kinds", nargs="+", choices=("bm25", "hnsw"), default=["bm25", "hnsw"])
    args = parser.parse_args()
    for name in args.kinds:
        times, notes = [], []
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as folder:
                run = {"bm25": bm25, "hnsw": hnsw}[name]
                time_ms, note = run(Path(folder), args.passages, np.random.default_rng(seed))
                times.append(time_ms)
                notes.append(note)
        result = f"{name}, {args.passages:,} passages: median {mean_and_spread(times, 2)} ms a query; {notes[-1]}"
        print_row(args.seeds, result, [time_ms / LIMIT_MS for time_ms in times])


if __name__ == "__main__":
    main()
