"""ReMax: REINFORCE with the greedy episode of the same task as baseline."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.functional import greedy_baseline_advantage
from rllm_gym.algorithms.group_method import GroupLearner, without_empty_groups
from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.errors import ConfigError
from rllm_gym.types import TaskGroup


class ReMaxConfig(PolicyGradientConfig):
    """Configuration of ReMax.

    Source: Li et al. 2023, arXiv:2310.10505.

    Differs: the loss is the clipped surrogate, whose gradient is REINFORCE's at the first optimizer step. The baseline
    is the greedy episode's return, without a KL penalty: the KL stands in the loss.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or ReMax)
        self.group_size = 1
        self.groups_per_step = 64
        self.learners(learner_class=GroupLearner)

    def get_default_learner_class(self) -> type[GroupLearner]:
        return GroupLearner

    @property
    def is_kl_in_reward(self) -> bool:
        return False

    @property
    def has_learner_advantages(self) -> bool:
        return False

    def validate(self) -> None:
        super().validate()
        if self.in_evaluation:
            return
        if self.kl_in != "loss":
            raise ConfigError(f"ReMaxConfig: kl_in must be loss; got {self.kl_in!r}.")
        if len(self.policies) > 1 or self.is_multi_agent:
            raise ConfigError("ReMaxConfig: environments of several agents have no one greedy episode to compare with.")


class ReMax(PolicyGradient):
    """Plays every task greedily beside the sampled episodes and reinforces what did better than that."""

    config: ReMaxConfig

    @classmethod
    def get_default_config(cls) -> ReMaxConfig:
        return ReMaxConfig()

    def compute_advantages(self, streams: list[SingleAgentEpisode], group: list[int]) -> Sequence[float | None]:
        """Return each stream's advantage; None where its group has none, or the greedy episode failed."""
        task_of = {g: stream.custom_data["episode"].group for stream, g in zip(streams, group, strict=True)}
        tasks = {task.key: g for g, task in task_of.items()}
        greedy = [TaskGroup(task.key, task.item_id, 1, task.env_index) for task in task_of.values()]
        played, _ = self.sample(greedy, max_episode_steps=self.max_episode_steps, greedy=True)
        baseline = {tasks[episode.custom_data["episode"].group.key]: episode.get_return() for episode in played}
        has_baseline = torch.tensor([g in baseline for g in group])
        return_N = torch.tensor([stream.get_return() for stream in streams], dtype=torch.float64)
        group_N = torch.tensor(group)
        advantage_N = torch.zeros_like(return_N)
        advantage_N[has_baseline] = greedy_baseline_advantage(
            return_N[has_baseline],
            group_N[has_baseline],
            torch.tensor(list(baseline.values()), dtype=torch.float64),
            torch.tensor(list(baseline), dtype=group_N.dtype),
        )
        return without_empty_groups(advantage_N, group_N)
