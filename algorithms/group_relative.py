"""The base of GRPO and RLOO: the returns that an agent's return is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import joint_advantage, role_advantage, turn_advantage
from rllm_gym.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from rllm_gym.options.methods import GroupRelativeOptions
from rllm_gym.options.table import faults_raised_by
from rllm_gym.rollout.environments import players_change_seats
from rllm_gym.training.advantage_rows import AdvantageRows


class GroupRelativeConfig(PolicyGradientConfig, GroupRelativeOptions):
    """Options of the methods that compare the episodes of a group."""

    @override(GroupRelativeOptions)
    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if faults_raised_by(lambda: self.opponent_specs):  # said above
            return
        opponents = [opponent for opponent in self.opponent_specs.values() if opponent.kind != "self"]
        has_several_players = len(self.policy_ids) > 1 or bool(opponents)
        if not has_several_players or not self._needs_group or self.group_size != 2:
            return
        for spec in self.environments:
            if players_change_seats(spec):
                yield (
                    f"{self.who}: in {spec.name} players change seats from episode to episode, and a policy's returns "
                    "are compared seat by seat: of group_size: 2 each policy, beside others or opponents, has one "
                    "episode in each, and nothing to compare it with. Set group_size: 4, or more."
                )


class GroupRelative(PolicyGradient):
    """Reinforces what did better than what it is compared with; a method gives `compare`."""

    config: GroupRelativeConfig

    def compare(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        """Return how much better each return is than the others of its group, [N]."""
        raise NotImplementedError

    @override(PolicyGradient)
    def setup(self, config: GroupRelativeConfig) -> None:
        self.role_baselines: dict[str, float] = {}  # by module, environment and role
        super().setup(config)

    @override(PolicyGradient)
    def advantage(self, rows: AdvantageRows) -> torch.Tensor:
        group_N, return_N = rows.group_N, self.returns(rows)
        match self.config.advantage:
            case "agent":  # for a group holds the episodes of one role
                return self.compare(return_N, group_N)
            case "joint":
                size_N = rows.reward_size_N + rows.others_size_N
                return joint_advantage(return_N, rows.others_return_N, group_N, compare=self.compare, size_N=size_N)
            case "role":
                advantage_N, self.role_baselines = role_advantage(
                    return_N, self._roles(rows), self.role_baselines, decay=self.config.role_decay
                )
                return advantage_N
        reward_NU, mask_NU, gamma = self.turn_rewards(rows), rows.turn_mask_NU, self.config.step_gamma
        turn_NU = torch.arange(mask_NU.shape[1]).expand_as(mask_NU)
        return rows.of_turns(turn_advantage(reward_NU, turn_NU, mask_NU, group_N, gamma=gamma, compare=self.compare))

    def returns(self, rows: AdvantageRows) -> torch.Tensor:
        """Return each row's return, float64 [N]."""
        return rows.return_N

    def turn_rewards(self, rows: AdvantageRows) -> torch.Tensor:
        """Return the reward of each turn, float64 [N, U]; what `returns` adds stands at the last one."""
        reward_NU, last_N = rows.turn_reward_NU, rows.turn_mask_NU.sum(1) - 1
        return reward_NU.scatter_add(1, last_N[:, None], (self.returns(rows) - rows.return_N)[:, None])

    def _roles(self, rows: AdvantageRows) -> list[str]:
        first = [row[0] for row in rows.samples]
        games = [self.environments[self.sampled.tasks[sample.group].env_index].name for sample in first]
        return [f"{sample.module}/{game}/{sample.role}" for sample, game in zip(first, games, strict=True)]

    @override(PolicyGradient)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().get_state(*args, **kwargs) | {"role_baselines": dict(self.role_baselines)}

    @override(PolicyGradient)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.role_baselines = dict(state.get("role_baselines", {}))
