"""The texts of single tokens, for the view of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rllm_gym.errors import RllmGymError
from rllm_gym.strangers_files import read_object_or_nothing
from rllm_gym.viewer.runs import PARAMS, Trial


def _byte_of_char() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Source: Radford et al. 2019 (GPT-2), `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}


_BYTES = _byte_of_char()


class TokenTexts:
    """The texts of token ids by trial. Tokenizers are read from the disk: nothing is downloaded to look at a run.

    Args:
        default: the model whose tokenizer is taken where the files name none.
    """

    def __init__(self, default: str = "") -> None:
        self._default = default
        self._found: dict[str, tuple[Tokenizer | None, str]] = {}

    def of(self, trial: Trial, ids: Iterable[int]) -> tuple[dict[int, str], str]:
        """Return {id: its text}, and what is wrong where there is none."""
        model = _base_model(trial) or self._default
        if model not in self._found:
            self._found[model] = _load(model)
        tokenizer, problem = self._found[model]
        if tokenizer is None:
            return {}, problem
        is_byte_level = "ByteLevel" in repr(tokenizer.decoder)
        added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
        return {i: added[i] if i in added else _text(tokenizer.id_to_token(i), is_byte_level) for i in ids}, ""


def _text(token: str | None, is_byte_level: bool) -> str:
    if token is None:
        return "?"
    if not is_byte_level or any(char not in _BYTES for char in token):
        return token.replace("\u2581", " ")  # SentencePiece's space
    # A token may end within a character: its bytes are then spelt out.
    return bytes(_BYTES[char] for char in token).decode(errors="backslashreplace")


def _base_model(trial: Trial) -> str:
    """Return the model whose tokenizer a trial used: of a checkpoint's evaluation that of its run."""
    if trial.kind == "evaluation" and (params := Path(trial.model).parent / PARAMS).is_file():
        base_model = read_object_or_nothing(params).get("base_model")
        return base_model if isinstance(base_model, str) else ""
    return trial.model


def _load(model: str) -> tuple[Tokenizer | None, str]:
    if not model:
        return (
            None,
            "These files do not say which tokenizer the tokens are of; ids are shown. Name it with --tokenizer.",
        )
    folder = _folder(model)
    if folder is None:
        return None, f"The tokenizer of {model} is not on this machine; ids are shown."
    try:
        from rllm_gym.tokenizer_files import read_tokenizer

        return read_tokenizer(folder).backend, ""
    except (RllmGymError, OSError, ValueError, RecursionError) as error:
        return None, f"The tokenizer of {model} cannot be read ({error}); ids are shown."


def _folder(model: str) -> Path | None:
    from rllm_gym.models import TINY_MODEL_DIR

    try:
        path: Any = TINY_MODEL_DIR if model == "tiny" else Path(model).expanduser()
        if path.is_dir():
            return path
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "tokenizer.json")
    except (ImportError, ValueError, OSError, RuntimeError):  # not installed, or no name of a model
        return None
    return Path(found).parent if isinstance(found, str) else None
