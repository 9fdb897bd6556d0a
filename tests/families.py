"""Tiny random models of many families, to see what trains and what vLLM plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA = {"head_dim": 32, "initializer_range": 0.05}
FAMILIES: dict[str, dict[str, Any]] = {
    # dense
    "Qwen2": {},
    "Qwen3": {"head_dim": 32},
    "Llama": {},
    "Mistral": {},
    "Phi3": {},
    "Glm4": {"head_dim": 32},
    "Gemma": GEMMA,
    "Gemma2": GEMMA | {"query_pre_attn_scalar": 32},
    "Gemma3Text": GEMMA | {"query_pre_attn_scalar": 32},
    "Olmo2": {},
    "SmolLM3": {},
    "Starcoder2": {},
    "StableLm": {},
    "Ernie4_5": {},
    "Exaone4": {},
    "Phi": {},
    # logits that are scaled
    "Cohere": {},
    "Cohere2": {},
    "Granite": {"logits_scaling": 3.0},
    # experts
    "Qwen2Moe": EXPERTS | {"shared_expert_intermediate_size": 64},
    "Qwen3Moe": EXPERTS | {"head_dim": 32},
    "Mixtral": LOCAL_EXPERTS,
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoe": LOCAL_EXPERTS | {"logits_scaling": 3.0},
    "Glm4Moe": EXPERTS
    | {"head_dim": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "GptOss": LOCAL_EXPERTS
    | {"head_dim": 32, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32},
}


def make_family(family: str, folder: Path, **sizes: Any) -> Path:
    """Save a random model as transformers saves it; return its folder."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **FAMILIES.get(family, {}), **sizes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
