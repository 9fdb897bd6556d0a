"""Reads a tokenizer's files with `tokenizers` alone, or with transformers where they are of another kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from rllm_gym.errors import ChatTemplateError, ConfigError
from rllm_gym.models import resolve_tokenizer
from rllm_gym.strangers_files import read_object, read_text

MOST_ENDS = 32  # of a turn, that a file may list
# Without them transformers makes a tokenizer of no words.
_VOCABULARIES = ("tokenizer.model*", "*.tiktoken", "vocab*", "spiece.model", "sentencepiece*", "tokenization_*.py")


@dataclass(frozen=True)
class TokenizerParts:
    """The part of a tokenizer that `ChatTokenizer` uses.

    Args:
        name: for messages.
        backend: neither cuts nor pads; nobody else changes it.
        special_tokens: by the names that templates know them by, such as `bos_token`.
        chat_template: Jinja source, or None.
        end_ids: what ends a turn for the model: `eos_token_id` of its generation_config.json.
    """

    name: str
    backend: Tokenizer
    special_tokens: Mapping[str, str]
    chat_template: str | None
    end_ids: tuple[int, ...] = ()


def read_tokenizer(tokenizer: Any) -> TokenizerParts:
    """Return the parts of a tokenizer: a name, a folder, None for the shipped one, or a Hugging Face object.

    Raises:
        ConfigError: there is no such tokenizer, or it is of another kind.
    """
    end_ids: tuple[int, ...] = ()
    if tokenizer is None or isinstance(tokenizer, str | Path):
        folder = resolve_tokenizer(tokenizer or "tiny")
        if (folder / "tokenizer.json").is_file():
            return _read_folder(folder)
        if not any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
            raise ConfigError(
                f"ChatTokenizer: a folder must hold a tokenizer (tokenizer.json); got none in {folder}. Download the "
                "model again, or copy the files of its tokenizer there."
            )
        tokenizer, end_ids = load_with_transformers(folder), _end_ids(folder)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(
            "ChatTokenizer: tokenizer must be a Hugging Face tokenizer with a `tokenizers` backend; "
            f"got {type(tokenizer).__name__}. Give a model's name or folder, or AutoTokenizer.from_pretrained(...)."
        )
    name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    # A copy: the original's switches are flipped by whoever calls it.
    backend = _uncut(deepcopy(backend))
    template = _default_template(tokenizer.chat_template, name)
    return TokenizerParts(name, backend, dict(tokenizer.special_tokens_map), template, end_ids)


def load_with_transformers(folder: Path) -> Any:
    """Return the Hugging Face tokenizer of a folder.

    Raises:
        ConfigError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            f"ChatTokenizer: without a tokenizer.json, as in {folder}, a tokenizer is read by transformers, which is "
            'not installed. Run: pip install "rllm-gym[train]".'
        ) from error
    return AutoTokenizer.from_pretrained(folder)


def _read_folder(folder: Path) -> TokenizerParts:
    """Read a folder as transformers does: what the config lists is added where tokenizer.json lacks it."""
    config = _read_if_there(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # as written before 2023
        config |= _read_if_there(folder / "special_tokens_map.json")
    named = {key: _content(value) for key, value in config.items() if _is_named_token(key, value)}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):  # by name
        named |= {key: _content(value) for key, value in extra.items()}
        extra = []
    try:
        backend = _uncut(Tokenizer.from_file(str(folder / "tokenizer.json")))
    except Exception as error:  # tokenizers' own, of no narrower kind
        raise ConfigError(
            f"ChatTokenizer: {folder / 'tokenizer.json'} must hold a tokenizer ({error}). Download the model again."
        ) from error
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in _listed_tokens(config, [*named.values(), *extra]):
        if token.content not in known:
            known.add(token.content)
            backend.add_tokens([token])
    return TokenizerParts(str(folder), backend, named, _read_template(folder, config), _end_ids(folder))


def _end_ids(folder: Path) -> tuple[int, ...]:
    """Return the end tokens of generation_config.json; whatever is no token's number there is none."""
    listed = _read_if_there(folder / "generation_config.json").get("eos_token_id")
    ids = listed if isinstance(listed, list) else [listed]
    return tuple(i for i in ids[:MOST_ENDS] if isinstance(i, int) and not isinstance(i, bool) and i >= 0)


def _uncut(backend: Tokenizer) -> Tokenizer:
    backend.no_truncation()
    backend.no_padding()
    return backend


def _listed_tokens(config: dict[str, Any], special: list[Any]) -> Iterator[AddedToken]:
    decoder = config.get("added_tokens_decoder", {})
    for _, token in sorted(decoder.items(), key=lambda item: int(item[0])):
        yield AddedToken(**token)
    for token in special:
        if isinstance(token, dict):
            flags = {key: token[key] for key in ("single_word", "lstrip", "rstrip", "normalized") if key in token}
            yield AddedToken(token["content"], special=True, **flags)
        else:
            yield AddedToken(token, special=True)


def _is_named_token(key: str, value: Any) -> bool:
    return key.endswith("_token") and (isinstance(value, str) or (isinstance(value, dict) and "content" in value))


def _content(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token


def _read_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the default template: that of a file of its own, or else of the config."""
    files = [folder / "chat_template.jinja", *sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    templates: Any = {
        "default" if file.parent == folder else file.stem: read_text(file) for file in files if file.is_file()
    }
    templates = templates or config.get("chat_template")
    if isinstance(templates, list):
        templates = {entry["name"]: entry["template"] for entry in templates}
    return _default_template(templates, str(folder))


def _default_template(templates: str | dict[str, str] | None, name: str) -> str | None:
    """Return the template, or the default one of several."""
    if not isinstance(templates, dict):
        if not isinstance(templates, str | None):
            raise ChatTemplateError(
                f"ChatTokenizer: a chat template must be a text; {name} has {templates!r}. Give chat_template= one."
            )
        return templates or None
    if "default" not in templates:
        raise ChatTemplateError(
            f"ChatTokenizer: of several chat templates one must be the default; {name} has "
            f"{', '.join(sorted(templates))}. Give chat_template= one of them as Jinja source or a .jinja file."
        )
    return templates["default"]


def _read_if_there(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ChatTokenizer: {path} must hold a JSON object ({error}). Download the model again."
        ) from error
