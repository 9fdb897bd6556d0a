"""Looks at a model's folder before anything is started: whether it is whole, and of a kind that can be trained."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rllm_gym.causal_lm import load_causal_lm
from rllm_gym.errors import ChatTemplateError, ConfigError
from rllm_gym.strangers_files import MAX_JSON_BYTES, open_regular, read_object
from rllm_gym.tokenizer_files import read_tokenizer

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# How safetensors names the numbers of quantized weights; of other tensors integers may be indices or masks.
_SHORT = ("F4", "F6", "F8", "I4", "I8", "I32", "U4", "U8", "U32")
_PIECE = 2**16  # bytes that are read at once


def model_fault(folder: Path, *, trust_remote_code: bool) -> str | None:
    """Return why the model in a folder cannot be trained, in a line; None where nothing speaks against it."""
    return next((fault for _, fault in look_at_model(folder, trust_remote_code=trust_remote_code) if fault), None)


def look_at_model(folder: Path, *, trust_remote_code: bool) -> Iterator[tuple[str, str | None]]:
    """Yield the checks of a model's folder: the check's name, and the fault in a line, or None.

    Where the kind of model or its quantization is at fault, nothing follows.
    """
    try:
        config = read_object(folder / "config.json")
    except (OSError, ValueError) as error:
        yield "configuration", f"base_model: {folder / 'config.json'} is no JSON ({error}). Download the model again."
        return
    try:
        fault = _kind_fault(folder, config, trust_remote_code)
        yield "kind of model", fault
        if fault is not None:
            return
        files_fault = _weights_fault(folder)
        fault = _quantization_fault(folder, config, has_files=files_fault is None)
        yield "quantization", fault
        if fault is not None:
            return
        yield "files of weights", files_fault
        tokens_fault = _tokens_fault(folder, config)
    except (AttributeError, KeyError, TypeError) as error:  # an entry of another shape
        yield "configuration", f"base_model: the JSON files in {folder} are no model's ({error}). Download it again."
        return
    yield "embedding", tokens_fault
    is_own = "auto_map" in config  # and its code is run by none who only looks
    if tokens_fault is None and not is_own:
        fault = _build_fault(folder, with_weights=files_fault is None)
        if fault is not None:
            yield "configuration", fault


def _kind_fault(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> str | None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    )

    half_encoders = {
        *MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        *MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    }

    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING_NAMES:
        if "AutoModelForCausalLM" not in config.get("auto_map", {}):
            return (
                f"base_model: must be of a kind that transformers knows; got model_type {kind!r} in {folder}. Choose "
                "another one, or install a transformers that knows it."
            )
        if not trust_remote_code:
            return (
                f"base_model: {folder} brings code of its own (auto_map), which would run in every process. Read "
                "it, and set trust_remote_code: true."
            )
    elif kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (kind in half_encoders and not config.get("is_decoder")):
        return (
            f"base_model: must be a causal language model; got a {kind} ({folder}), which is none. Choose another one."
        )
    return None


def _build_fault(folder: Path, *, with_weights: bool) -> str | None:
    """Return why transformers cannot build the model, or None; of its weights, names and shapes alone are read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        if with_weights and any(folder.glob("*.safetensors")):
            load_causal_lm(folder, device_map="meta")
        else:
            with torch.device("meta"):
                AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except ConfigError as error:
        return str(error)
    except Exception as error:  # each kind of model has a code of its own
        text = " ".join(str(error).split())[:200]
        return (
            f"base_model: transformers must be able to build the model of {folder / 'config.json'}; got "
            f"{type(error).__name__}: {text}. Download it again, or choose another one."
        )
    return None


def _quantization_fault(folder: Path, config: dict[str, Any], *, has_files: bool) -> str | None:
    keys = ("quantization_config", "compression_config", "quantization")  # compressed-tensors' former one; MLX's
    parts = (config, config.get("text_config") or {})
    found = [part[key] for part in parts for key in keys if part.get(key)]
    method = found[0].get("quant_method", "some method") if found else None
    if method is None and has_files:
        files = filter(is_whole, folder.glob("*.safetensors"))  # beside the model's, others may lie there
        names = ((of["dtype"], name) for file in files for name, of in _read_head(file)[0].items())
        short = [dtype for dtype, name in names if name.endswith("weight") and dtype.startswith(_SHORT)]
        method = short[0] if short else None
    if (
        method is None
        and not any(map(any, map(folder.glob, ("*.safetensors", "*.bin"))))
        and any(folder.glob("*.gguf"))
    ):
        method = "GGUF"
    if method is None:
        return None
    return (
        f"base_model: must hold unquantized weights, which are trained and synced; got {folder}, quantized "
        f"({method}). Dequantize it, or choose the model that it was made from."
    )


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
        if not files and (folder / "adapter_config.json").is_file():
            return f"base_model: {folder} is a LoRA adapter, no model. Merge it into its base model first."
        if not files and not any(folder.glob("*.gguf")):
            return f"base_model: {folder} has no weights (model.safetensors). {again}"
    if files and (folder / "adapter_config.json").is_file():
        return (
            f"base_model: {folder} holds a LoRA adapter beside the model (adapter_config.json), which transformers "
            "would add to it. Move the adapter's files to a folder of their own, or merge them into the model."
        )
    for file in (folder / name for name in files):
        if not is_whole(file):
            return f"base_model: {file} is torn: it ends before its weights do. {again}"
        if _ends_in_zeros(file):
            return f"base_model: {file} ends in zeros, as a download does that was cut. {again}"
    return None


def is_whole(file: Path) -> bool:
    """Return whether a file of weights was written to its end, by its head (safetensors) or its zip (torch)."""
    if file.suffix != ".safetensors":
        with open_regular(file) as opened:
            head = opened.read(2)
        return zipfile.is_zipfile(file) if head == b"PK" else head[:1] == b"\x80"  # a pickle, before torch 1.6
    try:
        tensors, start = _read_head(file)
        spans = [(begin, end) for begin, end in (of["data_offsets"] for of in tensors.values())]
        last = max((end for _, end in spans), default=0)
        return all(0 <= begin <= end for begin, end in spans) and start + last == os.path.getsize(file)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _ends_in_zeros(file: Path) -> bool:
    """Return whether the last matrix of a whole safetensors file holds nothing but zeros."""
    if file.suffix != ".safetensors":
        return False
    tensors, start = _read_head(file)
    begin, end = max((of["data_offsets"] for of in tensors.values() if len(of["shape"]) > 1), default=(0, 0))
    with open_regular(file) as opened:
        opened.seek(start + begin)
        pieces = (opened.read(min(_PIECE, end - at)) for at in range(begin, end, _PIECE))
        return begin < end and not any(piece.strip(b"\0") for piece in pieces)  # mostly the first piece says it


def _read_head(file: Path) -> tuple[dict[str, Any], int]:
    """Return dtype, shape and place of each tensor of a safetensors file, and the byte at which the tensors begin.

    Raises:
        ValueError: there is none.
    """
    with open_regular(file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 0 < length <= os.path.getsize(file) - 8:
            raise ValueError("the file ends within its head")
        tensors: dict[str, Any] = json.loads(opened.read(min(length, MAX_JSON_BYTES)))
    return {name: of for name, of in tensors.items() if name != "__metadata__"}, 8 + length


class TokensBeyond(NamedTuple):
    """Tokens without a row of the embedding, by whether a template, a policy or an environment ever writes them."""

    written: list[str]
    never_written: list[str]


def find_tokens_beyond(folder: Path, rows: int | None) -> TokensBeyond:
    """Return a tokenizer's tokens whose numbers are not below the rows of the embedding."""
    try:
        tokenizer = read_tokenizer(folder)
    except ChatTemplateError:  # of which others speak
        return TokensBeyond([], [])
    added = tokenizer.backend.get_added_tokens_decoder()
    ends = {tokenizer.special_tokens.get(name) for name in ("bos_token", "eos_token")}
    found = TokensBeyond([], [])
    for token, number in tokenizer.backend.get_vocab(with_added_tokens=True).items():
        if rows is not None and number >= rows:
            # As Gemma 3's place of an image in models without images; what spells it is encoded as characters.
            is_named = token in ends or token in (tokenizer.chat_template or "")
            is_never = number in added and added[number].special and not is_named
            (found.never_written if is_never else found.written).append(token)
    return found


def _tokens_fault(folder: Path, config: dict[str, Any]) -> str | None:
    rows = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    try:
        beyond = find_tokens_beyond(folder, rows).written
    except ConfigError as error:
        return f"base_model: {error}"
    if not beyond:
        return None
    return (
        f"base_model: every token must have a row of the embedding, which has {rows}; got {beyond[0]!r} beyond it "
        f"in {folder}. Resize the embedding (`resize_token_embeddings`), or remove the token."
    )
