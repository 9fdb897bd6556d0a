"""Dense retrieval: vectors of an encoder in an index of faiss, exact ("flat") or by a graph ("hnsw")."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.searchqa.retrievers.base import Passage, Passages, need
from rllm_gym.envs.searchqa.retrievers.batching import Batcher
from rllm_gym.envs.searchqa.retrievers.encoder import TEXTS_PER_BATCH, Encoder, Vectors
from rllm_gym.envs.searchqa.retrievers.store import PassageStore, Report, copy_passages, read_meta, write_meta
from rllm_gym.errors import ConfigError, EnvError

VECTORS_PER_SLICE = 10_000
# Links per passage and the breadths of the search for them; faiss' own defaults are 32, 40 and 16.
HNSW_LINKS, HNSW_BUILD_BREADTH, HNSW_SEARCH_BREADTH = 32, 80, 64

Found = tuple[Vectors, npt.NDArray[np.int64]]  # scores and passage numbers, best first, of shape [queries, topk]


class VectorIndex(Protocol):
    """An index of vectors; number -1 is no passage. Its `str()` names it."""

    def search(self, vectors: Vectors, topk: int, /) -> Found: ...


class DenseRetriever:
    """Search passages by the cosine of vectors. What several threads ask goes together in one search.

    Args:
        encoder: what made the index's vectors.
        index: number i stands for passage i.
        passages: their texts.
    """

    def __init__(self, encoder: Encoder, index: VectorIndex, passages: Passages) -> None:
        self._encoder, self._index, self._passages = encoder, index, passages
        self.search = Batcher(self._search, type(self).__name__)

    def __str__(self) -> str:
        encoder = f"{self._encoder.query_prefix + '...'!r} encoded on {self._encoder.device}"
        return f"{len(self._passages):,} passages by {self._index}, queries as {encoder}"

    @classmethod
    def open(
        cls,
        folder: str | Path | None,
        *,
        encoder: str | None = None,
        query_prefix: str | None = None,
        device: str | None = "cpu",
    ) -> DenseRetriever:
        """Return a retriever over an index folder: vectors that stay on the disk, or an HNSW graph in memory.

        Args:
            folder: written by `rllm-gym index --kind flat` or `--kind hnsw`.
            encoder: replaces the encoder that the index names, as where the model lies in another folder.
            query_prefix: see `Encoder`.
            device: where queries are encoded.

        Raises:
            ConfigError: no folder, not a dense index, or an encoder that does not fit it.
        """
        if folder is None:
            raise ConfigError(
                "SearchQAEnv: the retriever dense needs an index; got index=None. Build one with "
                "`rllm-gym index CORPUS DIR --kind hnsw --encoder MODEL`."
            )
        path = Path(folder)
        meta = read_meta(path, ("flat", "hnsw"))
        faiss: Any = need("faiss", "faiss-cpu")
        name = encoder or meta["encoder"]
        model = Encoder(name, device=device, query_prefix=query_prefix)
        check_dimensions(model, name, meta["dim"], folder)
        if meta["kind"] == "flat":
            return cls(model, _FlatFile(faiss, path / "vectors.npy"), PassageStore(path))
        return cls(model, FaissIndex(faiss.read_index(str(path / "hnsw.faiss")), "in memory"), PassageStore(path))

    def _search(self, queries: list[str], topk: int) -> list[list[Passage]]:
        topk = min(topk, len(self._passages))
        scores, numbers = self._index.search(self._encoder.encode_queries(queries), topk)
        return [
            [Passage(self._passages[n], float(s)) for s, n in zip(*row, strict=True) if n >= 0]
            for row in zip(scores, numbers, strict=True)
        ]


class FaissIndex:
    """An index of faiss, with scores that are the higher the better.

    Args:
        index: of any kind; its vectors have the numbers that they were added in.
        place: where it is, for those who read `str()`.
    """

    def __init__(self, index: Any, place: str) -> None:
        self._index, self._place = index, place
        self._is_distance = index.metric_type == need("faiss", "faiss-cpu").METRIC_L2

    def __str__(self) -> str:
        return f"{type(self._index).__name__} ({self._place})"

    def search(self, vectors: Vectors, topk: int, /) -> Found:
        scores, numbers = self._index.search(vectors, topk)
        if numbers.max(initial=-1) >= self._index.ntotal:
            raise EnvError(
                f"SearchQAEnv: an index must number its vectors from 0 on, as the corpus its rows; got number "
                f"{numbers.max()} among {self._index.ntotal} vectors. Take one without numbers of its own (IDMap)."
            )
        return (-scores if self._is_distance else scores), numbers


class _FlatFile:
    """Every query against every vector of a file, which stays on the disk."""

    def __init__(self, faiss: Any, path: Path) -> None:
        self._faiss, self._vectors = faiss, np.load(path, mmap_mode="r")

    def __str__(self) -> str:
        return "every vector (on the disk)"

    def search(self, vectors: Vectors, topk: int, /) -> Found:
        return self._faiss.knn(vectors, self._vectors, topk, metric=self._faiss.METRIC_INNER_PRODUCT)


def check_dimensions(encoder: Encoder, name: str, dim: int, index: str | Path) -> None:
    """Refuse an encoder whose vectors are not the index's."""
    if encoder.dim != dim:
        raise ConfigError(
            f"SearchQAEnv: the encoder must have the index's {dim} dimensions; got {encoder.dim} from {name!r}. "
            f"Name the encoder that built {str(index)!r}."
        )


def build_dense(corpus: Path, folder: Path, report: Report, *, kind: str, encoder: str, device: str | None) -> int:
    """Write a dense index of kind "flat" or "hnsw", and return its size in passages.

    Vectors go to the disk batch by batch. Memory holds the encoder, one batch, and for "hnsw" the graph with its
    vectors, about 4 D + 8 HNSW_LINKS bytes a passage.
    """
    need("faiss", "faiss-cpu")  # before hours of encoding
    model = Encoder(encoder, device=device)
    raw, count = folder / "vectors.tmp", 0
    texts = copy_passages(corpus, folder, report)
    with open(raw, "wb") as file:
        while batch := list(itertools.islice(texts, TEXTS_PER_BATCH)):
            file.write(model.encode_passages(batch).tobytes())
            count += len(batch)
    vectors = np.memmap(raw, np.float32, "r", shape=(count, model.dim))
    if kind == "flat":
        _copy_vectors(vectors, folder / "vectors.npy", report)
    else:
        build_hnsw(vectors, folder / "hnsw.faiss", report)
    raw.unlink()
    known = Path(encoder).expanduser()
    name = str(known.resolve()) if known.is_dir() else encoder
    write_meta(folder, kind=kind, num_passages=count, encoder=name, dim=model.dim)
    return count


def _copy_vectors(vectors: Vectors, path: Path, report: Report) -> None:
    target = np.lib.format.open_memmap(path, "w+", np.float32, vectors.shape)
    for start in range(0, len(vectors), VECTORS_PER_SLICE):
        target[start : start + VECTORS_PER_SLICE] = vectors[start : start + VECTORS_PER_SLICE]
        report("writing", min(start + VECTORS_PER_SLICE, len(vectors)), len(vectors))
    target.flush()


def build_hnsw(vectors: Vectors, path: Path, report: Report) -> None:
    """Write a faiss index with the graph of Malkov and Yashunin 2016, arXiv:1603.09320, over the inner product."""
    faiss: Any = need("faiss", "faiss-cpu")
    index = faiss.IndexHNSWFlat(vectors.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = HNSW_BUILD_BREADTH, HNSW_SEARCH_BREADTH
    for start in range(0, len(vectors), VECTORS_PER_SLICE):
        index.add(vectors[start : start + VECTORS_PER_SLICE])
        report("linking", min(start + VECTORS_PER_SLICE, len(vectors)), len(vectors))
    faiss.write_index(index, str(path))
