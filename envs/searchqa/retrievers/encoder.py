"""Texts to vectors: a Hugging Face encoder with mean pooling, as Search-R1 has it."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rllm_gym.errors import ConfigError, MachineError
from rllm_gym.models import resolve_base_model

if TYPE_CHECKING:
    import torch

MAX_TOKENS = 256  # Search-R1's retrieval server
TEXTS_PER_BATCH = 64
# What E5 was trained with: Wang et al. 2022, arXiv:2212.03533.
E5_PREFIXES = ("query: ", "passage: ")
_E5 = re.compile(r"(?<![a-z0-9])e5(?![a-z0-9])")  # a word of its own: a snapshot's hash may have these letters, too

Vectors = npt.NDArray[np.float32]  # shape [N, D], of length 1, so that the inner product is the cosine


class Encoder:
    """Texts to vectors of length 1: the mean of the last hidden states over a text's tokens, normalised.

    Source: Jin et al. 2025, arXiv:2503.09516 (search_r1/search/retrieval_server.py).

    Args:
        name: a Hugging Face model, by folder or name; those with the word "e5" in it get E5's prefixes.
        device: where it runs; None is the GPU if there is one.
        query_prefix: what stands before each query instead; "" is nothing.

    Raises:
        ConfigError: no such model.
    """

    def __init__(self, name: str, *, device: str | None = None, query_prefix: str | None = None) -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ModuleNotFoundError as e:
            raise MachineError(
                f'SearchQA-v0: the dense retriever needs {e.name}: pip install "rllm-gym[train]".'
            ) from e

        try:
            path = resolve_base_model(name)
        except ConfigError as e:
            raise ConfigError(str(e).replace("base_model:", "encoder:", 1)) from e
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise MachineError(f"SearchQAEnv: device must be one that torch has; got {device!r}. Set device: cpu.")
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModel.from_pretrained(path, dtype=torch.float32).to(self.device).eval()
        self.dim = int(self._model.config.hidden_size)
        prefixes = E5_PREFIXES if is_e5(name) else ("", "")
        self.query_prefix = prefixes[0] if query_prefix is None else query_prefix
        self._passage_prefix = prefixes[1]
        self._lock = threading.Lock()  # a fast tokenizer that pads and cuts serves one thread at a time

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        return self._encode([self.query_prefix + query for query in queries])

    def encode_passages(self, passages: Sequence[str]) -> Vectors:
        return self._encode([self._passage_prefix + passage for passage in passages])

    def _encode(self, texts: list[str]) -> Vectors:
        import torch

        batches = [texts[start : start + TEXTS_PER_BATCH] for start in range(0, len(texts), TEXTS_PER_BATCH)]
        with self._lock, torch.inference_mode():
            return np.concatenate([self._encode_batch(batch) for batch in batches] or [np.zeros((0, self.dim), "f4")])

    def _encode_batch(self, texts: list[str]) -> Vectors:
        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        inputs = inputs.to(self.device)
        hidden = self._model(**inputs).last_hidden_state
        return _mean_direction(hidden, inputs["attention_mask"]).cpu().numpy()


def is_e5(name: str) -> bool:
    """Return whether an encoder's name or folder has the word "e5"."""
    return _E5.search(name.lower()) is not None


def _mean_direction(hidden_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens of each text, scaled to length 1; the sum has the same direction."""
    import torch

    return torch.nn.functional.normalize((hidden_BTD * mask_BT[..., None]).sum(1), dim=-1)
