"""The reference engine: plain transformers, one key-value cache per request, so that no result depends on the batch."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, DynamicCache, PreTrainedModel

from rllm_gym.causal_lm import load_causal_lm
from rllm_gym.errors import ConfigError
from rllm_gym.models import choose_attention
from rllm_gym.rollout.engines import check_options, check_weight_names
from rllm_gym.rollout.engines.token_versions import TokenVersions
from rllm_gym.rotary import fix_rotary_frequencies
from rllm_gym.types import Completion, CompletionRequest, SamplingParams
from rllm_gym.weights.format import Tensors


class TransformersEngine:
    """Samples with a Hugging Face model, one forward per request and token: slow, simple, and right.

    A request's result depends on its prompt, its seed and the weights alone. There is no prefix cache:
    `num_cached_tokens` is always 0.

    Args:
        model: a causal LM, or the name or folder of one.
        dtype: "float32", "bfloat16" or "float16"; for a name or folder only.
        max_model_len: tokens of a prompt and its completion; default and upper bound: the model's position embeddings.
        max_num_seqs: requests that run at the same time; others wait.
        options: `device`: where to put the model; default: CUDA where there is one, else the CPU. A given model stays
            where it is.
    """

    gives_model_logps = True

    def __init__(
        self,
        model: str | PreTrainedModel,
        *,
        dtype: str = "float32",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        options: Mapping[str, Any] = {},
    ):
        check_options("transformers", options)
        if isinstance(model, str):
            device = options.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
            trusts = {"trust_remote_code": bool(options.get("trust_remote_code"))}
            lm: Any = load_causal_lm(
                model,
                dtype=getattr(torch, dtype),
                attn_implementation=choose_attention(AutoConfig.from_pretrained(model, **trusts)),
                **trusts,
            )
            lm.to(device)
        else:
            lm = model
        self._model = lm.eval()
        # Of a model that reads states, and not what it has read (Mamba), any number.
        num_positions = getattr(lm.config.get_text_config(), "max_position_embeddings", sys.maxsize)
        if max_model_len is not None and max_model_len > num_positions:
            raise ConfigError(
                f"TransformersEngine: max_model_len must be at most max_position_embeddings, {num_positions}; "
                f"got {max_model_len}. Lower it."
            )
        self.max_context_tokens: int = max_model_len or num_positions
        fix_rotary_frequencies(self._model, self.max_context_tokens)
        self.policy_version = 0
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._versions = TokenVersions()

    def submit(self, request: CompletionRequest) -> None:
        num_tokens = len(request.prompt_ids) + request.params.max_new_tokens
        if num_tokens > self.max_context_tokens:
            raise ConfigError(
                f"TransformersEngine: a prompt and max_new_tokens must fit in {self.max_context_tokens} tokens; "
                f"got {num_tokens}. Raise max_model_len or end the episode earlier."
            )
        generator = torch.Generator(self._model.device).manual_seed(request.seed)
        self._waiting.append(_Running(request, generator))

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        while self._waiting and len(self._running) < self._max_num_seqs:
            self._running.append(self._waiting.popleft())
        for running in self._running:
            self._advance(running)
        finished = [running for running in self._running if running.is_finished]
        self._running = [running for running in self._running if not running.is_finished]
        return [self._versions.stamp(running.completion(), self.policy_version) for running in finished]

    def abort(self, request_id: str) -> None:
        self._versions.forget(request_id)
        self._waiting = deque(r for r in self._waiting if r.request.request_id != request_id)
        self._running = [r for r in self._running if r.request.request_id != request_id]

    def load_weights(self, state: Mapping[str, Any], policy_version: int) -> None:
        check_weight_names("TransformersEngine", state, self._model.state_dict())
        self._model.load_state_dict(dict(Tensors(state)))
        num_tokens = {
            running.request.request_id: len(running.token_ids) for running in [*self._waiting, *self._running]
        }
        self._versions.weights_change(num_tokens, self.policy_version)
        self.policy_version = policy_version
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        for running in self._running:
            running.cache = None  # running requests go on with the weights of now, from recomputed keys and values

    def close(self) -> None:
        self._waiting.clear()
        self._running = []

    def _advance(self, running: _Running) -> None:
        ids = running.request.prompt_ids + running.token_ids
        if running.cache is None:
            running.cache = DynamicCache(config=self._model.config)
        new_ids = torch.tensor([ids[running.cache.get_seq_length() :]], device=self._model.device)
        logits = self._model(new_ids, past_key_values=running.cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        logp_V = sampled_logp(logits, running.request.params)
        if running.request.params.temperature == 0:
            token = int(logp_V.argmax())
        else:
            token = int(torch.multinomial(logp_V.exp(), 1, generator=running.generator))
        running.token_ids.append(token)
        running.logp.append(float(logp_V[token]))
        running.is_finished = running.has_ended()


def sampled_logp(logits_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the log-probabilities that are sampled from: temperature, then top-k, then top-p, then renormalised.

    Greedy decoding (temperature 0) reports the model's own log-probabilities, as vLLM does.
    """
    logits_V = logits_V.float()
    if params.temperature == 0:
        return logits_V.log_softmax(-1)
    logits_V = logits_V / params.temperature
    if 0 < params.top_k < len(logits_V):
        smallest_kept = logits_V.topk(params.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < smallest_kept, -torch.inf)
    if params.top_p < 1:
        sorted_p, order = logits_V.softmax(-1).sort(descending=True)
        # A token goes when those above it already make up top_p; the first always stays.
        is_dropped = sorted_p.cumsum(-1) - sorted_p >= params.top_p
        is_dropped[0] = False
        logits_V = logits_V.masked_fill(torch.zeros_like(is_dropped).scatter(0, order, is_dropped), -torch.inf)
    return logits_V.log_softmax(-1)


@dataclass
class _Running:
    request: CompletionRequest
    generator: torch.Generator
    cache: DynamicCache | None = None
    token_ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    is_finished: bool = False

    def has_ended(self) -> bool:
        is_full = len(self.token_ids) >= self.request.params.max_new_tokens
        is_over = self.request.is_over
        return (
            is_full or self.token_ids[-1] in self.request.stop_ids or (is_over is not None and is_over(self.token_ids))
        )

    def completion(self) -> Completion:
        return Completion(
            self.request.request_id, np.asarray(self.token_ids, np.int64), np.asarray(self.logp, np.float32)
        )
