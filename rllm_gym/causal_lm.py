"""Loads a causal language model, and makes sure that its files hold all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.library_noise import errors_alone


def load_causal_lm(model: str | Path, **options: Any) -> Any:
    """Load a causal language model, every weight of which is in its files: transformers would draw others at random.

    Args:
        options: of `from_pretrained`.

    Raises:
        ConfigError: some weights are not there, or have another shape than the model's configuration gives them.
    """
    from transformers import AutoModelForCausalLM  # takes seconds

    with errors_alone("transformers"):  # such as a table of the weights at fault, which the errors below name
        lm, found = AutoModelForCausalLM.from_pretrained(
            model, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"base_model: every weight must be in the model's files; got none for {len(missing)} of {model}, first "
            f"{missing[0]}. Download the model again, or choose another one."
        )
    if found["mismatched_keys"]:
        name, shape, expected = sorted(found["mismatched_keys"])[0]
        raise ConfigError(
            f"base_model: a weight must have the shape that config.json gives it; got {name} of {tuple(shape)} for "
            f"{tuple(expected)} in {model}. Download the model again, or choose another one."
        )
    return lm
