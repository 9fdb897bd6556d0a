"""Engines sample completions. Each lives in a file of its own, and only the one that is asked for is imported."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Iterable

from rllm_gym.errors import ConfigError
from rllm_gym.types import Engine

VLLM_FIXED_OPTIONS = {  # what VLLMEngine relies on, or takes as arguments of its own
    "model", "dtype", "max_model_len", "max_num_seqs", "kv_cache_memory_bytes", "skip_tokenizer_init", "logprobs_mode",
}  # fmt: skip
_ENGINES = {
    "scripted": ("rllm_gym.rollout.engines.scripted", "ScriptedEngine"),
    "transformers": ("rllm_gym.rollout.engines.transformers", "TransformersEngine"),
    "vllm": ("rllm_gym.rollout.engines.vllm", "VLLMEngine"),
}


def engine_class(name: str) -> type[Engine]:
    """Return the engine class of this name, importing its file."""
    if name not in _ENGINES:
        raise ConfigError(f"engine: must be one of {sorted(_ENGINES)}; got {name!r}.{did_you_mean(name, _ENGINES)}")
    module, cls = _ENGINES[name]
    return getattr(importlib.import_module(module), cls)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or nothing where none is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def check_weight_names(who: str, names: Collection[str], expected: Collection[str]) -> None:
    """Refuse weights that would leave part of a model as it was: engines skip missing names in silence."""
    if missing := sorted(set(expected) - set(names)):
        raise ConfigError(
            f"{who}: load_weights needs every weight of the model, tied ones too; {len(missing)} missing, first "
            f"{missing[0]!r}. Pass the items of state_dict(), not of named_parameters()."
        )
    if unknown := sorted(set(names) - set(expected)):
        raise ConfigError(
            f"{who}: load_weights takes the model's Hugging Face parameter names; {len(unknown)} unknown, first "
            f"{unknown[0]!r}.{did_you_mean(unknown[0], expected)}"
        )
