"""The size of vLLM's key-value cache, computed from the model's configuration, against an episode and the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple


class Cache(NamedTuple):
    """The key-value cache of one sampler; `keeps_every_token` in every layer, so that a token's size is exact."""

    num_bytes: int
    bytes_per_token: int
    keeps_every_token: bool

    @property
    def num_tokens(self) -> int:
        return self.num_bytes // self.bytes_per_token


def machine_bytes() -> int:
    """Return this machine's memory, or what the container may have of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    texts = [limit.read_text().strip() for limit in limits if limit.is_file()]
    return min([total, *(int(text) for text in texts if text.isdigit())])


def gpu_bytes() -> int | None:
    """Return the memory of the first GPU; None without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


def measure_cache(config: Any, model: str) -> Cache:
    """Return the size of a sampler's cache.

    Args:
        model: a folder.
    """
    hf = _text_config(config, model)
    num_bytes = config.engine_options.get("kv_cache_memory_bytes")
    if num_bytes is None:
        num_bytes = _default_cache(config, model, gpu_bytes())
    return Cache(int(num_bytes), _bytes_per_token(hf, config), _keeps_every_token(hf))


def episode_bytes(config: Any, model: str) -> int:
    """Return the key-value cache of one episode of `max_model_len`; an upper bound where some is shared."""
    return config.max_model_len * _bytes_per_token(_text_config(config, model), config)


def room_fault(cache: Cache, config: Any) -> str | None:
    """Return the fault of a cache too small for one episode of `max_model_len`; None where it fits."""
    if cache.num_tokens >= config.max_model_len or not cache.keeps_every_token:
        return None
    return (
        f"engine_options: the key-value cache must hold an episode of max_model_len {config.max_model_len}, "
        f"{gib(config.max_model_len * cache.bytes_per_token)}; got {gib(cache.num_bytes)} for {cache.num_tokens:,} "
        "tokens. Raise kv_cache_memory_bytes or gpu_memory_utilization, or lower max_model_len."
    )


def memory_fault(cache: Cache, config: Any) -> str | None:
    """Return the fault of caches beyond this machine's memory; None where they fit, or are on a GPU."""
    if gpu_bytes() is not None or cache.num_bytes * config.num_env_runners <= machine_bytes():
        return None
    return (
        f"engine_options: this machine must hold the key-value caches; got {config.num_env_runners} of "
        f"{gib(cache.num_bytes)}, and it has {gib(machine_bytes())}. Lower kv_cache_memory_bytes or num_env_runners."
    )


def describe_cache(cache: Cache, config: Any) -> str:
    """Return a line on how many tokens and episodes a cache holds."""
    episodes = cache.num_tokens / config.max_model_len
    size = gib(cache.num_bytes)
    return f"key-value cache: {size} for {cache.num_tokens:,} tokens, {episodes:,.1f} episodes of max_model_len"


def _text_config(config: Any, model: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model, trust_remote_code=config.trust_remote_code).get_text_config()


def _bytes_per_token(hf: Any, config: Any) -> int:
    """Return the bytes of one token's keys and values over all layers; an upper bound where some are shared."""
    cache_dtype = str(config.engine_options.get("kv_cache_dtype", "auto"))
    item = 1 if "8" in cache_dtype else 4 if cache_dtype == "auto" and config.weight_dtype == "float32" else 2
    return 2 * item * sum(map(_keys_per_token, hf.per_layer_config))


def _keys_per_token(layer: Any) -> int:
    """Return how many numbers are a token's keys in a layer; in Gemma 4 layers differ."""
    num_heads = layer.num_attention_heads
    num_kv_heads: int = getattr(layer, "num_key_value_heads", None) or num_heads
    return num_kv_heads * (getattr(layer, "head_dim", None) or layer.hidden_size // num_heads)


def _keeps_every_token(hf: Any) -> bool:
    """Return whether every layer caches every token in full, so that the bound is what is needed."""
    kinds = set(getattr(hf, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and not hasattr(hf, "kv_lora_rank")


def _default_cache(config: Any, model: str, gpu: int | None) -> int:
    from rllm_gym.rollout.engines.vllm import DEFAULT_KV_CACHE_BYTES, EngineArgs

    if gpu is None:
        return DEFAULT_KV_CACHE_BYTES
    share = config.engine_options.get("gpu_memory_utilization", EngineArgs.gpu_memory_utilization)
    num_gpus = config.engine_options.get("tensor_parallel_size", 1)
    return int(share * gpu * num_gpus) - count_parameters(model, config) * bytes_per_weight(config)


def bytes_per_weight(config: Any) -> int:
    return 4 if config.weight_dtype == "float32" else 2


def count_parameters(model: str, config: Any) -> int:
    """Return the number of a model's parameters; no weights are loaded."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        trusts = {"trust_remote_code": config.trust_remote_code}
        lm = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model, **trusts), **trusts)
    return sum(parameter.numel() for parameter in lm.parameters())


def gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB"
