"""REINFORCE++: token-level returns with the KL in the reward, whitened over the whole batch; no critic, no groups."""

from __future__ import annotations

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import discounted_return, group_relative_advantage, whiten
from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.options.methods import ReinforcePPOptions
from rllm_gym.training.advantage_rows import AdvantageRows


class ReinforcePPConfig(PolicyGradientConfig, ReinforcePPOptions):
    """Configuration of REINFORCE++.

    Source: Hu et al. 2025, arXiv:2501.03262: `baseline="none"` is REINFORCE++ (k1 in the reward, one episode per task),
    `baseline="group"` REINFORCE++-baseline (several, less their mean; the paper puts the KL in the loss there:
    `kl_in="loss", kl_kind="k2"`).

    Differs: gamma counts sampled tokens, the environment's replies are no time steps.
    """


class ReinforcePP(PolicyGradient):
    """Samples episodes and reinforces each token by how its return compares with the whole batch's."""

    config_class = ReinforcePPConfig
    config: ReinforcePPConfig

    @override(PolicyGradient)
    def advantage(self, rows: AdvantageRows) -> torch.Tensor:
        mask_NK = rows.mask_NK
        if self.config.baseline == "group":
            advantage_N = group_relative_advantage(rows.return_N, rows.group_N, normalize_std=False)
            return whiten(advantage_N[:, None] * mask_NK, mask_NK)
        return whiten(discounted_return(rows.reward_NK, mask_NK, gamma=self.config.gamma), mask_NK)
