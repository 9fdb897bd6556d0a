"""GRPO: group-relative policy optimization over many turns."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.algorithm import LLMAlgorithm
from rllm_gym.algorithms.config import LLMConfig
from rllm_gym.algorithms.functional import clipped_surrogate, group_relative_advantage, has_spread
from rllm_gym.algorithms.policy_learner import PolicyLearner
from rllm_gym.errors import ConfigError


class GRPOConfig(LLMConfig):
    """Configuration of GRPO.

    Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300; `clip_high` above `clip_low`: Yu et al. 2025 (DAPO),
    arXiv:2503.14476; `normalize_std=False`: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or GRPO)
        self.clip_low: float = 0.2
        self.clip_high: float = 0.28
        self.normalize_std: bool = True
        self.kl_coeff: float = 0.0
        self.kl_kind: str = "k3"
        self.entropy_coeff: float = 0.0
        self.learners(learner_class=GRPOLearner)

    def training(
        self,
        *,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        normalize_std: bool = NotProvided,
        kl_coeff: float = NotProvided,
        kl_kind: Literal["k1", "k2", "k3"] = NotProvided,
        entropy_coeff: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the method's own options.

        Args:
            clip_low, clip_high: how far the probability ratio may fall below and rise above 1.
            normalize_std: divide advantages by their group's standard deviation.
            kl_coeff: weight of the KL to the frozen `base_model`; 0 keeps no reference model in memory.
            kl_kind: the estimator, see `rllm_gym.algorithms.functional.kl_estimate`.
            entropy_coeff: weight of an entropy bonus.
        """
        self._set(
            clip_low=clip_low,
            clip_high=clip_high,
            normalize_std=normalize_std,
            kl_coeff=kl_coeff,
            kl_kind=kl_kind,
            entropy_coeff=entropy_coeff,
        )
        super().training(**kwargs)
        return self

    def get_default_learner_class(self) -> type[GRPOLearner]:
        return GRPOLearner

    def validate(self) -> None:
        super().validate()
        if self.in_evaluation:
            return
        if self.group_size < 2:
            raise ConfigError(
                "GRPOConfig: group_size must be at least 2, since one episode has no group mean; got "
                f"{self.group_size}. Set .env_runners(group_size=...)."
            )
        for name in ("clip_low", "clip_high", "kl_coeff", "entropy_coeff"):
            if not isinstance(getattr(self, name), (int, float)) or getattr(self, name) < 0:
                raise ConfigError(f"GRPOConfig: {name} must be a number of at least 0; got {getattr(self, name)!r}.")
        if self.kl_kind not in ("k1", "k2", "k3"):
            raise ConfigError(f"GRPOConfig: kl_kind must be k1, k2 or k3; got {self.kl_kind!r}.")


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
            batch["advantage"][:, None],
            batch["mask"],
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            num_tokens=batch["num_tokens"],
            weight_BT=weight_BT,
        )


class GRPO(LLMAlgorithm):
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
