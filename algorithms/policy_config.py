"""The configuration of the policy-gradient methods: which scores they need, and what losses are averaged over."""

from __future__ import annotations

from ray.rllib.utils.annotations import override

from rllm_gym.options.methods import PolicyGradientOptions
from rllm_gym.training.config import LLMConfig


class PolicyGradientConfig(LLMConfig, PolicyGradientOptions):
    """Options of every method that reinforces the tokens it sampled."""

    @override(LLMConfig)
    def get_default_learner_class(self) -> type:
        from rllm_gym.algorithms.policy_gradient import PolicyLearner

        return PolicyLearner

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
