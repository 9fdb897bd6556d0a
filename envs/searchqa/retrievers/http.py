"""Retrieval over HTTP, in the protocol of Search-R1's retrieval server."""

from __future__ import annotations

from typing import Any

from rllm_gym.bearer_token import token_for
from rllm_gym.envs.searchqa.retrievers.base import Passage, need
from rllm_gym.envs.searchqa.retrievers.batching import Batcher
from rllm_gym.errors import ConfigError, EnvError

_RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpRetriever:
    """Ask a server that speaks Search-R1's protocol.

        POST url  {"queries": [text, ...], "topk": k, "return_scores": true}
        answer    {"result": [[{"document": {"contents": ...}, "score": ...}, ...], ...]}

    Queries that several threads ask while a request is under way go together in the next one (`Batcher`). Connection
    failures and the statuses 408, 425, 429 and 5xx are tried again, waiting twice as long each time.

    Source: Jin et al. 2025, arXiv:2503.09516 (search_r1/search/retrieval_server.py).

    Args:
        url: of the server, like "http://127.0.0.1:8000/retrieve".
        timeout_s: for each attempt to connect and to read.
        num_attempts: attempts in all.
        first_wait_s: between the first and the second attempt.
        token: bearer token that the server asks for; None reads `RLLM_GYM_TOKEN`, see `token_for`.

    Raises:
        ConfigError: no url, or one that is not http(s).
    """

    def __init__(
        self,
        url: str | None,
        *,
        timeout_s: float = 30.0,
        num_attempts: int = 5,
        first_wait_s: float = 0.5,
        token: str | None = None,
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(
                "SearchQAEnv: the retriever http needs the url of a server, like http://127.0.0.1:8000/retrieve; "
                f"got {url!r}. Set url."
            )
        tenacity: Any = need("tenacity")
        self._requests: Any = need("requests")
        self.url = url
        self._timeout_s = timeout_s
        self._session = self._requests.Session()
        self._session.trust_env = False
        if token := token or token_for(url):
            self._session.headers["Authorization"] = f"Bearer {token}"
        self._retry = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(num_attempts),
            wait=tenacity.wait_exponential(multiplier=first_wait_s, max=30),  # no jitter: it draws from `random`
            retry=tenacity.retry_if_exception(self._is_passing),
            reraise=True,
        )
        self.search = Batcher(self._ask, self._who)

    def _ask(self, queries: list[str], topk: int) -> list[list[Passage]]:
        body = {"queries": queries, "topk": topk, "return_scores": True}
        try:
            answer = self._retry(self._post, body)
        except self._requests.RequestException as e:
            raise EnvError(
                f"{self._who}: the retrieval server must answer; got {type(e).__name__}: {e}. Check the server."
            ) from e
        try:
            results = [[Passage(hit["document"]["contents"], float(hit["score"])) for hit in hits] for hits in answer]
            if len(results) != len(queries):
                raise ValueError(f"{len(results)} results for {len(queries)} queries")
        except (KeyError, TypeError, ValueError) as e:
            raise self._not_the_protocol(f"{type(e).__name__}: {e}") from e
        return results

    def _post(self, body: dict[str, Any]) -> Any:
        response = self._session.post(self.url, json=body, timeout=self._timeout_s, allow_redirects=False)
        response.raise_for_status()
        try:
            return response.json()["result"]
        except (ValueError, KeyError, TypeError) as e:
            raise self._not_the_protocol(f"{response.text[:80]!r}") from e

    def _is_passing(self, error: BaseException) -> bool:
        if isinstance(error, self._requests.HTTPError):
            return error.response.status_code in _RETRY_STATUSES
        exceptions = self._requests.exceptions
        return isinstance(error, exceptions.ConnectionError | exceptions.Timeout | exceptions.ChunkedEncodingError)

    def _not_the_protocol(self, got: str) -> EnvError:
        return EnvError(f"{self._who}: the server must speak Search-R1's protocol; got {got}. Check the url.")

    @property
    def _who(self) -> str:
        return f"HttpRetriever({self.url})"
