"""The judge: a language model behind an OpenAI-compatible endpoint that compares an answer with its reference."""

from __future__ import annotations

import functools
import os

from rllm_gym.envs.webarena.tasks import need
from rllm_gym.errors import ConfigError, EnvError

DEFAULT_MODEL = "gpt-4-1106-preview"  # WebArena, evaluation_harness/helper_functions.py

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

    What is tried again, and how long is waited: see `rllm_gym.chat_endpoint.ChatEndpoint`.

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
        need("requests"), need("tenacity")
        from rllm_gym.chat_endpoint import ChatEndpoint, EndpointError

        self.model = model
        self._error = EndpointError
        try:
            self._endpoint = ChatEndpoint(
                url,
                key=os.environ.get("OPENAI_API_KEY"),
                timeout_s=timeout_s,
                num_attempts=num_attempts,
                first_wait_s=first_wait_s,
            )
        except ConfigError as error:
            raise ConfigError(f"WebArenaEnv: judge_url: {error}") from error

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
            return self._endpoint.complete(body).text.lower()
        except self._error as error:
            raise EnvError(
                f"{self._who}: the judge must answer; got {error}. Check judge_url and OPENAI_API_KEY."
            ) from error

    def _no_verdict(self, known: str, got: str) -> EnvError:
        return EnvError(f"{self._who}: a verdict must be {known}; got {got[:80]!r}. Choose another judge_model.")

    @property
    def _who(self) -> str:
        return f"Judge({self.model} at {self._endpoint.url})"


def load_judge(url: str | None, model: str) -> Judge:
    """Return this process's judge for these settings."""
    # A forked process must not use its parent's connections.
    return _load(url, model, os.getpid())


@functools.cache
def _load(url: str | None, model: str, pid: int) -> Judge:
    return Judge(url, model=model)
