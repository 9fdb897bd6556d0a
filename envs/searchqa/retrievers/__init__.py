"""Retrievers: from a query to the passages that fit it best. One small interface, three kinds, one per file."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol, runtime_checkable

from rllm_gym.errors import ConfigError, nearest

KINDS = ("bm25", "dense", "http")


class Passage(NamedTuple):
    """A passage as wiki-18 has it (the title in quotation marks, a line break, the text), and how well it fits."""

    contents: str
    score: float


@runtime_checkable
class Retriever(Protocol):
    """What an environment searches with. It may be called from several threads at once."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return at most `topk` passages for each query, best first.

        Raises:
            EnvError: the search failed, which is no fault of the query.
        """


def load_retriever(
    kind: str, *, index: str | Path | None = None, url: str | None = None, encoder: str | None = None
) -> Retriever:
    """Return the retriever of this process for these settings; what it holds is shared by all that ask for it.

    Args:
        kind: "bm25", "dense" or "http".
        index: folder written by `rllm-gym index`; None is the embedded corpus, which only "bm25" can search.
        url: of a server that speaks Search-R1's protocol, like "http://127.0.0.1:8000/retrieve"; for "http" only.
        encoder: replaces the encoder that the index names; for "dense" only.

    Raises:
        ConfigError: an unknown kind, a setting that the kind does not take or needs, a folder without an index, or a
            package that is not installed.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"SearchQAEnv: retriever must be one of {', '.join(KINDS)}, or an object with "
            f"search(queries, topk); got {kind!r}. Did you mean {nearest(kind, KINDS)!r}?"
        )
    for name, value, kinds in (
        ("index", index, ("bm25", "dense")),
        ("url", url, ("http",)),
        ("encoder", encoder, ("dense",)),
    ):
        if value is not None and kind not in kinds:
            raise ConfigError(
                f"SearchQAEnv: {name} belongs to the retriever {' or '.join(kinds)}; got {value!r} with "
                f"retriever={kind!r}. Leave it out, or choose another retriever."
            )
    # A forked process must not use its parent's locks and connections.
    return _load(kind, None if index is None else str(Path(index).expanduser()), url, encoder, os.getpid())


@functools.cache
def _load(kind: str, index: str | None, url: str | None, encoder: str | None, pid: int) -> Retriever:
    if kind == "http":
        from rllm_gym.envs.searchqa.retrievers.http import HttpRetriever

        return HttpRetriever(url)
    if kind == "dense":
        from rllm_gym.envs.searchqa.retrievers.dense import DenseRetriever

        return DenseRetriever(index, encoder=encoder)
    from rllm_gym.envs.searchqa.retrievers.bm25 import Bm25Retriever

    return Bm25Retriever.open(index) if index else Bm25Retriever.embedded()


def need(module: str, package: str = "") -> ModuleType:
    """Import a module of the extra `searchqa`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise ConfigError(
            f'SearchQA-v0 needs the {package or module} package: pip install "rllm-gym[searchqa]".'
        ) from e
