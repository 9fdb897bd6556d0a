"""Where a base model comes from: the shipped tiny one, a folder, the local Hugging Face cache, or the hub."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from rllm_gym.errors import ConfigError

TINY_MODEL_DIR = Path(__file__).parent / "assets" / "tiny"

# A repo id: "name" or "owner/name". Anything else with a separator in it is a path.
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
# Whatever a tokenizer may consist of, and the config.json, by which transformers tells tokenizers of older forms apart.
TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "sentencepiece*",
    "spiece.model",
    "special_tokens_map.json",
    "tokenizer*",
    "vocab*",
)


def choose_attention(config: Any) -> str | None:
    """Return the implementation of attention that a model needs, from its transformers configuration; None is any.

    Gemma 2 holds its attention logits down (`attn_logit_softcapping`), which PyTorch's fused attention does not.
    """
    return "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) else None


def resolve_base_model(name: str | Path, *, timeout_s: float = 10.0, allow_lookup: bool = True) -> Path | str:
    """Return the path or repository from which transformers and vLLM load `name`, or fail fast.

    Tried in order: `tiny` (the shipped model), a folder with a config.json, the local Hugging Face cache, one look-up
    on the hub. Left to itself, transformers retries a hub look-up five times.

    Args:
        name: `tiny`, a folder, or a Hugging Face repo id.
        timeout_s: most seconds that the look-up may take.
        allow_lookup: if False (dry runs), a repo id that is not in the cache is returned as it is.

    Returns:
        The folder, or the repo id if the model has to be downloaded.

    Raises:
        ConfigError: nothing was found; one line says what was tried.
    """
    text = str(name)
    if text == "tiny":
        return _folder(TINY_MODEL_DIR, text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path, text)
    if not _REPO_ID.fullmatch(text):
        raise _not_found(text, "no such folder, and not of the form owner/name")
    if cached := _cached_snapshot(text):
        return cached
    if not allow_lookup:
        return text
    if problem := _look_up(text, timeout_s):
        raise _not_found(text, f"no such folder, not in the local cache, and the hub look-up failed: {problem}")
    return text


def resolve_tokenizer(name: str | Path, *, timeout_s: float = 10.0) -> Path:
    """Return the folder of a model's tokenizer, with or without the model.

    Tried in order as in `resolve_base_model`; of a model on the hub only the tokenizer's files are downloaded.

    Raises:
        ConfigError: nothing was found; one line says what was tried.
    """
    text = str(name)
    path = TINY_MODEL_DIR if text == "tiny" else Path(text).expanduser()
    if any((path / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json")):
        return path
    if not path.is_dir() and _REPO_ID.fullmatch(text) and (cached := _cached_file(text, "tokenizer.json")):
        return cached.parent
    base_model = resolve_base_model(text, timeout_s=timeout_s)
    if isinstance(base_model, Path):
        return base_model
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(base_model, allow_patterns=list(TOKENIZER_FILES)))
    except Exception as error:  # whatever it is, the caller gets it in one line
        raise _not_found(text, f"its tokenizer cannot be downloaded: {_in_one_line(error)}") from error


def _folder(path: Path, name: str) -> Path:
    if not (path / "config.json").is_file() and (path / "adapter_config.json").is_file():
        raise _not_found(name, f"{path} is a LoRA adapter, no model: merge it into its base model first")
    if not (path / "config.json").is_file():
        raise _not_found(name, f"the folder {path} has no config.json")
    return path


def _cached_snapshot(repo_id: str) -> Path | None:
    """Return the cached snapshot of a model if it has weights; a lone config may come from an earlier look-up."""
    config = _cached_file(repo_id, "config.json")
    has_weights = config is not None and any(next(config.parent.glob(pattern), None) for pattern in _WEIGHTS)
    return config.parent if config is not None and has_weights else None


def _cached_file(repo_id: str, name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(repo_id, name)
    return Path(file) if isinstance(file, str) else None  # it may be a marker for "known not to exist"


def _look_up(repo_id: str, timeout_s: float) -> str:
    """Ask the hub once whether a model exists; return what went wrong, or an empty string."""
    from huggingface_hub import HfApi

    problems: list[str] = []

    def ask() -> None:
        try:
            HfApi().model_info(repo_id, timeout=timeout_s)
            problems.append("")
        except Exception as error:  # whatever it is, the caller gets it in one line
            problems.append(_in_one_line(error))

    # The client's own time-out counts each phase of a request anew and leaves name resolution out.
    thread = threading.Thread(target=ask, daemon=True, name="hub-look-up")
    thread.start()
    thread.join(timeout_s)
    return problems[0] if problems else f"no answer within {timeout_s:g} s"


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _not_found(name: str, problem: str) -> ConfigError:
    return ConfigError(
        "base_model: must be 'tiny', a folder with a config.json, or the name of a Hugging Face model; "
        f"got {name!r} ({problem}). Check the spelling and the network, or give a folder."
    )
