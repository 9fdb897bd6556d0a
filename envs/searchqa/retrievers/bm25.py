"""BM25 retrieval with bm25s: a memory-mapped index on disk, built in bounded memory, or a small one in memory."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.searchqa.embedded import load_passages
from rllm_gym.envs.searchqa.retrievers import Passage, need
from rllm_gym.envs.searchqa.retrievers.store import PassageStore, Report, copy_passages, read_meta, write_meta

K1, B = 1.5, 0.75  # bm25s' defaults; its method "lucene" is BM25 as Lucene has it
PASSAGES_PER_BATCH = 10_000
TERMS_PER_BLOCK = 1_000_000

# Single letters and digits count, unlike in bm25s' own pattern: "atomic number 7".
_WORD = re.compile(r"\w+")
_ROW = np.dtype([("term", np.int32), ("passage", np.int32), ("count", np.int32)])


class Analyzer:
    """From text to stems: lower case, words, no stop words, Porter's second stemmer ("english" of Snowball)."""

    def __init__(self) -> None:
        self._stop_words = frozenset(need("bm25s.stopwords", "bm25s").STOPWORDS_EN)
        self._stemmer = need("Stemmer", "pystemmer").Stemmer("english")
        self._lock = threading.Lock()  # a PyStemmer object serves one thread at a time

    def words(self, text: str) -> list[str]:
        return [word for word in _WORD.findall(text.lower()) if word not in self._stop_words]

    def stems(self, words: Sequence[str]) -> list[str]:
        with self._lock:
            return self._stemmer.stemWords(words)


class Bm25Retriever:
    """Search by words; passages that share none with the query are left out.

    Args:
        bm25: an index of bm25s over stems.
        passages: what its numbers stand for.
        analyzer: what made the stems.
    """

    def __init__(self, bm25: Any, passages: Sequence[str] | PassageStore, analyzer: Analyzer) -> None:
        self._bm25, self._passages, self._analyzer = bm25, passages, analyzer

    @classmethod
    def open(cls, folder: str | Path) -> Bm25Retriever:
        """Return a retriever over a folder that `rllm-gym index` wrote; its arrays and passages stay on the disk.

        Raises:
            ConfigError: not such a folder.
        """
        path = Path(folder)
        read_meta(path, ("bm25",))
        return cls(need("bm25s").BM25.load(path, mmap=True, show_progress=False), PassageStore(path), Analyzer())

    @classmethod
    def embedded(cls) -> Bm25Retriever:
        """Return a retriever over the embedded corpus, indexed in memory in a fraction of a second."""
        passages, analyzer = load_passages(), Analyzer()
        bm25 = need("bm25s").BM25(k1=K1, b=B)
        bm25.index([analyzer.stems(analyzer.words(text)) for text in passages], show_progress=False)
        return cls(bm25, passages, analyzer)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        return [self._search(query, topk) for query in queries]

    def _search(self, query: str, topk: int) -> list[Passage]:
        vocab = self._bm25.vocab_dict
        ids = [vocab[stem] for stem in self._analyzer.stems(self._analyzer.words(query)) if stem in vocab]
        if not ids:
            return []
        scores = self._bm25.get_scores_from_ids(ids)
        return [Passage(self._passages[i], float(scores[i])) for i in _best(scores, topk)]


def _best(scores: npt.NDArray[np.float32], topk: int) -> list[int]:
    """Return the numbers of the `topk` highest positive scores; of equal ones the first."""
    found = np.flatnonzero(scores)  # numpy's selection is slow where most numbers are equal, as the zeros are
    if len(found) > topk:
        # Which of equal scores it puts first differs between machines, so it only finds the threshold.
        found = found[scores[found] >= np.partition(scores[found], -topk)[-topk]]
    return found[np.argsort(-scores[found], kind="stable")][:topk].tolist()


def build_bm25(corpus: Path, folder: Path, report: Report) -> int:
    """Write a BM25 index in the format of bm25s, which builds its own in memory only, and return its size in passages.

        score(t, p) = log(1 + (N - n_t + 0.5) / (n_t + 0.5)) * c_tp / (c_tp + K1 (1 - B + B |p| / mean |p|))

    N passages, n_t of them with the term t, c_tp times in p, which has |p| terms.

    Two passes: the first one counts terms and spills the counts to a file; the second one scores them block by block,
    straight into the memory-mapped columns. Memory holds the vocabulary, 4 bytes a passage, and one batch or block.

    Source: Robertson and Zaragoza 2009, "The probabilistic relevance framework", without the factor K1 + 1, as Lucene;
    Lu 2024, arXiv:2407.03618 (scores computed ahead).
    """
    vocab: dict[str, int] = {}
    spill = folder / "counts.tmp"
    lengths = _spill_counts(copy_passages(corpus, folder, report), vocab, spill)
    passages_of_term = np.zeros(len(vocab), np.int64)
    for rows in _blocks(spill):
        passages_of_term += np.bincount(rows["term"], minlength=len(vocab))
    idf = np.log(1 + (len(lengths) - passages_of_term + 0.5) / (passages_of_term + 0.5))
    starts = np.concatenate([[0], np.cumsum(passages_of_term)])
    _write_columns(folder, spill, starts, idf, K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9)), report)
    spill.unlink()
    (folder / "vocab.index.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    bm25 = need("bm25s").BM25(k1=K1, b=B)
    params = {key: getattr(bm25, key) for key in ("k1", "b", "delta", "method", "idf_method", "dtype", "int_dtype")}
    (folder / "params.index.json").write_text(json.dumps({**params, "num_docs": len(lengths), "backend": "numpy"}))
    write_meta(folder, kind="bm25", num_passages=len(lengths), num_terms=len(vocab))
    return len(lengths)


def _spill_counts(texts: Iterable[str], vocab: dict[str, int], spill: Path) -> npt.NDArray[np.int32]:
    """Append a row for each term of each passage to `spill`, fill `vocab`, and return the passages' lengths."""
    analyzer, lengths = Analyzer(), [np.zeros(0, np.int32)]
    with open(spill, "wb") as file:
        first = 0
        while batch := list(itertools.islice(texts, PASSAGES_PER_BATCH)):
            words = [analyzer.words(text) for text in batch]
            known = list(dict.fromkeys(itertools.chain.from_iterable(words)))
            ids = {w: vocab.setdefault(s, len(vocab)) for w, s in zip(known, analyzer.stems(known), strict=True)}
            lengths.append(np.fromiter(map(len, words), np.int32, len(words)))
            terms = np.fromiter((ids[word] for word in itertools.chain.from_iterable(words)), np.int64)
            keys = np.repeat(np.arange(len(batch)), lengths[-1]) * max(len(vocab), 1) + terms
            unique, counts = np.unique(keys, return_counts=True)
            rows = np.empty(len(unique), _ROW)
            rows["passage"], rows["term"] = np.divmod(unique, max(len(vocab), 1))
            rows["passage"] += first
            rows["count"] = counts
            file.write(rows.tobytes())
            first += len(batch)
    return np.concatenate(lengths)


def _blocks(spill: Path) -> Iterator[npt.NDArray[Any]]:
    with open(spill, "rb") as file:
        while len(rows := np.fromfile(file, _ROW, TERMS_PER_BLOCK)):
            yield rows


def _write_columns(
    folder: Path,
    spill: Path,
    starts: npt.NDArray[np.int64],
    idf: npt.NDArray[np.float64],
    saturation: npt.NDArray[np.float64],
    report: Report,
) -> None:
    """Write one column of scores per term, from `starts[term]` on, with passages in ascending order."""
    total = int(starts[-1])
    # A memory-mapped array cannot be empty.
    shape = (max(total, 1),)
    data = np.lib.format.open_memmap(folder / "data.csc.index.npy", "w+", np.float32, shape)
    indices = np.lib.format.open_memmap(folder / "indices.csc.index.npy", "w+", np.int32, shape)
    np.save(folder / "indptr.csc.index.npy", starts)
    free, done = starts[:-1].copy(), 0
    for rows in _blocks(spill):
        rows = rows[np.argsort(rows["term"], kind="stable")]
        terms, counts = rows["term"], rows["count"]
        is_first = np.concatenate([[True], terms[1:] != terms[:-1]])
        group_start = np.maximum.accumulate(np.where(is_first, np.arange(len(rows)), 0))
        where = free[terms] + np.arange(len(rows)) - group_start
        data[where] = idf[terms] * counts / (counts + saturation[rows["passage"]])
        indices[where] = rows["passage"]
        free += np.bincount(terms, minlength=len(free))
        done += len(rows)
        report("scoring", done, total)
    data.flush()
    indices.flush()
