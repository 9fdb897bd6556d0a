"""A policy of another run, as it was when its checkpoint was written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.checkpoints import MODULES, resolve_checkpoint
from rllm_gym.errors import ConfigError
from rllm_gym.learner.rl_module import LLMModule


def frozen_weights(source: str | Path, policy_id: str) -> Mapping[str, Any]:
    """Return the weights of a checkpoint's policy as an engine loads them, with LoRA merged.

    Args:
        source: a checkpoint, or a run or trial for its newest.
        policy_id: which policy, where the checkpoint has several.

    Raises:
        ConfigError: no checkpoint, or none of its policies.
    """
    folder = resolve_checkpoint(Path(source)) / MODULES
    known = sorted(path.parent.name for path in folder.glob("*/module_state.*"))
    chosen = known[0] if len(known) == 1 else policy_id
    if chosen not in known:
        raise ConfigError(
            f"opponents: the frozen checkpoint must hold the policy {policy_id!r}; got {str(source)!r} with "
            f"{', '.join(known) or 'none'}. Choose another checkpoint."
        )
    policy = LLMModule.from_checkpoint(str((folder / chosen).absolute()))
    lm = policy.lm if policy.model_config["lora"] is None else policy.lm.merge_and_unload()
    return {name: value.detach().cpu().numpy().copy() for name, value in lm.float().state_dict().items()}
