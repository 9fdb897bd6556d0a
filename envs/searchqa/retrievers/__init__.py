"""Retrievers: from a query to the passages that fit it best. One small interface, four kinds."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from rllm_gym.envs.searchqa.retrievers.base import Passage, Passages, Retriever, need
from rllm_gym.errors import ConfigError, nearest

__all__ = ["Passage", "Passages", "Retriever", "load_retriever", "need"]

KINDS = ("bm25", "dense", "faiss", "http")
# Which kinds take an option; see `Bm25Retriever.open`, `DenseRetriever.open`, `open_faiss` and `HttpRetriever`.
OPTIONS = {
    "index": ("bm25", "dense", "faiss"),
    "corpus": ("faiss",),
    "encoder": ("dense", "faiss"),
    "query_prefix": ("dense", "faiss"),
    "device": ("dense", "faiss"),
    "search_parameters": ("faiss",),
    "preset": ("bm25",),
    "k1": ("bm25",),
    "b": ("bm25",),
    "url": ("http",),
}


def load_retriever(kind: str, **options: Any) -> Retriever:
    """Return the retriever of this process for these settings; what it holds is shared by all that ask for it.

    Args:
        kind: "bm25", "dense", "faiss" or "http".
        options: those of `OPTIONS`; None is as if it were not given.

    Raises:
        ConfigError: an unknown kind, a setting that the kind does not take or needs, a folder without an index, or a
            package that is not installed.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"SearchQAEnv: retriever must be one of {', '.join(KINDS)}, or an object with "
            f"search(queries, topk); got {kind!r}. Did you mean {nearest(kind, KINDS)!r}?"
        )
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if kind not in OPTIONS[name]:
            raise ConfigError(
                f"SearchQAEnv: {name} belongs to the retriever {' or '.join(OPTIONS[name])}; got {value!r} with "
                f"retriever={kind!r}. Leave it out, or choose another retriever."
            )
    for name in ("index", "corpus"):
        if name in given:
            given[name] = str(Path(given[name]).expanduser())
    # A forked process must not use its parent's locks and connections.
    return _load(kind, tuple(sorted(given.items())), os.getpid())


@functools.cache
def _load(kind: str, options: tuple[tuple[str, Any], ...], pid: int) -> Retriever:
    given = dict(options)
    if kind == "http":
        from rllm_gym.envs.searchqa.retrievers.http import HttpRetriever

        return HttpRetriever(given.pop("url", None), **given)
    index = given.pop("index", None)
    if kind == "dense":
        from rllm_gym.envs.searchqa.retrievers.dense import DenseRetriever

        return DenseRetriever.open(index, **given)
    if kind == "faiss":
        from rllm_gym.envs.searchqa.retrievers.faiss_file import open_faiss

        return open_faiss(index, **given)
    from rllm_gym.envs.searchqa.retrievers.bm25 import Bm25Retriever

    return Bm25Retriever.open(index, **given) if index else Bm25Retriever.embedded(**given)
