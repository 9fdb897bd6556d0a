"""RLOO: REINFORCE with the mean of the group's other episodes as baseline."""

from __future__ import annotations

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import leave_one_out_advantage
from rllm_gym.algorithms.group_relative import GroupRelative, GroupRelativeConfig
from rllm_gym.options.methods import RLOOOptions


class RLOOConfig(GroupRelativeConfig, RLOOOptions):
    """Configuration of RLOO.

    Source: Ahmadian et al. 2024, arXiv:2402.14740. As there, the return holds the KL to the reference
    (`kl_in="reward"`), once `kl_coeff` is above 0.

    Differs: the loss is the clipped surrogate, whose gradient is REINFORCE's at the first optimizer step and which
    holds further ones (`num_epochs`, `num_minibatches`) near the sampling policy. A group of equal returns is dropped.
    """


class RLOO(GroupRelative):
    """Samples groups of episodes of the same task and reinforces each by its return less the mean of the others'."""

    config_class = RLOOConfig

    @override(GroupRelative)
    def compare(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        return leave_one_out_advantage(return_N, group_N)
