"""An engine with prepared replies: it makes the order and timing of rollouts visible to tests and benchmarks."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllm_gym.importing import import_object
from rllm_gym.rollout.engines import check_options
from rllm_gym.rollout.engines.token_versions import TokenVersions
from rllm_gym.types import Completion, CompletionRequest

LOGP_STEP = 0.125  # the i-th token of every reply has logp -(i + 1) / 8, exact in float32


class ScriptedEngine:
    """Answers from a function of the prompt, or from a list in the order of submission.

    A reply is cut as an engine's would be: after the first stop id, or at `max_new_tokens`. The i-th token's logp is
    `-(i + 1) / 8`.

    Args:
        replies: prompt ids -> reply ids, or the replies one after the other.
        num_steps: prompt ids -> calls of `step` that the request takes, at least 1; default one per token of the reply.
        max_context_tokens: tokens a prompt and its reply may hold.
    """

    def __init__(
        self,
        replies: Callable[[list[int]], Sequence[int]] | Iterable[Sequence[int]],
        *,
        num_steps: Callable[[list[int]], int] | None = None,
        max_context_tokens: int = 4096,
    ):
        self.policy_version = 0
        self.max_context_tokens = max_context_tokens
        self.requests: list[CompletionRequest] = []  # everything that was ever submitted
        self.aborted: list[str] = []
        self.weights: dict[str, Any] = {}
        if callable(replies):
            self._reply = replies
        else:
            remaining = deque(replies)
            self._reply = lambda prompt_ids: remaining.popleft()
        self._num_steps = num_steps
        self._running: list[_Running] = []
        self._versions = TokenVersions()

    def submit(self, request: CompletionRequest) -> None:
        self.requests.append(request)
        ids = list(self._reply(request.prompt_ids))[: request.params.max_new_tokens]
        stop = next((i for i, token in enumerate(ids) if token in request.stop_ids), len(ids))
        ids = ids[: stop + 1]
        steps = len(ids) if self._num_steps is None else self._num_steps(request.prompt_ids)
        self._running.append(_Running(request.request_id, ids, max(1, steps)))

    def step(self) -> list[Completion]:
        for running in self._running:
            running.steps_left -= 1
            running.num_steps += 1
        finished = [running for running in self._running if running.steps_left == 0]
        self._running = [running for running in self._running if running.steps_left > 0]
        return [self._versions.stamp(running.completion(), self.policy_version) for running in finished]

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._versions.forget(request_id)
        self._running = [running for running in self._running if running.request_id != request_id]

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        self.weights = dict(state)
        num_tokens = {running.request_id: running.num_tokens for running in self._running}
        self._versions.weights_change(num_tokens, self.policy_version)
        self.policy_version = policy_version
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        pass

    def close(self) -> None:
        self._running = []


def make_scripted_engine(
    model: str, *, dtype: str, max_model_len: int, max_num_seqs: int, options: Mapping[str, Any]
) -> ScriptedEngine:
    """Return the engine of `engine: scripted`; it takes weights, but no reply depends on them.

    Args:
        options: `replies`: lists of token ids, given one after the other and again from the first; or a function of the
            prompt ids, by itself or as "module:name". `num_steps`: see `ScriptedEngine`.
    """
    check_options("scripted", options)
    replies = options["replies"]
    if isinstance(replies, str):
        replies = import_object("engine_options: replies", replies)
    if not callable(replies):
        in_turn = itertools.cycle(replies)
        replies = lambda prompt_ids: next(in_turn)  # noqa: E731
    return ScriptedEngine(replies, num_steps=options.get("num_steps"), max_context_tokens=max_model_len)


@dataclass
class _Running:
    request_id: str
    token_ids: list[int]
    steps_left: int
    num_steps: int = 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens so far, one after each step."""
        return min(self.num_steps, len(self.token_ids))

    def completion(self) -> Completion:
        logp = -LOGP_STEP * np.arange(1, len(self.token_ids) + 1, dtype=np.float32)
        return Completion(self.request_id, np.asarray(self.token_ids, np.int64), logp)
