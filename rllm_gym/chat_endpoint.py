"""A client of OpenAI-compatible endpoints: connections, key, retries and what an answer holds."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests
import tenacity

from rllm_gym.errors import ConfigError, RllmGymError

DEFAULT_URL = "https://api.openai.com/v1"
_PASSING_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_PASSING_ERRORS = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
)
_LONGEST_WAIT_S = 60.0


class EndpointError(RllmGymError):
    """An endpoint did not answer, or not as it should. `status` is its HTTP status, None where there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """An endpoint's answer.

    Args:
        text: "" where it has none.
        is_cut: it ends at the limit of tokens.
        num_prompt_tokens, num_completion_tokens: as the endpoint counts them; 0 where it does not.
    """

    text: str
    is_cut: bool
    num_prompt_tokens: int
    num_completion_tokens: int


# What a message may hold beside its text.
_NO_TEXT = ("tool_calls", "function_call", "reasoning_content", "reasoning", "audio")
_REMEDY = "Serve the model without parsers of tools and reasoning, or raise max_new_tokens."


class ChatEndpoint:
    """Asks for chat completions; threads may share one.

        POST url/chat/completions  {"model": ..., "messages": [...], ...}

    Connection failures and the statuses 408, 409, 425, 429 and 5xx are tried again, waiting twice as long each time, or
    as long as the answer's Retry-After says (at most a minute).

    Args:
        url: of the endpoint, up to "/v1"; None is `OPENAI_BASE_URL`, or else OpenAI's.
        key: sent as a bearer token; None sends none.
        timeout_s: for each attempt to connect and to read.
        num_attempts: attempts in all.
        first_wait_s: between the first and the second attempt.
        num_connections: to keep open.

    Raises:
        ConfigError: the url is none.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout_s: float = 60.0,
        num_attempts: int = 4,
        first_wait_s: float = 1.0,
        num_connections: int = 10,
    ) -> None:
        self.url = (url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"an endpoint's url must be like http://127.0.0.1:8000/v1; got {self.url!r}. Correct it.")
        self._timeout_s = timeout_s
        self._session = requests.Session()
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=num_connections)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        if key:
            # As an authentication and not as a header: one that ~/.netrc has for this host would replace the header.
            self._session.auth = functools.partial(_sign, key)
        backoff = tenacity.wait_exponential(multiplier=first_wait_s, max=30)  # no jitter: it draws from `random`
        self._retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(num_attempts),
            wait=lambda state: max(backoff(state), _asked_to_wait_s(state)),
            retry=tenacity.retry_if_exception(_is_passing),
            reraise=True,
        )

    def complete(self, body: Mapping[str, Any]) -> Answer:
        """Return the first completion of a request.

        Raises:
            EndpointError: no attempt was answered, the request was refused, or the answer is no chat completion.
        """
        try:
            # A copy, for the statistics of a Retrying are its own thread's.
            response = self._retrying.copy()(self._post, body)
        except requests.RequestException as error:
            refusal = error.response
            said = "" if refusal is None else f": {refusal.text[:200]!r}"
            status = None if refusal is None else refusal.status_code
            raise EndpointError(f"{type(error).__name__}: {error}{said}", status) from error
        try:
            content = response.json()
            choice = content["choices"][0]
            text = _text_of(choice["message"])
            usage = content.get("usage") or {}
            return Answer(
                text=text,
                is_cut=choice.get("finish_reason") == "length",
                num_prompt_tokens=int(usage.get("prompt_tokens") or 0),
                num_completion_tokens=int(usage.get("completion_tokens") or 0),
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise EndpointError(f"an answer that is not in OpenAI's protocol: {response.text[:80]!r}") from error

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._session.close()

    def _post(self, body: Mapping[str, Any]) -> requests.Response:
        url = f"{self.url}/chat/completions"
        response = self._session.post(url, json=body, timeout=self._timeout_s, allow_redirects=False)
        response.raise_for_status()
        return response


def _text_of(message: Mapping[str, Any]) -> str:
    """Return a message's text, or its refusal; of content in parts the texts joined, without thoughts.

    Raises:
        EndpointError: it has no text, but thoughts or calls of tools; or nothing at all.
    """
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part["type"] == "text") or None
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content must be a text or a list of parts; got {type(content).__name__}.")
    text = content or message.get("refusal") or ""
    others = [name for name in _NO_TEXT if message.get(name)]
    if not text and (others or content is None):
        got = " and ".join(others) or "nothing"
        raise EndpointError(f"a message needs a text in content; got {got} alone. {_REMEDY}")
    return text


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code in _PASSING_STATUSES
    return isinstance(error, _PASSING_ERRORS)


def _asked_to_wait_s(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    response = error.response if isinstance(error, requests.RequestException) else None
    asked = "" if response is None else response.headers.get("Retry-After", "")
    return min(float(asked), _LONGEST_WAIT_S) if asked.isdigit() else 0.0


def _sign(key: str, request: requests.PreparedRequest) -> requests.PreparedRequest:
    request.headers["Authorization"] = f"Bearer {key}"
    return request
