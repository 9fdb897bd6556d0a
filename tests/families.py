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
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_IMAGES = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 14,
    "num_position_embeddings": 16,
}
LINEAR = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
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
    "Gemma4Text": GEMMA | {"vocab_size_per_layer_input": 400, "hidden_size_per_layer_input": 32},
    "VaultGemma": GEMMA,
    "Glm": {"head_dim": 32},
    "SeedOss": {"head_dim": 32},
    "HunYuanDenseV1": {"head_dim": 32},
    "Nemotron": {},
    "Arcee": {},
    "Helium": {"head_dim": 32},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "Olmo2": {},
    "Olmo3": {},
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
    "FlexOlmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "HunYuanMoEV1": {"head_dim": 32, "num_experts": 4, "moe_topk": 2},
    "Ernie4_5_Moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 1},
    "GraniteMoe": LOCAL_EXPERTS | {"logits_scaling": 3.0},
    "Glm4Moe": EXPERTS
    | {"head_dim": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "GptOss": LOCAL_EXPERTS
    | {"head_dim": 32, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32},
    # linear attention in three layers of four
    "Qwen3Next": EXPERTS | LINEAR | {"shared_expert_intermediate_size": 32},
    # nested: the text part of models with images
    "Gemma3": {"text_config": SIZES | GEMMA | {"query_pre_attn_scalar": 32}, "vision_config": IMAGES}
    | {"boi_token_index": 390, "eoi_token_index": 391, "image_token_index": 392, "mm_tokens_per_image": 4},
    "Qwen3_5": {"text_config": SIZES | LINEAR, "vision_config": QWEN_IMAGES}
    | {"image_token_id": 390, "video_token_id": 391, "vision_start_token_id": 392, "vision_end_token_id": 393},
}
BFLOAT16_ALONE = ("Qwen3Next", "Qwen3_5")  # vLLM's linear attention on a CPU


def make_family(family: str, folder: Path, **sizes: Any) -> Path:
    """Save a random model as transformers saves it; return its folder."""
    torch.manual_seed(0)
    of_family = FAMILIES.get(family, {})
    is_nested = "text_config" in of_family
    config = getattr(transformers, f"{family}Config")(**{**({} if is_nested else SIZES), **of_family, **sizes})
    auto = transformers.AutoModelForImageTextToText if is_nested else transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    return folder
