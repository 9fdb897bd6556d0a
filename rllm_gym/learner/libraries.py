"""DeepSpeed and transformers, which take seconds to import: not before a learner is built."""

from __future__ import annotations

import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

from rllm_gym.importing import leave_out_scipy, uncollected, without

if TYPE_CHECKING:
    import torch

_importing: list[threading.Thread] = []


def import_deepspeed(device: torch.device | None = None) -> Any:
    """Return DeepSpeed, set up for what is there.

    Args:
        device: where its engines belong. A learner without a GPU is on the CPU of a machine that may have one, where
            DeepSpeed would take it.
    """
    import torch

    if (device is not None and device.type == "cpu") or not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed probes for accelerators
    with uncollected(), without("mlflow"):  # a second and more, for a tuner that nothing here uses
        import deepspeed

    # Workaround for DeepSpeed 0.19: on a CPU it compiles an all-reduce for half a minute; gloo does the same work here.
    # It may go once a wheel brings that operator compiled.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if device is not None and device.type != deepspeed.get_accelerator().device_name():  # imported for another one
        module = importlib.import_module(f"deepspeed.accelerator.{device.type}_accelerator")
        deepspeed.accelerator.set_accelerator(getattr(module, f"{device.type.upper()}_Accelerator")())
    return deepspeed


def import_universal_checkpoint() -> Any:
    """Return DeepSpeed's conversion of checkpoints to whole states, which is meant as a program."""
    import_deepspeed()
    return importlib.import_module("deepspeed.checkpoint.ds_to_universal")


def import_in_background() -> None:
    """Begin to import transformers in a thread, for a learner that this process builds later.

    DeepSpeed is not for a thread: it turns this process's stderr elsewhere while it tries a compiler.
    """
    thread = threading.Thread(target=_import_models, name="imports", daemon=True)
    thread.start()
    _importing.append(thread)


def wait_for_imports() -> None:
    """Wait for what is being imported: transformers imports its parts as they are asked for, and not in two threads."""
    while _importing:
        _importing.pop().join()


def _import_models() -> None:
    with uncollected():
        leave_out_scipy()
        importlib.import_module("transformers.models.auto.modeling_auto")
