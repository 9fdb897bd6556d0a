"""DeepSpeed and transformers, which take seconds to import: not before a learner is built."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any


def import_deepspeed() -> Any:
    """Return DeepSpeed, set up for what is there."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed probes for accelerators
    import deepspeed

    # Its CPU build compiles for half a minute; gloo does the same work here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def import_in_background() -> None:
    """Begin to import both in a thread, for a learner that this process will build when the samplers are there."""

    def import_them() -> None:
        import_deepspeed()
        importlib.import_module("transformers.models.auto.modeling_auto")

    threading.Thread(target=import_them, name="imports", daemon=True).start()
