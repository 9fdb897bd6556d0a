"""Looks at a model's folder, configuration and chat template: what fits, what is worth a word, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rllm_gym.chat_template import TEMPLATE_DATE
from rllm_gym.cli.train.model_files import find_tokens_beyond, look_at_model
from rllm_gym.cli.train.sampler_memory import (
    bytes_per_weight,
    count_parameters,
    episode_bytes,
    gib,
    gpu_bytes,
    machine_bytes,
)
from rllm_gym.errors import ChatTemplateError, ConfigError
from rllm_gym.models import choose_attention
from rllm_gym.strangers_files import read_object
from rllm_gym.tool_calls import choose_parser

TRAINED_BYTES = 16  # of a trained parameter: its weight and gradient, and the optimizer's float32 copies and moments
LORA = {"r": 16}


@dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    Args:
        check: its name.
        level: `note` is worth a word, and `wrong` does not train.
        text: in a line, with what to do.
        config: options that fit.
    """

    check: str
    level: Literal["ok", "note", "wrong"]
    text: str
    config: Mapping[str, Any] = field(default_factory=dict)


def look_at_folder(folder: Path, config: Any) -> Iterator[Finding]:
    """Yield the findings in a model's folder; neither weights nor an engine are loaded.

    Args:
        config: the algorithm's configuration, with `base_model`.
    """
    for check, fault in look_at_model(folder, trust_remote_code=config.trust_remote_code):
        yield Finding(check, "wrong", fault) if fault else Finding(check, "ok", _of_check(check, folder))
        if fault and check in ("configuration", "kind of model", "quantization", "embedding"):
            return
    yield from _look_at_configuration(folder, config)
    yield from _look_at_template(folder, config)


def _of_check(check: str, folder: Path) -> str:
    if check == "kind of model":
        return f"{read_object(folder / 'config.json')['model_type']}, a causal language model that transformers knows"
    return {
        "quantization": "none",
        "files of weights": "there, and whole",
        "embedding": "has a row for every token that is written or sampled",
    }[check]


def _read_config(folder: Path, config: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code)


# --- configuration ---


def _look_at_configuration(folder: Path, config: Any) -> Iterator[Finding]:
    hf = _read_config(folder, config)
    text = hf.get_text_config()
    num_parameters = count_parameters(str(folder), config)
    written = str(getattr(text, "dtype", None) or "float32").removeprefix("torch.")
    yield Finding(
        "size",
        "ok",
        f"{num_parameters:,} parameters, written in {written}, loaded in {config.weight_dtype}: "
        f"{gib(num_parameters * bytes_per_weight(config))}",
        {"dtype": config.weight_dtype},
    )
    yield _look_at_length(text, config)
    yield from _look_at_memory(folder, config, num_parameters)
    if attention := choose_attention(hf):
        why = "its attention logits are held down"
        yield Finding("attention", "note", f"{attention}, for {why}: rows take more memory, and share no beginnings")
    if getattr(hf, "auto_map", None) is None:
        yield Finding("custom code", "ok", "none")
    elif config.trust_remote_code:
        yield Finding("custom code", "note", "runs in every process, for trust_remote_code: true")
    else:
        why = "transformers knows the kind; trust_remote_code: true would run it in every process"
        yield Finding("custom code", "note", f"left alone, for {why}")
    if never := find_tokens_beyond(folder, getattr(text, "vocab_size", None)).never_written:
        yield Finding("embedding", "note", f"{never[0]!r} has no row, and is never written or sampled")
    if hf is not text:
        yield Finding("parts", "note", "the text part alone trains; engine: vllm needs torchvision")
    kinds = _rope_types(text)
    if moving := [kind for kind in kinds if kind == "longrope" or "dynamic" in kind]:
        yield Finding("positions", "note", f"{moving[0]}: its frequencies are fixed by max_model_len")
    else:
        yield Finding("positions", "ok", f"rotary frequencies: {', '.join(kinds) or 'none'}")


def _rope_types(text: Any) -> list[str]:
    parameters = getattr(text, "rope_parameters", None) or {}
    kinds = [parameters, *(value for value in parameters.values() if isinstance(value, Mapping))]
    return sorted({str(of["rope_type"]) for of in kinds if "rope_type" in of})


def _look_at_length(text: Any, config: Any) -> Finding:
    positions = getattr(text, "max_position_embeddings", None)
    if positions is None or config.max_model_len <= positions:
        reads = "any number of" if positions is None else f"{positions:,}"
        return Finding(
            "length",
            "ok",
            f"max_model_len {config.max_model_len:,}; the model reads {reads} tokens",
            {"max_model_len": config.max_model_len},
        )
    if any(kind != "default" for kind in _rope_types(text)):  # scaled ones read more than they say
        text = f"max_model_len {config.max_model_len:,} is more than the model's {positions:,} positions"
        return Finding("length", "note", text, {"max_model_len": config.max_model_len})
    return Finding(
        "length",
        "wrong",
        f"max_model_len must be at most the model's positions, {positions:,}; got {config.max_model_len:,}. Lower it.",
        {"max_model_len": positions},
    )


def _look_at_memory(folder: Path, config: Any, num_parameters: int) -> Iterator[Finding]:
    room = gpu_bytes() or machine_bytes()
    where = "this GPU" if gpu_bytes() else "this machine"
    weights = num_parameters * bytes_per_weight(config)
    cache = episode_bytes(config, str(folder))
    for_sampler = f"weights {gib(weights)}, key-value cache {gib(cache)} for an episode of max_model_len"
    if weights + cache > room:
        rest = f"and {where} has {gib(room)}. Lower max_model_len, split the model (tensor_parallel_size), or choose"
        yield Finding("memory of the sampler", "wrong", f"{for_sampler}, {rest} a smaller one.")
    else:
        yield Finding("memory of the sampler", "ok", for_sampler)
    yield _look_at_learner_memory(config, num_parameters, weights, room, where)


def _look_at_learner_memory(config: Any, num_parameters: int, weights: int, room: int, where: str) -> Finding:
    check = "memory of the learner"
    if config.lora is not None:
        text = f"weights {gib(weights)} with LoRA; activations come on top"
        return Finding(check, "ok" if weights <= room else "wrong", text, {"lora": config.lora})
    trained = num_parameters * TRAINED_BYTES
    text = f"{gib(trained)} for weights, gradients and Adam; activations come on top"
    if trained <= room:
        return Finding(check, "ok", text)
    text += f", and {where} has {gib(room)}. "
    if weights <= room:
        return Finding(check, "note", f"{text}Train with LoRA, or with more GPUs and zero_stage: 3.", {"lora": LORA})
    return Finding(check, "wrong", f"{text}Train with more GPUs and zero_stage: 3, or choose a smaller model.")


# --- the chat template ---


def _of_tools(chat: Any) -> str:
    if not chat.takes_tools:
        return "the template takes none: a system prompt lists an environment's functions"
    parser = choose_parser(chat)
    if parser is None:
        return "the template takes them; it is not known what reads its calls"
    return f"the template takes them, and vLLM's parser {parser} reads its calls: agent: {{format: tools}}"


def _look_at_template(folder: Path, config: Any) -> Iterator[Finding]:
    from rllm_gym.tokens import ChatTokenizer

    try:
        chat = ChatTokenizer(folder, **config.chat_options)
    except (ChatTemplateError, ConfigError) as error:
        yield Finding("chat template", "wrong", str(error))
        return
    chosen = {name: value for name, value in config.chat_options.items() if value not in ("auto", {})}
    if note := chat.note_on_history():
        yield Finding("chat template", "note", note, chosen)
    else:
        yield Finding("chat template", "ok", "append-only: an episode is one training sample", chosen)
    if chat.has_system_role:
        yield Finding("system role", "ok", "kept as its own turn")
    else:
        yield Finding("system role", "note", "none, or moved: a system prompt heads the first user's turn")
    yield Finding("tools", "ok", _of_tools(chat))
    arguments = [name for name in chat.template_arguments if name != "strftime_now"]
    if arguments:
        set_ = f"; set: {config.chat_template_kwargs}" if config.chat_template_kwargs else ""
        yield Finding("template arguments", "note", f"chat_template_kwargs may set {', '.join(arguments)}{set_}")
    else:
        yield Finding("template arguments", "ok", "none")
    if unknown := sorted(set(config.chat_template_kwargs) - set(arguments)):
        takes = ", ".join(arguments) or "none"
        yield Finding(
            "chat_template_kwargs", "wrong", f"the template takes no {unknown[0]!r}, only: {takes}. Leave it out."
        )
    if "strftime_now" in chat.template_arguments:
        day = config.template_date or TEMPLATE_DATE
        yield Finding("date", "note", f"the template writes one: always {day}", {"template_date": day})
    else:
        yield Finding("date", "ok", "the template asks for none")
    ends = ", ".join(repr(chat.decode([i])) for i in chat.stop_ids)
    note = chat.note_on_ends()
    yield Finding("ends of a turn", "note" if note else "ok", note or ends)
