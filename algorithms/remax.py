"""ReMax: REINFORCE with the greedy episode of the same task as baseline."""

from __future__ import annotations

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import greedy_baseline_advantage
from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.options.methods import ReMaxOptions
from rllm_gym.training.advantage_rows import AdvantageRows
from rllm_gym.types import TaskGroup


class ReMaxConfig(PolicyGradientConfig, ReMaxOptions):
    """Configuration of ReMax.

    Source: Li et al. 2023, arXiv:2310.10505.

    Differs: the loss is the clipped surrogate, whose gradient is REINFORCE's at the first optimizer step. The baseline
    is the greedy episode's return, without a KL penalty: the KL stands in the loss.
    """


class ReMax(PolicyGradient):
    """Plays every task greedily beside the sampled episodes and reinforces what did better than that."""

    config_class = ReMaxConfig
    config: ReMaxConfig

    @override(PolicyGradient)
    def advantage(self, rows: AdvantageRows) -> torch.Tensor:
        """Return 0, too, where the greedy episode failed, or earned the same with the same penalties."""
        group_N, return_N = rows.group_N, rows.return_N
        group_of = {self.sampled.tasks[group].key: group for group in group_N.tolist()}
        tasks = [self.sampled.tasks[group] for group in group_of.values()]
        greedy = [TaskGroup(task.key, task.item_id, 1, task.env_index) for task in tasks]
        played, _ = self.sample(greedy, params=self.config.greedy_params)
        penalty = self.config.invalid_action_penalty
        baseline = {group_of[e.group.key]: sum(s.earnings(penalty)[0] for s in e.streams.values()) for e in played}
        has_baseline_N = torch.tensor([group in baseline for group in group_N.tolist()])
        advantage_N = torch.zeros_like(return_N)
        advantage_N[has_baseline_N] = greedy_baseline_advantage(
            return_N[has_baseline_N],
            group_N[has_baseline_N],
            torch.tensor(list(baseline.values()), dtype=torch.float64),
            torch.tensor(list(baseline), dtype=group_N.dtype),
            size_N=rows.reward_size_N[has_baseline_N],
        )
        return advantage_N
