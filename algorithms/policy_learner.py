"""The policy-gradient methods on the learners: the loss per token, and its averages."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.learner.learner import Learner
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import (
    Counts,
    aggregate,
    clipped_surrogate,
    importance_weight,
    kl_estimate,
    probability_ratio,
)
from rllm_gym.learner.deepspeed import DeepSpeedLearner, Forward
from rllm_gym.learner.rl_module import load_language_model
from rllm_gym.rotary import fix_rotary_frequencies


class PolicyLearner(DeepSpeedLearner):
    """A learner whose loss is `token_loss`, with the importance correction, plus the KL and entropy terms.

        L = average( w token_loss + kl_coeff KL - entropy_coeff H )

    A method whose loss is another overrides `token_loss`.

    Metrics under `learners/<module>/`: `policy_loss`; `kl` (k3 estimate of KL(sampling policy || policy)); `ref_kl` (KL
    to the reference, 0 without one); `kl_coeff`; `clip_fraction` (share of tokens whose ratio is outside the clip
    range); `first_clip_fraction` (of the first minibatch); `entropy` (nats per token); `importance_weight` (mean);
    `logp_difference_mean`, `logp_difference_max` (absolute, between sampler and trainer, in the first minibatch).
    """

    MEAN_STATS: tuple[str, ...] = (
        "policy_loss",
        "kl",
        "ref_kl",
        "clip_fraction",
        "first_clip_fraction",
        "entropy",
        "importance_weight",
        "logp_difference_mean",
    )
    MAX_STATS: tuple[str, ...] = ("logp_difference_max",)
    LOSS_STAT = "policy_loss"

    @override(DeepSpeedLearner)
    def build(self) -> None:
        self.kl_coeff: dict[str, float] = {}
        self._num_loss_tokens = self.config.num_loss_tokens
        super().build()
        # Outside the modules: neither trained nor synced or saved. Policies of one base model share one.
        self._references: dict[str, Any] = {}
        policies = [self.module[id_] for id_ in self.engines if not self.module[id_].learner_only]
        trusts = {"trust_remote_code": True} if self.config.trust_remote_code else {}
        for policy in policies if self.config.kl_coeff > 0 else ():
            base_model = policy.model_config["base_model"]
            if policy.model_config["lora"] is None and base_model not in self._references:
                lm = load_language_model(base_model, self.config.weight_dtype, **trusts)
                fix_rotary_frequencies(lm, self.config.max_model_len)
                self._references[base_model] = self.freeze(lm)

    @override(DeepSpeedLearner)
    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        super().before_gradient_based_update(timesteps=timesteps)
        self.kl_coeff = timesteps.get("kl_coeff", {})

    def token_loss(
        self, batch: dict[str, torch.Tensor], logp_BT: torch.Tensor, old_logp_BT: torch.Tensor, ratio_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of every token, [B, T]; the default is the clipped surrogate.

        Args:
            batch: a micro-batch: `advantage` and `mask` [B, T], and the rest of `rllm_gym.learner.batch`.
            logp_BT, old_logp_BT: now, and under the weights before the update.
            ratio_BT: exp(logp - old_logp), of tokens or of sequences (`ratio_level`).
        """
        return clipped_surrogate(
            ratio_BT,
            batch["advantage"],
            batch["mask"],
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            dual_clip=self.config.dual_clip,
        )

    @override(Learner)
    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        mask_BT, sampler_logp_BT, logp_BT = batch["mask"], batch["old_logp"], fwd_out["logp"]
        old_logp_BT = sampler_logp_BT
        if config.old_logp == "recompute":
            # In the first step the weights still are the old ones, and the ratio is 1 to the last bit.
            old_logp_BT = logp_BT.detach() if self.is_first_step else batch["trainer_logp"]
        ratio_BT = probability_ratio(logp_BT, old_logp_BT, mask_BT, level=config.ratio_level)
        loss_BT = self.token_loss(batch, logp_BT, old_logp_BT, ratio_BT)
        weight_BT = mask_BT.float()
        if config.importance_correction != "off":
            weight_BT = importance_weight(
                old_logp_BT,
                sampler_logp_BT,
                mask_BT,
                level=config.importance_correction,
                mode=config.importance_mode,
                cap=config.importance_cap,
                veto=config.importance_veto,
            )
            loss_BT = loss_BT * weight_BT
        counts = Counts(
            tokens=batch["num_tokens"],
            sequences=batch["num_sequences"],
            episodes=batch["num_episodes"],
            episode_tokens_B=batch["episode_tokens"],
            sequence_tokens_B=batch["sequence_tokens"],
            constant=self._num_loss_tokens,
        )
        statistics = {"entropy": fwd_out["entropy"], "importance_weight": weight_BT}
        self.add_step_means(policy_loss=aggregate(loss_BT.detach(), mask_BT, over=config.loss_average, counts=counts))
        if config.kl_coeff > 0:
            ref_kl_BT = kl_estimate(logp_BT, batch["ref_logp"], kind=config.kl_kind, mask_BT=mask_BT)
            statistics["ref_kl"] = ref_kl_BT
            if config.kl_in == "loss":
                loss_BT = loss_BT + self.kl_coeff.get(module_id, config.kl_coeff) * ref_kl_BT
        if config.entropy_coeff > 0:
            loss_BT = loss_BT - config.entropy_coeff * fwd_out["entropy"].masked_fill(~mask_BT, 0.0)
        ratio_BT, logp_BT = ratio_BT.detach(), logp_BT.detach()
        is_clipped_BT = ((ratio_BT < 1 - config.clip_low) | (ratio_BT > 1 + config.clip_high)).float()
        statistics |= {"kl": kl_estimate(old_logp_BT, logp_BT, kind="k3"), "clip_fraction": is_clipped_BT}
        if self.is_first_step:
            difference_BT = (logp_BT - sampler_logp_BT).abs()
            statistics |= {"first_clip_fraction": is_clipped_BT, "logp_difference_mean": difference_BT}
            self.add_maxima(mask_BT, logp_difference_max=difference_BT)
        self.add_means(mask_BT, **statistics)
        return aggregate(loss_BT, mask_BT, over=config.loss_average, counts=counts)

    @override(DeepSpeedLearner)
    def score_forward(self, name: str, module_id: str) -> Forward:
        if name != "ref_logp":
            return super().score_forward(name, module_id)
        settings = self.module[module_id].model_config

        def forward(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
            if settings["lora"] is not None:  # the reference is the model without its adapter
                with self.module[module_id].lm.disable_adapter():
                    return {name: self.engines[module_id](inputs)["logp"]}
            return {name: self._references[settings["base_model"]](inputs)["logp"]}

        return forward
