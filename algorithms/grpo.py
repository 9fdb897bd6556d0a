"""GRPO: group-relative policy optimization over many turns, and the methods that grew from it, as presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import torch
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.functional import (
    averaging_weight,
    group_relative_advantage,
    sequence_clipped_surrogate,
    sequence_ratio,
    soft_overlong_penalty,
    step_group_advantage,
)
from rllm_gym.algorithms.group_method import GroupLearner, GroupMethod, GroupMethodConfig
from rllm_gym.errors import ConfigError, nearest

PRESETS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024, arXiv:2402.03300, eq. 3 and section 4.2 (the KL's weight); the clip range is PPO's.
    "grpo": {"normalize_std": True, "loss_average": "sequences", "clip_low": 0.2, "clip_high": 0.2}
    | {"kl_coeff": 0.04, "kl_kind": "k3", "kl_in": "loss"},
    # Liu et al. 2025, arXiv:2503.20783, section 3: neither of the two divisions that favour long wrong answers and easy
    # tasks; the clip range is PPO's.
    "dr_grpo": {"normalize_std": False, "loss_average": "constant", "clip_high": 0.2},
    # Yu et al. 2025, arXiv:2503.14476, section 4.1: a buffer of 4,096 of 20,480 tokens, no KL; 10 rounds
    # are verl's recipe's (filter_groups.max_num_gen_batches).
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "loss_average": "tokens", "overlong_buffer": 0.2, "kl_coeff": 0.0}
    | {"max_refill_rounds": 10},
    # Zheng et al. 2025, arXiv:2507.18071, section 5.1: the clip range of its eq. 5.
    "gspo": {"ratio_level": "sequence", "loss_average": "sequences", "clip_low": 3e-4, "clip_high": 4e-4},
    # Feng et al. 2025, arXiv:2505.10978: omega 1, gamma 0.95, and verl's default clip range; their ALFWorld script
    # (verl-agent) divides by the standard deviation, as the default here.
    "gigpo": {"step_weight": 1.0, "step_gamma": 0.95, "clip_high": 0.2},
}


class GRPOConfig(GroupMethodConfig):
    """Configuration of GRPO.

    Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300; `clip_high` above `clip_low`, `overlong_buffer`,
    `max_refill_rounds` and the mean over tokens: Yu et al. 2025 (DAPO), arXiv:2503.14476; `normalize_std=False` and
    `loss_average="constant"`: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783; `ratio_level="sequence"`: Zheng et al. 2025
    (GSPO), arXiv:2507.18071; `step_weight`: Feng et al. 2025 (GiGPO), arXiv:2505.10978.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or GRPO)
        self.clip_high = 0.28
        self.normalize_std: bool = True
        self.loss_average: str = "tokens"
        self.ratio_level: str = "token"
        self.overlong_buffer: float = 0.0
        self.step_weight: float = 0.0
        self.step_gamma: float = 0.95
        self.preset: str | None = None
        self.learners(learner_class=GRPOLearner)

    def training(
        self,
        *,
        preset: Literal["grpo", "dr_grpo", "dapo", "gspo", "gigpo"] | None = NotProvided,
        normalize_std: bool = NotProvided,
        loss_average: Literal["tokens", "sequences", "constant"] = NotProvided,
        ratio_level: Literal["token", "sequence"] = NotProvided,
        overlong_buffer: float = NotProvided,
        step_weight: float = NotProvided,
        step_gamma: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the method's own options.

        Args:
            preset: sets the options of GRPO as published, or of a method that grew from it (see `PRESETS`); options
                given beside it win.
            normalize_std: divide advantages by their group's standard deviation.
            loss_average: what the surrogate is averaged over: `tokens` of the train step, `sequences` and each one's
                tokens, or `constant`: a sum over tokens, divided by sequences times `max_model_len`. The KL and entropy
                terms are averaged over tokens.
            ratio_level: one probability ratio per `token` or per `sequence`.
            overlong_buffer: share of `max_model_len` over which the return of a long episode falls by 1; 0 for none.
            step_weight: weight of a turn's advantage among the turns of its group that began with the same observation;
                0 gives all turns the episode's.
            step_gamma: discount per turn of the returns that such turns are compared by.
        """
        self._set(
            preset=preset,  # first, so that the others win
            normalize_std=normalize_std,
            loss_average=loss_average,
            ratio_level=ratio_level,
            overlong_buffer=overlong_buffer,
            step_weight=step_weight,
            step_gamma=step_gamma,
        )
        super().training(**kwargs)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "preset" and value is not None:
            if value not in PRESETS:
                raise ConfigError(
                    f"GRPOConfig: no preset has this name; got {value!r}. Did you mean {nearest(value, PRESETS)!r}?"
                )
            for option, preset_value in PRESETS[value].items():
                setattr(self, option, preset_value)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        # The preset first, wherever it stands, so that the options beside it win.
        return super().update_from_dict(dict(sorted(config_dict.items(), key=lambda item: item[0] != "preset")))

    def get_default_learner_class(self) -> type[GRPOLearner]:
        return GRPOLearner

    def group_advantage(self, return_N: torch.Tensor, group_N: torch.Tensor) -> torch.Tensor:
        return group_relative_advantage(return_N, group_N, normalize_std=self.normalize_std)

    def shaped_return(self, return_N: torch.Tensor, num_tokens_N: torch.Tensor) -> torch.Tensor:
        if self.overlong_buffer == 0:
            return return_N
        buffer = round(self.overlong_buffer * self.max_model_len)
        return return_N + soft_overlong_penalty(num_tokens_N, max_tokens=self.max_model_len, buffer=buffer)

    def validate(self) -> None:
        super().validate()
        if self.in_evaluation:
            return
        self._check_at_least(overlong_buffer=0, step_weight=0, step_gamma=0)
        self._check_one_of(loss_average=("tokens", "sequences", "constant"), ratio_level=("token", "sequence"))
        for name in ("overlong_buffer", "step_gamma"):
            if getattr(self, name) > 1:
                raise ConfigError(f"GRPOConfig: {name} must be between 0 and 1; got {getattr(self, name)!r}.")
        if self.step_weight > 0 and (self.is_kl_in_reward or self.ratio_level == "sequence"):
            raise ConfigError(
                "GRPOConfig: step_weight gives every turn an advantage of its own, which a KL in the reward or a ratio "
                f"per sequence cannot keep; got kl_in: {self.kl_in}, ratio_level: {self.ratio_level}. Set kl_in: loss "
                "and ratio_level: token."
            )
        if self.ratio_level == "sequence" and (self.loss_average != "sequences" or self.importance_correction != "off"):
            raise ConfigError(
                "GRPOConfig: ratio_level: sequence goes with loss_average: sequences and importance_correction: off; "
                f"got {self.loss_average} and {self.importance_correction}. Set preset: gspo."
            )


class GRPOLearner(GroupLearner):
    """The clipped surrogate by tokens or by sequences, averaged as the configuration says."""

    def policy_loss(
        self,
        batch: dict[str, torch.Tensor],
        logp_BT: torch.Tensor,
        old_logp_BT: torch.Tensor,
        weight_BT: torch.Tensor | None,
    ) -> torch.Tensor:
        config, mask_BT = self.config, batch["mask"]
        if config.ratio_level == "sequence":
            return sequence_clipped_surrogate(
                logp_BT,
                old_logp_BT,
                batch["advantage"].sum(1) / mask_BT.sum(1).clamp(min=1),  # the same at all tokens
                mask_BT,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                num_sequences=batch["num_sequences"],
            )
        if config.loss_average != "tokens":
            average_BT = averaging_weight(
                mask_BT,
                over=config.loss_average,
                num_tokens=batch["num_tokens"],
                num_sequences=batch["num_sequences"],
                max_tokens=config.max_model_len,
            )
            weight_BT = average_BT if weight_BT is None else weight_BT * average_BT
        return super().policy_loss(batch, logp_BT, old_logp_BT, weight_BT)

    def ratio(self, logp_BT: torch.Tensor, old_logp_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        if self.config.ratio_level == "sequence":
            return sequence_ratio(logp_BT, old_logp_BT, mask_BT)[:, None].expand_as(mask_BT)
        return super().ratio(logp_BT, old_logp_BT, mask_BT)


class GRPO(GroupMethod):
    """Samples groups of episodes of the same task and reinforces what did better than its group."""

    config: GRPOConfig

    @classmethod
    def get_default_config(cls) -> GRPOConfig:
        return GRPOConfig()

    def compute_advantages(
        self, streams: list[SingleAgentEpisode], group: list[int]
    ) -> Sequence[float | Sequence[float] | None]:
        if self.config.step_weight == 0:
            return super().compute_advantages(streams, group)
        num_turns = [len(stream.get_actions()) for stream in streams]
        reward_NU = torch.zeros(len(streams), max(num_turns), dtype=torch.float64)
        state_NU = torch.zeros(reward_NU.shape, dtype=torch.long)
        labels: dict[bytes, int] = {}
        for n, stream in enumerate(streams):
            reward_NU[n, : num_turns[n]] = torch.tensor(stream.get_rewards(), dtype=torch.float64)
            # The overlong penalty is part of the last turn's reward.
            reward_NU[n, num_turns[n] - 1] += self.returns([stream])[0] - stream.get_return()
            for u, observation in enumerate(stream.get_observations()[: num_turns[n]]):
                state_NU[n, u] = labels.setdefault(observation.tobytes(), len(labels))
        advantage_NU = step_group_advantage(
            reward_NU,
            state_NU,
            torch.arange(reward_NU.shape[1]) < torch.tensor(num_turns)[:, None],
            torch.tensor(group),
            gamma=self.config.step_gamma,
            normalize_std=self.config.normalize_std,
            step_weight=self.config.step_weight,
        )
        kept = {g for g, advantages in zip(group, advantage_NU, strict=True) if advantages.any()}
        return [advantage_NU[n, : num_turns[n]].tolist() if g in kept else None for n, g in enumerate(group)]
