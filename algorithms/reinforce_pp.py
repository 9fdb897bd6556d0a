"""REINFORCE++: token-level returns with the KL in the reward, whitened over the whole batch; no critic, no groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.functional import discounted_return, group_relative_advantage, whiten
from rllm_gym.algorithms.group_method import GroupLearner, GroupMethod, GroupMethodConfig
from rllm_gym.algorithms.policy_gradient import PolicyGradientConfig
from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import Batch


class ReinforcePPConfig(GroupMethodConfig):
    """Configuration of REINFORCE++.

    Source: Hu et al. 2025, arXiv:2501.03262: `baseline="none"` is REINFORCE++ (k1 in the reward, one episode per task),
    `baseline="group"` REINFORCE++-baseline (several, less their mean; the paper puts the KL in the loss there:
    `kl_in="loss", kl_kind="k2"`).

    Differs: gamma counts sampled tokens, the environment's replies are no time steps.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or ReinforcePP)
        self.gamma = 1.0
        self.baseline: str = "none"
        self.kl_in = "reward"
        self.kl_kind = "k1"
        self.group_size = 1
        self.groups_per_step = 64
        self.learners(learner_class=ReinforcePPLearner)

    def training(self, *, baseline: Literal["none", "group"] = NotProvided, **kwargs: Any) -> Self:
        """Set the method's own options.

        Args:
            baseline: what is taken off an episode's return: `none`, or the mean of its `group`.
        """
        self._set(baseline=baseline)
        super().training(**kwargs)
        return self

    def get_default_learner_class(self) -> type[ReinforcePPLearner]:
        return ReinforcePPLearner

    @property
    def has_learner_advantages(self) -> bool:
        return self.baseline == "none" or super().has_learner_advantages

    def group_advantage(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        return group_relative_advantage(return_N, group_N, normalize_std=False)

    def validate(self) -> None:
        if self.baseline == "group":
            super().validate()
        else:
            PolicyGradientConfig.validate(self)
        if self.in_evaluation:
            return
        self._check_one_of(baseline=("none", "group"))
        self._check_at_least(gamma=0)
        if self.gamma > 1:
            raise ConfigError(f"ReinforcePPConfig: gamma must be at most 1; got {self.gamma!r}.")
        if self.baseline == "group" and self.gamma != 1:
            raise ConfigError(
                "ReinforcePPConfig: baseline: group compares whole episodes, whose returns are not discounted; got "
                f"gamma: {self.gamma!r}. Set gamma: 1.0, or baseline: none."
            )


class ReinforcePPLearner(GroupLearner):
    """The clipped surrogate, with returns whitened over the sampled tokens of all learners."""

    def set_advantages(self, module_id: str, batch: Batch) -> None:
        if self.config.baseline == "group":
            super().set_advantages(module_id, batch)
            advantage_BT = batch.per_token["advantage"]
        else:
            advantage_BT = discounted_return(batch.per_token["reward"], batch.mask, gamma=self.config.gamma)
        batch.per_token["advantage"] = whiten(advantage_BT, batch.mask, all_reduce=self.sum_over_learners)


class ReinforcePP(GroupMethod):
    """Samples episodes and reinforces each token by how its return compares with the whole batch's."""

    @classmethod
    def get_default_config(cls) -> ReinforcePPConfig:
        return ReinforcePPConfig()

    def compute_advantages(
        self, streams: list[SingleAgentEpisode], group: list[int]
    ) -> Sequence[float | Sequence[float] | None]:
        """Return the group's part of the advantages; the learners whiten, over every episode."""
        if self.config.has_learner_advantages:
            return super().compute_advantages(streams, group)
        return self.config.group_advantage(self.returns(streams), torch.tensor(group)).tolist()
