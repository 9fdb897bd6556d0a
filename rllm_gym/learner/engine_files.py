"""The files of DeepSpeed engines in a checkpoint: weights, optimizer and schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllm_gym.errors import RllmGymError

CHECKPOINT_TAG = "engine"


def save_engines(engines: Mapping[str, Any], folder: str) -> None:
    """Write every module's engine (collective: every learner must be asked)."""
    for module_id, engine in engines.items():
        engine.save_checkpoint(f"{folder}/{module_id}", tag=CHECKPOINT_TAG)


def load_engines(engines: Mapping[str, Any], folder: str) -> None:
    """Read what `save_engines` wrote (collective).

    Raises:
        RllmGymError: the checkpoint lacks a module, or was written by another number of learners or ZeRO stage.
    """
    for module_id, engine in engines.items():
        path = f"{folder}/{module_id}"
        try:
            loaded, _ = engine.load_checkpoint(path, tag=CHECKPOINT_TAG)
        except Exception as error:  # DeepSpeed raises anything from AssertionError to KeyError here
            raise RllmGymError(f"{_cannot_load(path)} ({type(error).__name__}: {error})") from error
        if loaded is None:
            raise RllmGymError(_cannot_load(path))


def _cannot_load(path: str) -> str:
    return (
        f"DeepSpeedLearner: cannot load the optimizer state in {path}. Resume with the number of learners and the "
        "ZeRO stage that wrote it, or start a new run from its exported model."
    )
