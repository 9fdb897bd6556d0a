"""Dense retrieval: a Hugging Face encoder with mean pooling, and faiss, exact ("flat") or by a graph ("hnsw")."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rllm_gym.envs.searchqa.retrievers import Passage, need
from rllm_gym.envs.searchqa.retrievers.store import PassageStore, Report, copy_passages, read_meta, write_meta
from rllm_gym.errors import ConfigError
from rllm_gym.models import resolve_base_model

if TYPE_CHECKING:
    import torch

MAX_TOKENS = 256  # Search-R1's retrieval server
PASSAGES_PER_BATCH = 64
VECTORS_PER_SLICE = 10_000
# Links per passage and the breadths of the search for them; faiss' own defaults are 32, 40 and 16.
HNSW_LINKS, HNSW_BUILD_BREADTH, HNSW_SEARCH_BREADTH = 32, 80, 64
# What E5 was trained with: Wang et al. 2022, arXiv:2212.03533.
E5_PREFIXES = ("query: ", "passage: ")

Vectors = npt.NDArray[np.float32]  # shape [N, D], of length 1, so that the inner product is the cosine


class Encoder:
    """Texts to vectors of length 1: the mean of the last hidden states over a text's tokens, normalised.

    Args:
        name: a Hugging Face model, by folder or name; those with "e5" in the name get E5's prefixes.
        device: where it runs; None is the GPU if there is one.

    Raises:
        ConfigError: no such model.
    """

    def __init__(self, name: str, *, device: str | None = None) -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ModuleNotFoundError as e:
            raise ConfigError(f'SearchQA-v0: the dense retriever needs {e.name}: pip install "rllm-gym[train]".') from e

        try:
            path = resolve_base_model(name)
        except ConfigError as e:
            raise ConfigError(str(e).replace("base_model:", "encoder:", 1)) from e
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModel.from_pretrained(path, dtype=torch.float32).to(self.device).eval()
        self.dim = int(self._model.config.hidden_size)
        self._query_prefix, self._passage_prefix = E5_PREFIXES if "e5" in Path(name).name.lower() else ("", "")
        self._lock = threading.Lock()  # a fast tokenizer that pads and cuts serves one thread at a time

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        return self._encode([self._query_prefix + query for query in queries])

    def encode_passages(self, passages: Sequence[str]) -> Vectors:
        return self._encode([self._passage_prefix + passage for passage in passages])

    def _encode(self, texts: list[str]) -> Vectors:
        import torch

        with self._lock, torch.inference_mode():
            inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            inputs = inputs.to(self.device)
            hidden = self._model(**inputs).last_hidden_state
            return _mean_direction(hidden, inputs["attention_mask"]).cpu().numpy()


def _mean_direction(hidden_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens of each text, scaled to length 1; the sum has the same direction."""
    import torch

    return torch.nn.functional.normalize((hidden_BTD * mask_BT[..., None]).sum(1), dim=-1)


class DenseRetriever:
    """Search an index folder by the cosine of vectors.

    A flat index compares the query with every vector, memory-mapped from the disk; an HNSW index is held in memory.

    Args:
        folder: written by `rllm-gym index --kind flat` or `--kind hnsw`.
        encoder: replaces the encoder that the index names, as where the model lies in another folder.
        device: where queries are encoded.

    Raises:
        ConfigError: no folder, not a dense index, or an encoder that does not fit it.
    """

    def __init__(self, folder: str | Path | None, *, encoder: str | None = None, device: str = "cpu") -> None:
        if folder is None:
            raise ConfigError(
                "SearchQAEnv: the retriever dense needs an index; got index=None. Build one with "
                "`rllm-gym index CORPUS DIR --kind hnsw --encoder MODEL`."
            )
        path = Path(folder)
        meta = read_meta(path, ("flat", "hnsw"))
        self._faiss: Any = need("faiss", "faiss-cpu")
        self._passages = PassageStore(path)
        self._encoder = Encoder(encoder or meta["encoder"], device=device)
        if self._encoder.dim != meta["dim"]:
            raise ConfigError(
                f"SearchQAEnv: the encoder must have the index's {meta['dim']} dimensions; got "
                f"{self._encoder.dim} from {encoder or meta['encoder']!r}. Name the encoder that built {str(folder)!r}."
            )
        self._vectors = np.load(path / "vectors.npy", mmap_mode="r") if meta["kind"] == "flat" else None
        self._index = None if self._vectors is not None else self._faiss.read_index(str(path / "hnsw.faiss"))

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        scores, numbers = self.search_vectors(self._encoder.encode_queries(queries), topk)
        return [
            [Passage(self._passages[n], float(s)) for s, n in zip(*row, strict=True) if n >= 0]
            for row in zip(scores, numbers, strict=True)
        ]

    def search_vectors(self, vectors: Vectors, topk: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
        """Return scores and passage numbers, best first, each of shape [number of queries, topk]; number -1 is none."""
        topk = min(topk, len(self._passages))
        if self._index is not None:
            return self._index.search(vectors, topk)
        return self._faiss.knn(vectors, self._vectors, topk, metric=self._faiss.METRIC_INNER_PRODUCT)


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
        while batch := list(itertools.islice(texts, PASSAGES_PER_BATCH)):
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
