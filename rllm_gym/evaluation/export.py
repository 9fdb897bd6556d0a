"""Writes a checkpoint's policy as a Hugging Face model folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.checkpoints import module_folder, module_ids, read_config
from rllm_gym.errors import ConfigError, nearest
from rllm_gym.learner.libraries import import_deepspeed
from rllm_gym.models import TOKENIZER_FILES, resolve_tokenizer


def policy_ids(checkpoint: Path, config: Any) -> list[str]:
    """Return the ids of the policies in a checkpoint; its other modules (critics) only learners use."""
    return [module_id for module_id in module_ids(checkpoint) if module_id in config.policies]


def export_policy(checkpoint: Path, folder: Path, *, module: str | None = None, overwrite: bool = False) -> str:
    """Write config, weights (safetensors, LoRA merged), tokenizer with chat template, and generation config.

    Args:
        module: which policy, where there are several.
        overwrite: write into a folder that is not empty.

    Returns:
        The id of the policy.

    Raises:
        ConfigError: the folder is not empty, or the policy is not in the checkpoint.
    """
    chosen, policy, config = _to_write(checkpoint, folder, module, overwrite=overwrite)
    base_model = policy.model_config["base_model"]
    lm = policy.merge_adapter()
    chat = _chat_tokenizer(base_model, config.chat_options)
    lm.config.use_cache = True  # training has no use for it
    lm.generation_config = _generation_config(lm.generation_config, list(chat.stop_ids))
    import_deepspeed()  # transformers does so to save, without the settings that keep it quiet
    lm.save_pretrained(folder)
    _write_tokenizer(resolve_tokenizer(base_model), folder, chat.chat_template)
    return chosen


def export_adapter(checkpoint: Path, folder: Path, *, module: str | None = None, overwrite: bool = False) -> str:
    """Write what `lora` has trained as a folder of peft's, a few megabytes that go with the base model.

    The arguments and what is returned are those of `export_policy`.

    Raises:
        ConfigError: as `export_policy`, or all weights were trained.
    """
    chosen, policy, _ = _to_write(checkpoint, folder, module, overwrite=overwrite)
    if policy.model_config["lora"] is None:
        raise ConfigError(f"export: only a run with lora has an adapter; {chosen} has none. Leave out --adapter.")
    policy.lm.save_pretrained(folder)
    return chosen


def _to_write(checkpoint: Path, folder: Path, module: str | None, *, overwrite: bool) -> tuple[str, Any, Any]:
    """Return a policy's id, the policy and the run's configuration, where the folder may be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise ConfigError(f"export: the folder must be empty; got {str(folder)!r}. Choose another one, or use --force.")
    _, config = read_config(checkpoint)
    chosen = choose_policy(checkpoint, policy_ids(checkpoint, config), module)
    return chosen, load_policy(module_folder(checkpoint, chosen)), config


def _generation_config(found: Any, stop_ids: list[int]) -> Any:
    """Return a configuration with which generate() ends with the turn; what transformers will not save is left out."""
    found.eos_token_id = stop_ids
    try:
        found.validate(strict=True)
    except ValueError:  # published ones set a temperature without do_sample, for one
        return type(found)(eos_token_id=stop_ids, pad_token_id=found.pad_token_id, bos_token_id=found.bos_token_id)
    return found


def _write_tokenizer(source: Path, folder: Path, chat_template: str) -> None:
    """Copy the files that the run has read: what transformers writes may split a text into other tokens."""
    for pattern in TOKENIZER_FILES:
        for file in source.glob(pattern):
            if file.is_file() and file.name != "config.json":  # the model's, which is there
                (folder / file.relative_to(source)).parent.mkdir(exist_ok=True)
                shutil.copyfile(file, folder / file.relative_to(source))
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        kept = json.loads(settings.read_text(encoding="utf-8"))
        kept.pop("chat_template", None)
        settings.write_text(json.dumps(kept, indent=2, ensure_ascii=False), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def choose_policy(checkpoint: Path, known: list[str], module: str | None) -> str:
    """Return the policy that is asked for, or the only one.

    Raises:
        ConfigError: there is none, there are several and none is named, or the named one is not there.
    """
    if not known:
        raise ConfigError(f"checkpoint: {str(checkpoint)!r} holds no policy.")
    if module is None:
        if len(known) > 1:
            raise ConfigError(
                f"module: the checkpoint holds {len(known)} policies: {', '.join(known)}. Choose one with --module."
            )
        return known[0]
    if module not in known:
        raise ConfigError(f"module: no policy has this id; got {module!r}. Did you mean {nearest(module, known)!r}?")
    return module


def load_policy(folder: Path) -> Any:
    """Return the RLModule in a checkpoint's folder of it."""
    from rllm_gym.learner.rl_module import LLMModule

    return LLMModule.from_checkpoint(str(folder))


def _chat_tokenizer(base_model: str, options: Mapping[str, Any]) -> Any:
    from rllm_gym.models import resolve_base_model
    from rllm_gym.tokens import ChatTokenizer

    return ChatTokenizer(str(resolve_base_model(base_model)), **options)
