"""The options of the policy-gradient methods."""

from __future__ import annotations

from ray.rllib.utils.annotations import override

from rllm_gym.errors import ConfigError
from rllm_gym.options.each_method import PolicyGradientOptions
from rllm_gym.training.config import LLMConfig


class PolicyGradientConfig(LLMConfig, PolicyGradientOptions):
    """Options of every method that reinforces the tokens it sampled."""

    _needs_group = False  # with an underscore: RLlib takes attributes without one for options

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
        most = longest * self.max_new_tokens
        return most if any(spec.rewrites_history for spec in self.environments) else min(self.max_model_len, most)

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
        is_needed = self.old_logp == "recompute" and has_later_step
        wanted += ["trainer_logp"] * (is_needed or self.save_trainer_logp)
        return [name for name in wanted if name not in self.scores_for_advantage]

    @override(LLMConfig)
    def validate(self) -> None:
        super().validate()
        if self.in_evaluation:
            return
        who = type(self).__name__
        if self._needs_group and self.group_size < 2:
            raise ConfigError(
                f"{who}: group_size must be at least 2, since one episode has no group mean; got {self.group_size}. "
                "Set .env_runners(group_size=...)."
            )
        if self.task_sampling == "difficulty" and self.group_size < 2:
            raise ConfigError(
                f"{who}: task_sampling: difficulty compares the episodes of a task, so that group_size must be at "
                f"least 2; got {self.group_size}. Raise it, or set task_sampling: uniform."
            )
        if self.screening_size is not None:
            if not self._needs_group:
                raise ConfigError(
                    f"{who}: screening_size stops groups from which a comparison within them would learn nothing, and "
                    f"nothing is compared within a group here; got {self.screening_size}. Leave it out."
                )
            if self.screening_size >= self.group_size:
                raise ConfigError(
                    f"{who}: screening_size must be below group_size, or no episode is left to play after; got "
                    f"{self.screening_size} of {self.group_size}. Lower it, or leave it out."
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
        pools = [agent_id for agent_id, of in self.opponent_specs.items() if of.kind == "pool"]
        if self.staleness and pools:
            raise ConfigError(
                f"{who}: staleness must be 0 where opponents come from a pool, which would change under episodes that "
                f"go on; got {self.staleness}, and a pool for {pools[0]}."
            )
        if self.ratio_level == "sequence" and self.loss_average in ("tokens", "constant"):
            raise ConfigError(
                f"{who}: ratio_level: sequence needs loss_average: sequences or episodes, for every token carries its "
                f"sequence's loss; got {self.loss_average}. Set it, or preset: gspo."
            )
