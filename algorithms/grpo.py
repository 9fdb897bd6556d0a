"""GRPO: group-relative policy optimization over many turns, and the methods that grew from it, as presets."""

from __future__ import annotations

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import group_relative_advantage, soft_overlong_penalty, step_group_advantage
from rllm_gym.algorithms.group_relative import GroupRelative, GroupRelativeConfig
from rllm_gym.options.methods import GRPOOptions
from rllm_gym.training.advantage_rows import AdvantageRows


class GRPOConfig(GroupRelativeConfig, GRPOOptions):
    """Configuration of GRPO.

    Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300; `clip_high` above `clip_low`, `overlong_buffer`,
    `max_refill_rounds` and the mean over tokens: Yu et al. 2025 (DAPO), arXiv:2503.14476; `normalize_std=False` and
    `loss_average="constant"`: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783; `ratio_level="sequence"`: Zheng et al. 2025
    (GSPO), arXiv:2507.18071; `step_weight`: Feng et al. 2025 (GiGPO), arXiv:2505.10978.
    """


class GRPO(GroupRelative):
    """Samples groups of episodes of the same task and reinforces what did better than its group."""

    config_class = GRPOConfig
    config: GRPOConfig

    @override(GroupRelative)
    def compare(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        return group_relative_advantage(return_N, group_N, normalize_std=self.config.normalize_std)

    @override(GroupRelative)
    def returns(self, rows: AdvantageRows) -> torch.Tensor:
        """Return what each row has earned, less what it pays for being long."""
        config = self.config
        if config.overlong_buffer == 0:
            return rows.return_N
        buffer = round(config.overlong_buffer * config.max_model_len)
        penalty_N = soft_overlong_penalty(rows.num_tokens_N, max_tokens=config.max_model_len, buffer=buffer)
        return rows.return_N + penalty_N

    @override(GroupRelative)
    def advantage(self, rows: AdvantageRows) -> torch.Tensor:
        config = self.config
        if config.step_weight == 0:
            return super().advantage(rows)
        return rows.of_turns(
            step_group_advantage(
                self.turn_rewards(rows),
                rows.turn_state_NU,
                rows.turn_mask_NU,
                rows.group_N,
                gamma=config.step_gamma,
                normalize_std=config.normalize_std,
                step_weight=config.step_weight,
            )
        )
