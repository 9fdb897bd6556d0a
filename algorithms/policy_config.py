"""The options of the policy-gradient methods."""

from __future__ import annotations

from typing import Any, Literal, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import KL_KINDS
from rllm_gym.errors import ConfigError
from rllm_gym.training.config import LLMConfig


class PolicyGradientConfig(LLMConfig):
    """Options of every method that reinforces the tokens it sampled."""

    _needs_group = False  # with an underscore: RLlib takes attributes without one for options

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.clip_low: float = 0.2
        self.clip_high: float = 0.2
        self.dual_clip: float | None = None
        self.ratio_level: str = "token"
        self.loss_average: str = "tokens"
        self.loss_constant: int | None = None
        self.kl_coeff: float = 0.0
        self.kl_kind: str = "k3"
        self.kl_in: str = "loss"
        self.kl_target: float | None = None
        self.kl_rate: float = 0.1
        self.entropy_coeff: float = 0.0
        self.old_logp: str = "rollout"
        self.importance_correction: str = "off"
        self.importance_mode: str = "truncate"
        self.importance_cap: float = 2.0
        self.importance_veto: float | None = None
        self.invalid_action_penalty: float = 0.0
        self.overlong_filter: bool = False
        self.filter_groups: str = "advantage"
        self.max_empty_steps: int = 10
        self.max_refill_rounds: int = 0

    @override(LLMConfig)
    def training(
        self,
        *,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        dual_clip: float | None = NotProvided,
        ratio_level: Literal["token", "sequence"] = NotProvided,
        loss_average: Literal["tokens", "sequences", "episodes", "constant"] = NotProvided,
        loss_constant: int | None = NotProvided,
        kl_coeff: float = NotProvided,
        kl_kind: Literal["k1", "k2", "k3", "low_variance"] = NotProvided,
        kl_in: Literal["loss", "reward"] = NotProvided,
        kl_target: float | None = NotProvided,
        kl_rate: float = NotProvided,
        entropy_coeff: float = NotProvided,
        old_logp: Literal["rollout", "recompute"] = NotProvided,
        importance_correction: Literal["off", "token", "sequence"] = NotProvided,
        importance_mode: Literal["truncate", "mask"] = NotProvided,
        importance_cap: float = NotProvided,
        importance_veto: float | None = NotProvided,
        invalid_action_penalty: float = NotProvided,
        overlong_filter: bool = NotProvided,
        filter_groups: Literal["advantage", "success", "off"] = NotProvided,
        max_empty_steps: int = NotProvided,
        max_refill_rounds: int = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the options of policy-gradient methods.

        Args:
            clip_low, clip_high: how far the probability ratio may fall below and rise above 1.
            dual_clip: bounds the loss of a negative advantage to so many times its size; None does not. At least 1.
            ratio_level: one probability ratio per `token` or per `sequence`.
            loss_average: what surrogate, KL and entropy are averaged over: `tokens` of the minibatch; `sequences`, or
                `episodes`, and each one's tokens; `constant`: a sum over tokens, over sequences times `loss_constant`.
            loss_constant: tokens; None is the most that an episode can sample, min(`max_model_len`, longest horizon x
                `max_new_tokens`).
            kl_coeff: weight of the KL to the frozen `base_model`; 0 keeps no reference model in memory.
            kl_kind: the estimator, see `rllm_gym.algorithms.functional.kl_estimate`.
            kl_in: where the KL stands: `loss`, or `reward`, as a penalty on every sampled token.
            kl_target: nats per token; makes `kl_coeff` follow after every train step, so that the KL stays there; None
                keeps it fixed. See `rllm_gym.algorithms.functional.adaptive_kl_coeff`.
            kl_rate: how fast it follows.
            entropy_coeff: weight of an entropy bonus.
            old_logp: log-probabilities of the sampling policy: as the sampler recorded them, or recomputed by the
                trainer.
            importance_correction: weighs the surrogate by trainer / sampler probability, of each `token` or of the
                whole `sequence`; needs `old_logp: recompute`. See `rllm_gym.algorithms.functional.importance_weight`.
            importance_mode: `truncate` holds weights to `importance_cap`, `mask` drops what is beyond it.
            importance_cap: see above.
            importance_veto: drops a sequence with a token whose weight is below this; None drops none.
            invalid_action_penalty: taken off the reward of a turn whose action the environment called invalid.
            overlong_filter: leave episodes out of the loss that ended because the context was full; they still count in
                their group's statistics. Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.4.
            filter_groups: which groups are dropped: those whose `advantage`s are all 0, or whose episodes all succeeded
                or all failed (`success`), or none (`off`).
            max_empty_steps: train steps in a row that may teach nothing (all groups dropped) before the run stops.
            max_refill_rounds: how often a train step samples fresh tasks for the groups that it dropped (dynamic
                sampling, Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.2); 0 goes on with what is left.
        """
        self._set(
            clip_low=clip_low,
            clip_high=clip_high,
            dual_clip=dual_clip,
            ratio_level=ratio_level,
            loss_average=loss_average,
            loss_constant=loss_constant,
            kl_coeff=kl_coeff,
            kl_kind=kl_kind,
            kl_in=kl_in,
            kl_target=kl_target,
            kl_rate=kl_rate,
            entropy_coeff=entropy_coeff,
            old_logp=old_logp,
            importance_correction=importance_correction,
            importance_mode=importance_mode,
            importance_cap=importance_cap,
            importance_veto=importance_veto,
            invalid_action_penalty=invalid_action_penalty,
            overlong_filter=overlong_filter,
            filter_groups=filter_groups,
            max_empty_steps=max_empty_steps,
            max_refill_rounds=max_refill_rounds,
        )
        super().training(**kwargs)
        return self

    @override(LLMConfig)
    def get_default_learner_class(self) -> type:
        from rllm_gym.algorithms.policy_gradient import PolicyLearner

        return PolicyLearner

    @property
    def is_kl_in_reward(self) -> bool:
        return self.kl_coeff > 0 and self.kl_in == "reward"

    @property
    def max_tokens_to_bootstrap(self) -> int | None:
        """How much of a truncated episode a critic reads to value its end; None where nothing bootstraps."""
        return None

    @property
    def num_loss_tokens(self) -> int:
        """The divisor of `loss_average: constant`."""
        if self.loss_constant is not None:
            return self.loss_constant
        horizons = [horizon for schedule in self.horizon_schedules.values() for horizon in schedule.horizons]
        longest = max((self.max_model_len if horizon is None else horizon) for horizon in horizons)
        return min(self.max_model_len, longest * self.max_new_tokens)

    @property
    def scores_for_advantage(self) -> list[str]:
        """The fields of samples that the learners compute before the advantages."""
        if not self.is_kl_in_reward:
            return []
        return ["ref_logp", "trainer_logp"] if self.old_logp == "recompute" else ["ref_logp"]

    @property
    def scores_for_loss(self) -> list[str]:
        """Those that only the loss needs: computed for what is trained on."""
        # In the only optimizer step the weights still are those before the update.
        has_later_step = self.num_epochs * self.num_minibatches > 1
        wanted = ["ref_logp"] * (self.kl_coeff > 0)
        wanted += ["trainer_logp"] * (self.old_logp == "recompute" and has_later_step)
        return [name for name in wanted if name not in self.scores_for_advantage]

    @override(LLMConfig)
    def validate(self) -> None:
        super().validate()
        if self.in_evaluation:
            return
        who = type(self).__name__
        self._check_at_least(
            clip_low=0,
            clip_high=0,
            kl_coeff=0,
            kl_rate=0,
            entropy_coeff=0,
            importance_cap=1,
            invalid_action_penalty=0,
            max_empty_steps=1,
            max_refill_rounds=0,
        )
        for name, least in {"dual_clip": 1, "loss_constant": 1, "importance_veto": 0, "kl_target": 0}.items():
            if getattr(self, name) is not None:
                self._check_at_least(**{name: least})
        self._check_one_of(
            kl_kind=KL_KINDS,
            kl_in=("loss", "reward"),
            old_logp=("rollout", "recompute"),
            ratio_level=("token", "sequence"),
            loss_average=("tokens", "sequences", "episodes", "constant"),
            importance_correction=("off", "token", "sequence"),
            importance_mode=("truncate", "mask"),
            filter_groups=("advantage", "success", "off"),
        )
        if self._needs_group and self.group_size < 2:
            raise ConfigError(
                f"{who}: group_size must be at least 2, since one episode has no group mean; got {self.group_size}. "
                "Set .env_runners(group_size=...)."
            )
        if self.kl_target is not None and 0 in (self.kl_target, self.kl_coeff):
            raise ConfigError(
                f"{who}: kl_target and the kl_coeff to begin with must be above 0; got {self.kl_target} and "
                f"{self.kl_coeff}. Set both, or kl_target: null for a fixed coefficient."
            )
        if self.temperature == 0:
            raise ConfigError(
                f"{who}: training needs temperature above 0, or a group's episodes are all the same; got 0."
            )
        if (self.top_p, self.top_k) != (1, 0):
            raise ConfigError(
                f"{who}: top_p and top_k must be off (1.0 and 0) in training, or the sampler's log-probabilities are "
                f"of another distribution than the trainer's; got {self.top_p} and {self.top_k}. Leave them out."
            )
        if self.importance_correction != "off" and self.old_logp != "recompute":
            raise ConfigError(
                f"{who}: importance_correction: {self.importance_correction} compares the trainer's old "
                "log-probabilities with the sampler's; got old_logp: rollout. Set old_logp: recompute."
            )
        if self.importance_correction == "off" and self.importance_veto is not None:
            raise ConfigError(
                f"{who}: importance_veto goes with an importance_correction; got off. Set token or sequence."
            )
        if self.ratio_level == "sequence" and self.loss_average in ("tokens", "constant"):
            raise ConfigError(
                f"{who}: ratio_level: sequence needs loss_average: sequences or episodes, for every token carries its "
                f"sequence's loss; got {self.loss_average}. Set it, or preset: gspo."
            )
