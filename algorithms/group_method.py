"""What the methods share that compare an episode with the others of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.algorithms.policy_learner import PolicyLearner
from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import Batch
from rllm_gym.learner.connectors import num_tokens


class GroupMethodConfig(PolicyGradientConfig):
    """Options of the methods whose baseline is the group; a method gives `group_advantage`."""

    def group_advantage(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        """Return each episode's advantage; 0 in a group that carries no signal."""
        raise NotImplementedError

    def shaped_return(self, return_N: torch.Tensor, num_tokens_N: torch.Tensor) -> torch.Tensor:
        """Return the returns to compare.

        Args:
            return_N: float, the sums of the rewards.
            num_tokens_N: int, tokens of the episodes, up to the last sampled one.
        """
        return return_N

    @property
    def is_kl_in_reward(self) -> bool:
        return self.kl_coeff > 0 and self.kl_in == "reward"

    @property
    def has_learner_advantages(self) -> bool:
        return self.is_kl_in_reward

    def validate(self) -> None:
        super().validate()
        if not self.in_evaluation and self.group_size < 2:
            raise ConfigError(
                f"{type(self).__name__}: group_size must be at least 2, since one episode has no group mean; got "
                f"{self.group_size}. Set .env_runners(group_size=...)."
            )


class GroupLearner(PolicyLearner):
    """One advantage for all tokens of an episode, or of a turn."""

    def set_advantages(self, module_id: str, batch: Batch) -> None:
        """Compare the returns here where a KL penalty has moved them, which the driver does not know."""
        if not self.config.is_kl_in_reward:
            return
        is_real_B = batch.mask.any(1)  # a learner without data holds a row without tokens
        return_B = batch.per_token["reward"].sum(1).double()
        (return_N, length_N, group_N), mine = self._of_all_learners(
            return_B[is_real_B], batch.lengths[is_real_B], batch.per_sequence["group"][is_real_B]
        )
        advantage_N = self.config.group_advantage(self.config.shaped_return(return_N, length_N), group_N)
        advantage_B = torch.zeros_like(return_B, dtype=torch.float32)
        advantage_B[is_real_B] = advantage_N[mine].to(advantage_B)
        batch.per_token["advantage"] = advantage_B[:, None] * batch.mask

    @staticmethod
    def _of_all_learners(*columns: torch.Tensor) -> tuple[list[torch.Tensor], slice]:
        """Return the columns with all learners' rows, and which of them are this learner's (collective)."""
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, [column.cpu() for column in columns])
        first = sum(len(part[0]) for part in parts[: dist.get_rank()])
        return [torch.cat(column) for column in zip(*parts, strict=True)], slice(first, first + len(columns[0]))


class GroupMethod(PolicyGradient):
    """Samples groups of episodes of the same task and compares their returns."""

    config: GroupMethodConfig

    def compute_advantages(
        self, streams: list[SingleAgentEpisode], group: list[int]
    ) -> Sequence[float | Sequence[float] | None]:
        """Return each stream's advantage; None where its whole group has none, which teaches nothing."""
        if self.config.has_learner_advantages:
            return super().compute_advantages(streams, group)
        group_N = torch.tensor(group)
        return without_empty_groups(self.config.group_advantage(self.returns(streams), group_N), group_N)

    def returns(self, streams: list[SingleAgentEpisode]) -> torch.Tensor:
        """Return float64 [N], what the streams are compared by."""
        return_N = torch.tensor([stream.get_return() for stream in streams], dtype=torch.float64)
        return self.config.shaped_return(return_N, torch.tensor([num_tokens(stream) for stream in streams]))


def without_empty_groups(advantage_N: torch.Tensor, group_N: torch.Tensor) -> list[float | None]:
    """Return the advantages as a list, None in groups that have only zeros."""
    kept = set(group_N[advantage_N != 0].tolist())
    return [a if g in kept else None for a, g in zip(advantage_N.tolist(), group_N.tolist(), strict=True)]
