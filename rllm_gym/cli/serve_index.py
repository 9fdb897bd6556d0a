"""`rllm-gym serve-index`: a search index over HTTP, for all that train with it, and for Search-R1's clients."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from rllm_gym.cli.common import errors_in_one_line
from rllm_gym.cli.requirements import find_missing
from rllm_gym.cli.serve import SERVER, address_error, check_reach, say
from rllm_gym.envs.searchqa.retrievers import load_retriever
from rllm_gym.errors import ConfigError

PORT = 8000  # of Search-R1's server


def serve_index(
    retriever: Annotated[str, typer.Option(help="bm25, dense or faiss.")] = "bm25",
    index: Annotated[
        str | None,
        typer.Option(help="A folder of `rllm-gym index`, or for faiss its file; default: the embedded corpus."),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="For faiss: JSONL whose row i is the index's vector i.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Of the queries: a Hugging Face encoder, folder or name.")] = None,
    query_prefix: Annotated[str | None, typer.Option(help="Before each query; default: E5's for E5.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, or cuda: the encoder, and faiss where it can.")] = None,
    search_parameters: Annotated[str | None, typer.Option(help="Of faiss, like nprobe=64 or efSearch=128.")] = None,
    topk: Annotated[int, typer.Option(min=1, max=1000, help="Passages, where a request does not say.")] = 3,
    host: Annotated[str, typer.Option(help="Address to listen on; another than this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    token: Annotated[
        str | None, typer.Option(envvar="RLLM_GYM_TOKEN", help="Bearer token that every request must have.")
    ] = None,
    max_request_mb: Annotated[float, typer.Option(min=0.001, help="Size of one request.")] = 4,
) -> None:
    """Serve a search index in Search-R1's protocol: POST /retrieve."""
    with errors_in_one_line():
        if missing := find_missing(SERVER):
            raise ConfigError(f'serve-index: needs {", ".join(missing)}: pip install "rllm-gym[server]".')
        check_reach("serve-index", host, token)
        if retriever == "http":
            raise ConfigError("serve-index: --retriever must be bm25, dense or faiss; got 'http'. Ask that server.")
        logging.basicConfig(level=logging.WARNING, format="rllm-gym serve-index: %(message)s")
        found = load_retriever(
            retriever,
            index=index,
            corpus=corpus,
            encoder=encoder,
            query_prefix=query_prefix,
            device=device,
            search_parameters=search_parameters,
        )
        from rllm_gym.server.app import Binding
        from rllm_gym.server.retrieval import serve_retriever

        binding = Binding(host, port, token, max_bytes=int(max_request_mb * 2**20), drain_s=10)
        try:
            asyncio.run(serve_retriever(found, topk, binding, what=str(found), say=say))
        except OSError as error:
            raise address_error("serve-index", host, port, error) from error
