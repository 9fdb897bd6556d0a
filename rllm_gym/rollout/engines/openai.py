"""An engine that asks an OpenAI-compatible endpoint: what a model behind an API does is played, counted and compared.

The endpoint gets the conversation as messages and answers with text. Tokens are those of the run's own tokenizer: the
answer's text is encoded with it, so that environments and records are those of any other engine.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from rllm_gym.chat_endpoint import Answer, ChatEndpoint, EndpointError
from rllm_gym.errors import ConfigError
from rllm_gym.rollout.engines import check_options
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import Completion, CompletionRequest

DEFAULT_KEY = "OPENAI_API_KEY"
_HOPELESS = frozenset({401, 403, 404})  # no other request would fare better
_POLL_S = 0.02


class OpenAIEngine:
    """Samples from an endpoint; for evaluation only, since it takes no weights. Log-probabilities are 0.

    A request that fails, after its retries, fails its episode. One that is refused for its key or model ends the run.

    Args:
        model: the folder of the tokenizer that makes tokens of the texts.
        max_num_seqs: requests at the same time.
        options: see `OPENAI_OPTIONS`.

    Attributes:
        usage: what the endpoint has counted: `requests`, `prompt_tokens`, `completion_tokens`, and with a `price`
            `cost`. A caller may take from it.
    """

    def __init__(
        self, model: str, *, dtype: str, max_model_len: int, max_num_seqs: int, options: Mapping[str, Any]
    ) -> None:
        check_options("openai", options)
        key_env = options.get("api_key_env", DEFAULT_KEY)
        if "api_key_env" in options and key_env not in os.environ:
            raise ConfigError(f"engine_options: api_key_env must name a set environment variable; got {key_env!r}.")
        self.policy_version = 0
        self.max_context_tokens = max_model_len
        self.usage: defaultdict[str, float] = defaultdict(float)
        self._chat = ChatTokenizer(model)
        self._options = options
        self._endpoint = ChatEndpoint(
            options.get("base_url"),
            key=os.environ.get(key_env),
            timeout_s=options.get("timeout_s", 120.0),
            num_attempts=options.get("num_attempts", 6),
            num_connections=max_num_seqs,
        )
        self._pool = ThreadPoolExecutor(max_num_seqs, thread_name_prefix="openai")
        self._running: dict[str, tuple[CompletionRequest, Future[Answer]]] = {}
        self._lock = threading.Lock()
        self._next_start_s = 0.0

    def submit(self, request: CompletionRequest) -> None:
        self._running[request.request_id] = (request, self._pool.submit(self._ask, request))

    def step(self) -> list[Completion]:
        """Return the completions that have come, in the order of submission.

        Raises:
            ConfigError: the endpoint refuses the key, or knows no such model or url.
        """
        wait([future for _, future in self._running.values()], timeout=_POLL_S, return_when=FIRST_COMPLETED)
        finished = [request for request, future in self._running.values() if future.done()]
        return [self._completion(request, self._running.pop(request.request_id)[1]) for request in finished]

    def abort(self, request_id: str) -> None:
        if request_id in self._running:
            self._running.pop(request_id)[1].cancel()

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        """Note the version alone: the weights are the endpoint's."""
        self.policy_version = policy_version

    def reset_prefix_cache(self) -> None:
        pass

    def close(self) -> None:
        self._running.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._endpoint.close()

    def _ask(self, request: CompletionRequest) -> Answer:
        """Ask when the rate allows it; in a thread of its own."""
        self._await_turn()
        params = request.params
        body = {
            "model": self._options["model"],
            "messages": list(request.messages),
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": request.seed,
            **({"top_k": params.top_k} if params.top_k else {}),
            **self._options.get("request", {}),
        }
        answer = self._endpoint.complete({name: value for name, value in body.items() if value is not None})
        price = self._options.get("price", {})
        with self._lock:
            self.usage["requests"] += 1
            self.usage["prompt_tokens"] += answer.num_prompt_tokens
            self.usage["completion_tokens"] += answer.num_completion_tokens
            if price:
                self.usage["cost"] += price["prompt"] * answer.num_prompt_tokens / 1e6
                self.usage["cost"] += price["completion"] * answer.num_completion_tokens / 1e6
        return answer

    def _await_turn(self) -> None:
        per_minute = self._options.get("requests_per_minute")
        if not per_minute:
            return
        with self._lock:
            start_s = max(time.monotonic(), self._next_start_s)
            self._next_start_s = start_s + 60.0 / per_minute
        time.sleep(max(0.0, start_s - time.monotonic()))

    def _completion(self, request: CompletionRequest, future: Future[Answer]) -> Completion:
        empty = np.zeros(0, np.int64), np.zeros(0, np.float32)
        try:
            answer = future.result()
        except EndpointError as error:
            who = f"engine: openai ({self._options['model']} at {self._endpoint.url})"
            if error.status in _HOPELESS:
                raise ConfigError(f"{who} refuses: {error}. Check base_url, model and api_key_env.") from error
            return Completion(request.request_id, *empty, error=f"{who} did not answer: {error}")
        *ids, _ = self._chat.encode_action(answer.text)
        if not answer.is_cut or not ids:
            ids.append(request.stop_ids[0])
        return Completion(request.request_id, np.asarray(ids, np.int64), np.zeros(len(ids), np.float32))
