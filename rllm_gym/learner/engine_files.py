"""The files of DeepSpeed engines in a checkpoint: weights, optimizer, schedule, and the steps that were skipped."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from rllm_gym.errors import RllmGymError

CHECKPOINT_TAG = "engine"
SKIPPED = "num_skipped_steps"


def save_engines(engines: Mapping[str, Any], folder: str, num_skipped_steps: Mapping[str, int]) -> None:
    """Write every module's engine, with its count of skipped steps (collective: every learner must be asked)."""
    for module_id, engine in engines.items():
        engine.save_checkpoint(
            f"{folder}/{module_id}", tag=CHECKPOINT_TAG, client_state={SKIPPED: num_skipped_steps.get(module_id, 0)}
        )


def load_engines(engines: Mapping[str, Any], folder: str, num_skipped_steps: MutableMapping[str, int]) -> None:
    """Read what `save_engines` wrote (collective), the counts of skipped steps into `num_skipped_steps`.

    Raises:
        RllmGymError: the checkpoint lacks a module, or was written by another number of learners or ZeRO stage.
    """
    for module_id, engine in engines.items():
        path = f"{folder}/{module_id}"
        settings = [_settings_of(group) for group in engine.basic_optimizer.param_groups]
        try:
            loaded, client_state = engine.load_checkpoint(path, tag=CHECKPOINT_TAG)
        except Exception as error:  # DeepSpeed raises anything from AssertionError to KeyError here
            raise RllmGymError(f"{_cannot_load(path)} ({type(error).__name__}: {error})") from error
        if loaded is None:
            raise RllmGymError(_cannot_load(path))
        num_skipped_steps[module_id] = client_state[SKIPPED]
        # The configuration says how it goes on, not the checkpoint; but a schedule goes on where it was.
        for group, configured in zip(engine.basic_optimizer.param_groups, settings, strict=True):
            kept = ("lr", "initial_lr") if engine.lr_scheduler is not None else ()
            group.update({name: value for name, value in configured.items() if name not in kept})


def _settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter group's learning rate, betas and so on."""
    return {name: value for name, value in group.items() if name != "params"}


def _cannot_load(path: str) -> str:
    return (
        f"DeepSpeedLearner: cannot load the optimizer state in {path}. Resume with the number of learners and the "
        "ZeRO stage that wrote it, or start a new run from its exported model."
    )
