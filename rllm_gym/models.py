"""Where a base model comes from: the shipped tiny one, a folder, the local Hugging Face cache, or the hub."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from rllm_gym.errors import ConfigError

# Weights on their way to the samplers: `<name>.lora_B @ <name>.lora_A` is what an adapter adds to the weight `<name>`.
LORA_A, LORA_B = ".lora_A", ".lora_B"

TINY_MODEL_DIR = Path(__file__).parent / "assets" / "tiny"

# A repo id: "name" or "owner/name". Anything else with a separator in it is a path.
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def resolve_base_model(name: str | Path, *, timeout_s: float = 10.0, allow_lookup: bool = True) -> Path | str:
    """Return what transformers and vLLM can load for `name`, or fail fast.

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


def _folder(path: Path, name: str) -> Path:
    if not (path / "config.json").is_file():
        raise _not_found(name, f"the folder {path} has no config.json")
    return path


def _cached_snapshot(repo_id: str) -> Path | None:
    """Return the cached snapshot of a model if it has weights; a lone config may come from an earlier look-up."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo_id, "config.json")
    if not isinstance(config, str):  # None, or a marker for "known not to exist"
        return None
    folder = Path(config).parent
    return folder if any(next(folder.glob(pattern), None) for pattern in _WEIGHTS) else None


def _look_up(repo_id: str, timeout_s: float) -> str:
    """Ask the hub once whether a model exists; return what went wrong, or an empty string."""
    from huggingface_hub import HfApi

    problems: list[str] = []

    def ask() -> None:
        try:
            HfApi().model_info(repo_id, timeout=timeout_s)
            problems.append("")
        except Exception as error:  # whatever it is, the caller gets it in one line
            problems.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")

    # The client's own time-out counts each phase of a request anew and leaves name resolution out.
    thread = threading.Thread(target=ask, daemon=True, name="hub-look-up")
    thread.start()
    thread.join(timeout_s)
    return problems[0] if problems else f"no answer within {timeout_s:g} s"


def _not_found(name: str, problem: str) -> ConfigError:
    return ConfigError(
        "base_model: must be 'tiny', a folder with a config.json, or the name of a Hugging Face model; "
        f"got {name!r} ({problem}). Check the spelling and the network, or give a folder."
    )
