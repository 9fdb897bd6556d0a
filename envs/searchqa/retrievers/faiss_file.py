"""FAISS files of others, like Search-R1's `e5_Flat.index`: read as they are, with the corpus they were built from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_gym.envs.searchqa.retrievers.base import need
from rllm_gym.envs.searchqa.retrievers.corpus import CorpusFile
from rllm_gym.envs.searchqa.retrievers.dense import DenseRetriever, FaissIndex, check_dimensions
from rllm_gym.envs.searchqa.retrievers.encoder import Encoder, is_e5
from rllm_gym.errors import ConfigError


def open_faiss(
    index: str | Path | None,
    *,
    corpus: str | Path | None = None,
    encoder: str | None = None,
    query_prefix: str | None = None,
    search_parameters: str | None = None,
    device: str | None = "cpu",
) -> DenseRetriever:
    """Return a retriever over a file of faiss (Flat, IVF, HNSW and so on) and a corpus; no passage is encoded anew.

    The index stays on the disk, memory-mapped, and processes share its pages. On GPUs it is spread over all of them in
    half precision, as in Search-R1.

    Args:
        index: what `faiss.write_index` wrote; its vector i is the corpus's row i.
        corpus: the JSONL file, one passage a line.
        encoder: of the queries: the one that encoded the passages, like "intfloat/e5-base-v2".
        query_prefix: see `Encoder`; None is also E5's where the index's name has the word "e5", like `e5_Flat.index`.
        search_parameters: of faiss, like "nprobe=64" or "efSearch=128".
        device: where queries are encoded, and where faiss has GPUs and this is "cuda", where it searches.

    Raises:
        ConfigError: no such file, or index, corpus and encoder do not fit each other.
    """
    if index is None or corpus is None or encoder is None:
        missing = {"index": index, "corpus": corpus, "encoder": encoder}
        raise ConfigError(
            "SearchQAEnv: the retriever faiss needs index, corpus and encoder; got no "
            f"{' and no '.join(name for name, value in missing.items() if value is None)}. "
            "Set it, like index: e5_Flat.index, corpus: wiki-18.jsonl, encoder: intfloat/e5-base-v2."
        )
    faiss: Any = need("faiss", "faiss-cpu")
    found = _read(faiss, Path(index).expanduser())
    rows = CorpusFile(Path(corpus).expanduser())
    if found.ntotal != len(rows):
        raise ConfigError(
            f"SearchQAEnv: row i of the corpus must be vector i of the index; got {len(rows):,} rows in {str(corpus)!r}"
            f" and {found.ntotal:,} vectors in {str(index)!r}. Name the corpus that the index was built from."
        )
    if query_prefix is None and is_e5(Path(index).name):
        query_prefix = "query: "
    model = Encoder(encoder, device=device, query_prefix=query_prefix)
    check_dimensions(model, encoder, found.d, index)
    place = "memory-mapped"
    if model.device.startswith("cuda") and faiss.get_num_gpus() > 0:
        options = faiss.GpuMultipleClonerOptions()
        options.useFloat16 = options.shard = True
        place = f"on {faiss.get_num_gpus()} GPUs"
        found = _told(lambda: faiss.index_cpu_to_all_gpus(found, co=options), f"device {device!r} must suit {index}")
    if search_parameters is not None:
        rule = "search_parameters must be faiss's, like nprobe=64 or efSearch=128"
        _told(lambda: faiss.ParameterSpace().set_index_parameters(found, search_parameters), rule)
    return DenseRetriever(model, FaissIndex(found, place), rows)


def _read(faiss: Any, path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(
            f"SearchQAEnv: the retriever faiss reads an index from a file; got {str(path)!r}, which is "
            f"{'a folder: use retriever dense' if path.is_dir() else 'not there: correct the path'}."
        )
    # Maps the vectors of Flat and HNSW and the lists of IVF alike; IO_FLAG_MMAP does so for IVF alone.
    return _told(lambda: faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC), f"{path} must be an index of faiss")


def _told(act: Any, rule: str) -> Any:
    try:
        return act()
    except RuntimeError as e:
        why = " ".join(str(e).split()).rpartition(": ")[2] or repr(e)
        raise ConfigError(f"SearchQAEnv: {rule}; got {why!r} from faiss. Correct it.") from e
