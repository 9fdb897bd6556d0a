"""Rotary frequencies that follow the longest position of a pass (longrope, dynamic NTK) are fixed."""

from __future__ import annotations

from typing import Any


def fix_rotary_frequencies(lm: Any, max_model_len: int | None = None) -> None:
    """Give a model whose rotary frequencies follow the longest position of each pass those that vLLM gives it always.

    Else a sequence's log-probabilities would depend on what is read beside it (longrope: Phi 3.5 and 4; dynamic NTK).

    Args:
        max_model_len: tokens of a sequence at most: of longrope the long factors are for more than the model's original
            length, and the short ones for less. None is all that the model can read.
    """
    for layer in lm.modules():
        kinds = getattr(layer, "rope_type", None)
        if kinds is None or not hasattr(layer, "config"):
            continue
        # What moves by itself is named in `rope_type`; what has been fixed may be fixed anew for another length.
        moving = vars(layer).setdefault("moving_rope_type", kinds)
        by_layer_type = moving if isinstance(moving, dict) else {None: moving}
        for layer_type, kind in by_layer_type.items():
            prefix = "" if layer_type is None else f"{layer_type}_"
            inv_freq = getattr(layer, f"{prefix}original_inv_freq", None)
            if kind == "longrope":
                inv_freq = _longrope_frequencies(layer, layer_type, max_model_len)
            if _moves(kind) and inv_freq is not None:
                device = getattr(layer, f"{prefix}inv_freq").device
                layer.register_buffer(f"{prefix}inv_freq", inv_freq.to(device), persistent=False)
        fixed = {of: "default" if _moves(kind) else kind for of, kind in by_layer_type.items()}
        layer.rope_type = fixed if isinstance(moving, dict) else fixed[None]


def _moves(rope_type: str) -> bool:
    return rope_type == "longrope" or "dynamic" in rope_type


def _longrope_frequencies(layer: Any, layer_type: str | None, max_model_len: int | None) -> Any:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = layer.config
    settings = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    original = settings["original_max_position_embeddings"]
    is_long = (max_model_len or config.max_position_embeddings) > original
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](
        config, "cpu", seq_len=original + 1 if is_long else original, layer_type=layer_type
    )
    return frequencies
