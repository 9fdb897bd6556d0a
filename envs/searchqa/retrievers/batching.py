"""Searches of several threads, carried out together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rllm_gym.envs.searchqa.retrievers.base import Passage
from rllm_gym.errors import EnvError

MAX_BATCH = 256  # queries in one search


class Batcher:
    """Has what several threads ask, while a search is under way, go together in the next one.

    Args:
        search: from queries and the largest `topk` among them to the passages of each; called by one thread at a time.
        who: names the retriever in errors.
    """

    def __init__(self, search: Callable[[list[str], int], list[list[Passage]]], who: str) -> None:
        self._search, self._who = search, who
        self._searching = threading.Lock()
        self._waiting_lock = threading.Lock()
        self._waiting: list[tuple[str, int, Future[list[Passage]]]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __call__(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return at most `topk` passages for each query.

        Raises:
            EnvError: the search that had these queries failed, also where another thread carried it out.
        """
        mine: list[Future[list[Passage]]] = [Future() for _ in queries]
        with self._waiting_lock:
            self._waiting += [(query, topk, future) for query, future in zip(queries, mine, strict=True)]
        # Whoever gets the lock searches for what waits, its own queries or others'.
        while not all(future.done() for future in mine):
            with self._searching:
                if not all(future.done() for future in mine):
                    self._search_next()
        return [future.result() for future in mine]

    def _search_next(self) -> None:
        with self._waiting_lock:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        try:
            results = self._search([query for query, _, _ in batch], max(k for _, k, _ in batch))
        except BaseException as e:
            # An interrupt ends this thread; the others must not wait for it for ever.
            error = e if isinstance(e, EnvError) else EnvError(f"{self._who}: the search ended with {e!r}.")
            for _, _, future in batch:
                future.set_exception(error)
            if error is not e:
                raise
            return
        for (_, k, future), passages in zip(batch, results, strict=True):
            future.set_result(passages[:k])
