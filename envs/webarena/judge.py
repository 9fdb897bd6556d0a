"""The judge: a language model behind an OpenAI-compatible endpoint that compares an answer with its reference."""

from __future__ import annotations

import functools
import os
from typing import Any

from rllm_gym.envs.webarena.tasks import need
from rllm_gym.errors import ConfigError, EnvError

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4-1106-preview"  # WebArena, evaluation_harness/helper_functions.py
_RETRY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})

_GRADE = """\
Grade an answer against a reference. They agree if they mean the same, however they are worded.
"N/A" means that the task cannot be done.
Question: {question}
Reference: {reference}
Answer: {answer}
End with one verdict: correct, partially correct, or incorrect."""

_COMPARE = """\
This task cannot be done: {question}
The reason is: {reference}
Somebody who tried it gave this reason: {answer}
Does the given reason say or imply the true one? Reply with one word: same, or different."""


class Judge:
    """Ask a language model for verdicts.

        POST url/chat/completions  {"model": ..., "messages": [...], "temperature": 0, "max_tokens": 768}

    Connection failures and the statuses 408, 409, 425, 429 and 5xx are tried again, waiting twice as long each time.

    Source: WebArena (Zhou et al. 2023, arXiv:2307.13854), evaluation_harness/helper_functions.py: the two questions,
        the verdicts and how they are read, model and sampling. Differs: the questions are worded anew.

    Args:
        url: of the endpoint, up to "/v1"; None is `OPENAI_BASE_URL`, or else OpenAI's.
        model: the endpoint's name of the model.
        timeout_s: for each attempt to connect and to read.
        num_attempts: attempts in all.
        first_wait_s: between the first and the second attempt.

    The key, if the endpoint needs one, is read from `OPENAI_API_KEY`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        model: str = DEFAULT_MODEL,
        timeout_s: float = 60.0,
        num_attempts: int = 4,
        first_wait_s: float = 1.0,
    ) -> None:
        self.url = (url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL).rstrip("/")
        self.model = model
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"WebArenaEnv: the judge's url must be like http://127.0.0.1:8000/v1; got {self.url!r}. Correct it."
            )
        self._requests: Any = need("requests")
        tenacity: Any = need("tenacity")
        self._timeout_s = timeout_s
        self._session = self._requests.Session()
        if key := os.environ.get("OPENAI_API_KEY"):
            # As an authentication and not as a header: one that ~/.netrc has for this host would replace the header.
            self._session.auth = functools.partial(_sign, key)
        self._retry = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(num_attempts),
            wait=tenacity.wait_exponential(multiplier=first_wait_s, max=30),  # no jitter: it draws from `random`
            retry=tenacity.retry_if_exception(self._is_passing),
            reraise=True,
        )

    def is_correct(self, question: str, reference: str, answer: str) -> bool:
        """Say whether an answer means what the reference says.

        Raises:
            EnvError: the endpoint cannot be reached, refuses, or gives no verdict.
        """
        verdict = self._ask(_GRADE.format(question=question, reference=reference, answer=answer))
        if "partially correct" in verdict or "incorrect" in verdict:
            return False
        if "correct" in verdict:
            return True
        raise self._no_verdict("correct, partially correct or incorrect", verdict)

    def is_same_reason(self, question: str, reference: str, answer: str) -> bool:
        """Say whether an answer gives the reason why a task cannot be done.

        Raises:
            EnvError: the endpoint cannot be reached, refuses, or gives no verdict.
        """
        verdict = self._ask(_COMPARE.format(question=question, reference=reference, answer=answer))
        if "different" in verdict:
            return False
        if "same" in verdict:
            return True
        raise self._no_verdict("same or different", verdict)

    def _ask(self, text: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 768,
        }
        try:
            response = self._retry(self._post, body)
        except self._requests.RequestException as e:
            raise EnvError(
                f"{self._who}: the judge must answer; got {type(e).__name__}: {e}. Check judge_url and OPENAI_API_KEY."
            ) from e
        try:
            return str(response.json()["choices"][0]["message"]["content"]).lower()
        except (ValueError, KeyError, IndexError, TypeError) as e:
            raise EnvError(
                f"{self._who}: the endpoint must speak OpenAI's protocol; got {response.text[:80]!r}. Check judge_url."
            ) from e

    def _post(self, body: dict[str, Any]) -> Any:
        url = f"{self.url}/chat/completions"
        response = self._session.post(url, json=body, timeout=self._timeout_s, allow_redirects=False)
        response.raise_for_status()
        return response

    def _is_passing(self, error: BaseException) -> bool:
        if isinstance(error, self._requests.HTTPError):
            return error.response.status_code in _RETRY_STATUSES
        exceptions = self._requests.exceptions
        return isinstance(error, exceptions.ConnectionError | exceptions.Timeout | exceptions.ChunkedEncodingError)

    def _no_verdict(self, known: str, got: str) -> EnvError:
        return EnvError(f"{self._who}: a verdict must be {known}; got {got[:80]!r}. Choose another judge_model.")

    @property
    def _who(self) -> str:
        return f"Judge({self.model} at {self.url})"


def _sign(key: str, request: Any) -> Any:
    request.headers["Authorization"] = f"Bearer {key}"
    return request


def load_judge(url: str | None, model: str) -> Judge:
    """Return this process's judge for these settings."""
    # A forked process must not use its parent's connections.
    return _load(url, model, os.getpid())


@functools.cache
def _load(url: str | None, model: str, pid: int) -> Judge:
    return Judge(url, model=model)
