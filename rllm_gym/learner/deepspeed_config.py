"""The DeepSpeed configuration that is generated from an algorithm's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def deepspeed_config(config: Any, num_parameters: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `deepspeed.initialize` takes.

    Args:
        config: the algorithm's configuration.
        num_parameters: that are trained.
        options: merged over what is generated here.
    """
    # On CPU the default bucket of 5e8 elements allocates 2 GB in every backward pass.
    bucket = min(int(5e8), num_parameters + num_parameters % 2)  # it wants an even number
    generated = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,  # the learner sets the boundary by hand
        "gradient_clipping": config.grad_clip or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.weight_dtype == "bfloat16"},
        "fp16": {"enabled": config.weight_dtype == "float16"},
        "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": zero_stage(config, options),
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        },
    }
    return merge(generated, options)


def zero_stage(config: Any, options: Mapping[str, Any]) -> int:
    """Return the ZeRO stage: the configured one, or what is best if it leaves the choice.

    A single learner has nobody to share with, and the flat copies of the higher stages cost it time and memory; but of
    16-bit weights they are the float32 ones, and what is offloaded is theirs.
    """
    if config.zero_stage is not None:
        return int(config.zero_stage)
    is_offloaded = any(name.startswith("offload") for name in options.get("zero_optimization", {}))
    return 0 if config.num_learners <= 1 and config.weight_dtype == "float32" and not is_offloaded else 2


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings merged; `over` wins."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = (
            merge(merged[key], value) if isinstance(value, Mapping) and isinstance(merged.get(key), dict) else value
        )
    return merged
