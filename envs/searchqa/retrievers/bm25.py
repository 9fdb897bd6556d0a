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
from rllm_gym.envs.searchqa.retrievers.base import Passage, Passages, need
from rllm_gym.envs.searchqa.retrievers.store import PassageStore, Report, copy_passages, read_meta, write_meta
from rllm_gym.errors import ConfigError, nearest

# k1 and b: bm25s' defaults, and those of pyserini (Lucene's own are 1.2 and 0.75); all score as Lucene does.
PRESETS = {"bm25s": (1.5, 0.75), "pyserini": (0.9, 0.4)}
PASSAGES_PER_BATCH = 10_000
TERMS_PER_BLOCK = 1_000_000

# Single letters and digits count, unlike in bm25s' own pattern: "atomic number 7".
_WORD = re.compile(r"\w+")
_ROW = np.dtype([("term", np.int32), ("passage", np.int32), ("count", np.int32)])


def choose_weights(preset: str | None, k1: float | None, b: float | None) -> tuple[float, float]:
    """Return k1 and b: those of a preset, with the ones that are given in their place.

    Raises:
        ConfigError: an unknown preset, a negative k1, or a b outside of [0, 1].
    """
    if preset is not None and preset not in PRESETS:
        raise ConfigError(
            f"bm25: preset must be one of {', '.join(PRESETS)}; got {preset!r}. "
            f"Did you mean {nearest(preset, PRESETS)!r}?"
        )
    k1, b = (
        usual if given is None else given for usual, given in zip(PRESETS[preset or "bm25s"], (k1, b), strict=True)
    )
    for name, value, highest in (("k1", k1, float("inf")), ("b", b, 1.0)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= highest:
            bounds = "from 0 to 1" if highest == 1 else "0 or more"
            raise ConfigError(f"bm25: {name} must be a number, {bounds}; got {value!r}. pyserini's are 0.9 and 0.4.")
    return float(k1), float(b)


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

    def __init__(self, bm25: Any, passages: Passages, analyzer: Analyzer) -> None:
        self._bm25, self._passages, self._analyzer = bm25, passages, analyzer

    def __str__(self) -> str:
        return f"{len(self._passages):,} passages by BM25 (k1 {self._bm25.k1:g}, b {self._bm25.b:g})"

    @classmethod
    def open(
        cls, folder: str | Path, *, preset: str | None = None, k1: float | None = None, b: float | None = None
    ) -> Bm25Retriever:
        """Return a retriever over a folder that `rllm-gym index` wrote; its arrays and passages stay on the disk.

        Args:
            folder: the index, whose scores were computed with a k1 and b of its own.
            preset: where given, and k1 and b, the index must have been built with these; see `choose_weights`.
            k1: see above.
            b: see above.

        Raises:
            ConfigError: not such a folder, or one with another k1 or b.
        """
        path = Path(folder)
        read_meta(path, ("bm25",))
        bm25 = need("bm25s").BM25.load(path, mmap=True, show_progress=False)
        if not preset is k1 is b is None and (wanted := choose_weights(preset, k1, b)) != (bm25.k1, bm25.b):
            raise ConfigError(
                f"bm25: an index is searched with the k1 and b that it was built with, {bm25.k1:g} and {bm25.b:g}; got "
                f"{wanted[0]:g} and {wanted[1]:g} for {str(folder)!r}. Leave them out, or build it anew with them."
            )
        return cls(bm25, PassageStore(path), Analyzer())

    @classmethod
    def embedded(cls, *, preset: str | None = None, k1: float | None = None, b: float | None = None) -> Bm25Retriever:
        """Return a retriever over the embedded corpus, indexed in memory in a fraction of a second."""
        k1, b = choose_weights(preset, k1, b)
        passages, analyzer = load_passages(), Analyzer()
        bm25 = need("bm25s").BM25(k1=k1, b=b)
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


def build_bm25(corpus: Path, folder: Path, report: Report, *, k1: float, b: float) -> int:
    """Write a BM25 index in the format of bm25s, which builds its own in memory only, and return its size in passages.

        score(t, p) = log(1 + (N - n_t + 0.5) / (n_t + 0.5)) * c_tp / (c_tp + k1 (1 - b + b |p| / mean |p|))

    N passages, n_t of them with the term t, c_tp times in p, which has |p| terms.

    Two passes: the first one counts terms and spills the counts to a file; the second one scores them block by block,
    straight into the memory-mapped columns. Memory holds the vocabulary, 4 bytes a passage, and one batch or block.

    Source: Robertson and Zaragoza 2009, "The probabilistic relevance framework", without the factor k1 + 1, as Lucene;
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
    _write_columns(folder, spill, starts, idf, k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9)), report)
    spill.unlink()
    (folder / "vocab.index.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    bm25 = need("bm25s").BM25(k1=k1, b=b)
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
