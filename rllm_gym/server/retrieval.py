"""A retriever over HTTP, in the protocol of Search-R1's retrieval server."""

from __future__ import annotations

import logging
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field

from rllm_gym.envs.searchqa.retrievers import Passage, Retriever
from rllm_gym.errors import EnvError
from rllm_gym.server.app import Binding, guarded, listen, with_errors
from rllm_gym.server.errors import EnvFailedError

MAX_TOPK = 1000
PATH = "/retrieve"

logger = logging.getLogger(__name__)


class Query(BaseModel):
    queries: list[str]
    topk: int | None = Field(None, ge=0, le=MAX_TOPK)  # as with Search-R1, none and 0 are the server's own
    return_scores: bool = False


def retrieval_app(retriever: Retriever, topk: int) -> FastAPI:
    """Return the application.

        POST /retrieve  {"queries": [text, ...], "topk": k, "return_scores": true}
        answer          {"result": [[{"document": {"title", "text", "contents"}, "score": s}, ...], ...]},
                        without scores {"result": [[document, ...], ...]}

    Source: Jin et al. 2025, arXiv:2503.09516 (search_r1/search/retrieval_server.py).

    Args:
        retriever: what is asked, by several threads at once.
        topk: passages of a query, where the request does not say.
    """
    app = with_errors(FastAPI(title="rllm-gym serve-index"))

    @app.post(PATH)
    def retrieve(query: Query) -> dict[str, list[list[dict[str, Any]]]]:
        try:
            found = retriever.search(query.queries, query.topk or topk)
        except EnvError as error:
            logger.error("%s", error)
            raise EnvFailedError("The search failed; the server's log says why.") from error
        return {"result": [[_answer(passage, query.return_scores) for passage in passages] for passages in found]}

    return app


def _answer(passage: Passage, has_score: bool) -> dict[str, Any]:
    title, _, text = passage.contents.partition("\n")
    document = {"title": title.strip('"'), "text": text, "contents": passage.contents}
    return {"document": document, "score": passage.score} if has_score else document


class _Server(uvicorn.Server):
    """At the first signal it answers what is under way; at the second it ends at once."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def serve_retriever(retriever: Retriever, topk: int, binding: Binding, *, what: str, say: Any = print) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        OSError: the address cannot be listened on.
    """
    with listen(binding) as (listening, url):
        say(f"serving {what} at {url}{PATH}")
        await _Server(guarded(retrieval_app(retriever, topk), binding)).serve(sockets=[listening])
