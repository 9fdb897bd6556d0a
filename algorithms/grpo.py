"""GRPO: group-relative policy optimization over many turns, and the methods that grew from it, as presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import group_relative_advantage, soft_overlong_penalty, step_group_advantage
from rllm_gym.algorithms.group_relative import GroupRelative, GroupRelativeConfig
from rllm_gym.errors import ConfigError, nearest
from rllm_gym.options.each_method import GRPOOptions
from rllm_gym.training.advantage_rows import Rollouts

PRESETS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024, arXiv:2402.03300, eq. 3 and section 4.2 (the KL's weight); the clip range is PPO's.
    "grpo": {"normalize_std": True, "loss_average": "sequences", "clip_low": 0.2, "clip_high": 0.2}
    | {"kl_coeff": 0.04, "kl_kind": "k3", "kl_in": "loss"},
    # Liu et al. 2025, arXiv:2503.20783, section 3: neither of the two divisions that favour long wrong answers and easy
    # tasks; the clip range is PPO's. The constant is what an episode can sample, as in the authors' code.
    "dr_grpo": {"normalize_std": False, "loss_average": "constant", "clip_high": 0.2},
    # Yu et al. 2025, arXiv:2503.14476, section 4.1: a buffer of 4,096 of 20,480 tokens, no KL; 3.4: overlong episodes
    # are filtered. Groups by success and 10 rounds in all are verl's recipe's (filter_groups.metric: acc,
    # max_num_gen_batches: 10).
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "loss_average": "tokens", "overlong_buffer": 0.2, "kl_coeff": 0.0}
    | {"overlong_filter": True, "filter_groups": "success", "max_refill_rounds": 9},
    # Zheng et al. 2025, arXiv:2507.18071, section 5.1: the clip range of its eq. 5, four minibatches. The range is far
    # below what sampler and trainer differ by in 16 bits, so the trainer computes the old log-probabilities.
    "gspo": {"ratio_level": "sequence", "loss_average": "sequences", "clip_low": 3e-4, "clip_high": 4e-4}
    | {"old_logp": "recompute", "num_minibatches": 4},
    # Feng et al. 2025, arXiv:2505.10978: omega 1, gamma 0.95; KL 0.01 (low_var_kl), the penalty for invalid actions and
    # the division by the standard deviation are their ALFWorld script's (verl-agent), the clip range is verl's default.
    "gigpo": {"step_weight": 1.0, "step_gamma": 0.95, "clip_high": 0.2, "normalize_std": True}
    | {"kl_coeff": 0.01, "kl_kind": "low_variance", "kl_in": "loss", "invalid_action_penalty": 0.1},
}


class GRPOConfig(GroupRelativeConfig, GRPOOptions):
    """Configuration of GRPO.

    Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300; `clip_high` above `clip_low`, `overlong_buffer`,
    `max_refill_rounds` and the mean over tokens: Yu et al. 2025 (DAPO), arXiv:2503.14476; `normalize_std=False` and
    `loss_average="constant"`: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783; `ratio_level="sequence"`: Zheng et al. 2025
    (GSPO), arXiv:2507.18071; `step_weight`: Feng et al. 2025 (GiGPO), arXiv:2505.10978.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or GRPO)

    @override(GroupRelativeConfig)
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "preset" and value is not None:
            if value not in PRESETS:
                raise ConfigError(
                    f"GRPOConfig: no preset has this name; got {value!r}. Did you mean {nearest(value, PRESETS)!r}?"
                )
            for option, preset_value in PRESETS[value].items():
                setattr(self, option, preset_value)

    @override(GroupRelativeConfig)
    def in_order(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        # The preset first, wherever it stands, so that the options beside it win.
        return dict(sorted(options.items(), key=lambda item: item[0] != "preset"))

    @override(GroupRelativeConfig)
    def validate(self) -> None:
        super().validate()
        if not self.in_evaluation and self.step_weight > 0 and self.advantage != "agent":
            raise ConfigError(
                f"GRPOConfig: step_weight adds to the advantage of whole episodes, agent by agent; got advantage: "
                f"{self.advantage}. Set advantage: agent, or step_weight: 0."
            )


class GRPO(GroupRelative):
    """Samples groups of episodes of the same task and reinforces what did better than its group."""

    config: GRPOConfig

    @classmethod
    @override(GroupRelative)
    def get_default_config(cls) -> GRPOConfig:
        return GRPOConfig()

    @override(GroupRelative)
    def compare(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        return group_relative_advantage(return_N, group_N, normalize_std=self.config.normalize_std)

    @override(GroupRelative)
    def returns(self, rollouts: Rollouts) -> torch.Tensor:
        """Return what each row has earned, less what it pays for being long."""
        config = self.config
        if config.overlong_buffer == 0:
            return rollouts.return_N
        buffer = round(config.overlong_buffer * config.max_model_len)
        penalty_N = soft_overlong_penalty(rollouts.num_tokens_N, max_tokens=config.max_model_len, buffer=buffer)
        return rollouts.return_N + penalty_N

    @override(GroupRelative)
    def advantage(self, rollouts: Rollouts) -> torch.Tensor:
        config = self.config
        if config.step_weight == 0:
            return super().advantage(rollouts)
        return rollouts.of_turns(
            step_group_advantage(
                self.turn_rewards(rollouts),
                rollouts.turn_state_NU,
                rollouts.turn_mask_NU,
                rollouts.group_N,
                gamma=config.step_gamma,
                normalize_std=config.normalize_std,
                step_weight=config.step_weight,
            )
        )
