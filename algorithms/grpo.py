"""GRPO: group-relative policy optimization over many turns."""

from __future__ import annotations

from typing import Any, Self

import torch
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.functional import clipped_surrogate, group_relative_advantage, has_spread
from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.algorithms.policy_learner import PolicyLearner
from rllm_gym.errors import ConfigError


class GRPOConfig(PolicyGradientConfig):
    """Configuration of GRPO.

    Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300; `clip_high` above `clip_low`: Yu et al. 2025 (DAPO),
    arXiv:2503.14476; `normalize_std=False`: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or GRPO)
        self.clip_high = 0.28
        self.normalize_std: bool = True
        self.learners(learner_class=GRPOLearner)

    def training(self, *, normalize_std: bool = NotProvided, **kwargs: Any) -> Self:
        """Set the method's own options.

        Args:
            normalize_std: divide advantages by their group's standard deviation.
        """
        self._set(normalize_std=normalize_std)
        super().training(**kwargs)
        return self

    def get_default_learner_class(self) -> type[GRPOLearner]:
        return GRPOLearner

    def validate(self) -> None:
        super().validate()
        if not self.in_evaluation and self.group_size < 2:
            raise ConfigError(
                "GRPOConfig: group_size must be at least 2, since one episode has no group mean; got "
                f"{self.group_size}. Set .env_runners(group_size=...)."
            )


class GRPOLearner(PolicyLearner):
    """The clipped surrogate, with one advantage for all tokens of a sequence."""

    def policy_loss(
        self,
        batch: dict[str, torch.Tensor],
        logp_BT: torch.Tensor,
        old_logp_BT: torch.Tensor,
        weight_BT: torch.Tensor | None,
    ) -> torch.Tensor:
        return clipped_surrogate(
            logp_BT,
            old_logp_BT,
            batch["advantage"],
            batch["mask"],
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            num_tokens=batch["num_tokens"],
            weight_BT=weight_BT,
        )


class GRPO(PolicyGradient):
    """Samples groups of episodes of the same task and reinforces what did better than its group."""

    @classmethod
    def get_default_config(cls) -> GRPOConfig:
        return GRPOConfig()

    def compute_advantages(self, streams: list[SingleAgentEpisode], group: list[int]) -> list[float | None]:
        """Return each stream's advantage; None where its whole group has the same return, which teaches nothing."""
        return_N = torch.tensor([stream.get_return() for stream in streams], dtype=torch.float64)
        group_N = torch.tensor(group)
        advantage_N = group_relative_advantage(return_N, group_N, normalize_std=self.config.normalize_std)
        keep_N = has_spread(return_N, group_N)
        return [a if keep else None for a, keep in zip(advantage_N.tolist(), keep_N.tolist(), strict=True)]
