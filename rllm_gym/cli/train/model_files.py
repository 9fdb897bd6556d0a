"""Looks at a model's folder before anything is started: whether it is whole, and of a kind that can be trained."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllm_gym.strangers_files import MAX_JSON_BYTES, open_regular, read_object

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def model_fault(folder: Path, *, trust_remote_code: bool) -> str | None:
    """Return why the model in a folder cannot be trained, in a line; None where nothing speaks against it."""
    return next((fault for _, fault in look_at_model(folder, trust_remote_code=trust_remote_code) if fault), None)


def look_at_model(folder: Path, *, trust_remote_code: bool) -> Iterator[tuple[str, str | None]]:
    """Yield the checks of a model's folder: the check's name, and the fault in a line, or None.

    Where the configuration or the kind of model is at fault, nothing follows.
    """
    try:
        config = read_object(folder / "config.json")
    except (OSError, ValueError) as error:
        yield "configuration", f"base_model: {folder / 'config.json'} is no JSON ({error}). Download the model again."
        return
    try:
        fault = _kind_fault(folder, config, trust_remote_code)
        yield "kind of model", fault
        if fault is None:
            yield "quantization", _quantization_fault(folder, config)
            yield "files of weights", _weights_fault(folder)
            yield "embedding", _tokens_fault(folder, config)
    except (AttributeError, KeyError, TypeError) as error:  # an entry of another shape
        yield "shape of files", f"base_model: the JSON files in {folder} are no model's ({error}). Download it again."


def _kind_fault(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> str | None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING_NAMES:
        if "AutoModelForCausalLM" not in config.get("auto_map", {}):
            return f"base_model: must be of a kind that transformers knows; got model_type {kind!r} in {folder}."
        if not trust_remote_code:
            return (
                f"base_model: {folder} brings code of its own (auto_map), which would run in every process. Read "
                "it, and set trust_remote_code: true."
            )
    elif kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (
        kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder")
    ):
        return (
            f"base_model: must be a causal language model; got a {kind} ({folder}), which is none. Choose another one."
        )
    return None


def _quantization_fault(folder: Path, config: dict[str, Any]) -> str | None:
    if quantization := config.get("quantization_config") or config.get("text_config", {}).get("quantization_config"):
        method = quantization.get("quant_method", "some method")
        return (
            f"base_model: must hold unquantized weights, which are trained and synced; got {folder}, quantized "
            f"({method}). Dequantize it, or choose the model that it was made from."
        )
    return None


def _weights_fault(folder: Path) -> str | None:
    again = "Download the model again."
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                files = sorted(set(map(str, read_object(index)["weight_map"].values())))
            except (OSError, ValueError, KeyError, AttributeError):
                return f"base_model: {index} is no index of weights. {again}"
            missing = [file for file in files if not (folder / file).is_file()]
            if missing:
                few = f"{len(missing)} of {len(files)} files of weights"
                return f"base_model: {few} are missing, first {folder / missing[0]}. {again}"
            break
    else:
        files = [name for name in _WEIGHTS if (folder / name).is_file()][:1]
        if not files and not any(folder.glob("*.gguf")):
            return f"base_model: {folder} has no weights (model.safetensors). {again}"
    torn = [folder / file for file in files if file.endswith(".safetensors") and not is_whole(folder / file)]
    return f"base_model: {torn[0]} is torn: its length is not what its head says. {again}" if torn else None


def is_whole(file: Path) -> bool:
    """Return whether a safetensors file is as long as its head says."""
    size = os.path.getsize(file)
    with open_regular(file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 0 < length <= size - 8:
            return False
        try:
            tensors = json.loads(opened.read(min(length, MAX_JSON_BYTES)))
            ends = [of["data_offsets"][1] for name, of in tensors.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
    return 8 + length + max(ends, default=0) == size


def _tokens_fault(folder: Path, config: dict[str, Any]) -> str | None:
    rows = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    file = folder / "tokenizer.json"
    if rows is None or not file.is_file():
        return None
    try:
        tokenizer = read_object(file)
    except (OSError, ValueError) as error:
        return f"base_model: {file} is no JSON ({error}). Download the model again."
    beyond = [of["content"] for of in tokenizer.get("added_tokens", ()) if of["id"] >= rows]
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, dict):
        beyond += [token for token, number in vocabulary.items() if number >= rows]
    if not beyond:
        return None
    return (
        f"base_model: every token must have a row of the embedding, which has {rows}; got {beyond[0]!r} beyond it in "
        f"{file}. Resize the embedding (`resize_token_embeddings`), or remove the token."
    )
