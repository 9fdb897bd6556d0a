"""GRPO: group-relative policy optimization over many turns, and the methods that grew from it, as presets."""

from __future__ import annotations

import logging

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import (
    EPSILON,
    group_deviation,
    group_relative_advantage,
    soft_overlong_penalty,
    step_group_advantage,
)
from rllm_gym.algorithms.group_relative import GroupRelative, GroupRelativeConfig
from rllm_gym.options.methods import GRPOOptions
from rllm_gym.training.advantage_rows import AdvantageRows

logger = logging.getLogger(__name__)

SMALL_DEVIATION = 1e-4  # below it the epsilon beside it takes more than 1 % off the advantages


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
    _has_told_of_epsilon = False

    @override(GroupRelative)
    def compare(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        return group_relative_advantage(return_N, group_N, normalize_std=self.config.normalize_std)

    @override(GroupRelative)
    def returns(self, rows: AdvantageRows) -> torch.Tensor:
        """Return each row's return, less the penalty for its length."""
        config = self.config
        if config.overlong_buffer == 0:
            return rows.return_N
        buffer = round(config.overlong_buffer * config.max_model_len)
        penalty_N = soft_overlong_penalty(rows.num_tokens_N, max_tokens=config.max_model_len, buffer=buffer)
        return rows.return_N + penalty_N

    @override(GroupRelative)
    def advantage(self, rows: AdvantageRows) -> torch.Tensor:
        config = self.config
        if config.normalize_std:
            self._tell_of_epsilon(group_deviation(self.returns(rows), rows.group_N))
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

    def _tell_of_epsilon(self, deviation_N: torch.Tensor) -> None:
        """Say once that returns differ so little that the published epsilon lowers the advantages."""
        small_N = deviation_N[(deviation_N > 0) & (deviation_N < SMALL_DEVIATION)]
        if len(small_N) and not self._has_told_of_epsilon:
            self._has_told_of_epsilon = True
            least = float(small_N.min())
            logger.warning(
                "%s: returns of a group deviate by %.1e, and the epsilon beside the deviation takes %.0f %% off its "
                "advantages. Make rewards larger, or set normalize_std: false.",
                type(self).__name__,
                least,
                100 * EPSILON / (least + EPSILON),
            )
