"""The interface of retrievers: a query gives the passages that fit it best."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple, Protocol, runtime_checkable

from rllm_gym.errors import MachineError


class Passage(NamedTuple):
    """A passage as wiki-18 has it (the title in quotation marks, a line break, the text), and how well it fits."""

    contents: str
    score: float


class Passages(Protocol):
    """The contents of passages by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> str: ...


@runtime_checkable
class Retriever(Protocol):
    """A search of an environment. It may be called from several threads at once."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return at most `topk` passages for each query, best first.

        Raises:
            EnvError: the search failed, which is no fault of the query.
        """


def need(module: str, package: str = "") -> ModuleType:
    """Import a module of the extra `searchqa`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise MachineError(
            f'SearchQA-v0 needs the {package or module} package: pip install "rllm-gym[searchqa]".'
        ) from e
