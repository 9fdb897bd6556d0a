"""What the losses of all policy-gradient methods share: old log-probabilities, the reference policy, the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rllm_gym.algorithms.functional import kl_estimate, truncated_importance_weight
from rllm_gym.learner.batch import Batch
from rllm_gym.learner.deepspeed import DeepSpeedLearner
from rllm_gym.learner.rl_module import forward_logps, load_language_model


class PolicyLearner(DeepSpeedLearner):
    """A learner whose loss is `policy_loss` plus the KL and entropy terms; a method writes only `policy_loss`.

    Metrics under `learners/<module>/`: `policy_loss`; `kl` (k3 estimate of KL(sampling policy || policy)); `ref_kl` (KL
    to the reference, 0 without one); `clip_fraction` (share of tokens whose ratio is outside the clip range); `entropy`
    (nats per token); `logp_difference_mean`, `logp_difference_max` (absolute, between sampler and trainer, before the
    first step).
    """

    MEAN_STATS: tuple[str, ...] = ("policy_loss", "kl", "ref_kl", "clip_fraction", "entropy", "logp_difference_mean")
    MAX_STATS: tuple[str, ...] = ("logp_difference_max",)

    def build(self) -> None:
        super().build()
        self._reference_lm = None
        if self.config.kl_coeff > 0 and self.config.lora is None:
            # Outside the module: neither trained nor sharded, synced or saved.
            self._reference_lm = load_language_model(self.config.base_model, self.config.dtype).to(self._device)
            self._reference_lm.requires_grad_(False).eval()

    def policy_loss(
        self,
        batch: dict[str, torch.Tensor],
        logp_BT: torch.Tensor,
        old_logp_BT: torch.Tensor,
        weight_BT: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the method's loss of one micro-batch, divided by `batch["num_tokens"]`."""
        raise NotImplementedError

    def prepare_batch(self, module_id: str, batch: Batch) -> None:
        config = self.config
        if config.kl_coeff > 0:
            batch.per_token["ref_logp"] = self.forward_logps(module_id, batch, self._reference_forward(module_id))
        if config.old_logp == "recompute" and config.num_epochs * config.num_minibatches > 1:
            batch.per_token["trainer_logp"] = self.forward_logps(module_id, batch)

    def _reference_forward(self, module_id: str) -> Callable[[dict[str, Any]], dict[str, torch.Tensor]]:
        temperature = float(self.config.temperature)

        def forward(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
            if self._reference_lm is None:  # with LoRA the reference is the model without its adapter
                with self.module[module_id].lm.disable_adapter():
                    return self.engines[module_id](inputs)
            return forward_logps(self._reference_lm, inputs["tokens"], inputs["mask"], temperature=temperature)

        return forward

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        mask_BT, num_tokens, logp_BT = batch["mask"], batch["num_tokens"], fwd_out["logp"]
        sampler_logp_BT = batch["old_logp"]
        old_logp_BT, weight_BT = sampler_logp_BT, None
        if config.old_logp == "recompute":  # before the only step, the weights are still the old ones
            old_logp_BT = batch.get("trainer_logp", logp_BT.detach())
        if config.importance_correction == "truncated":
            weight_BT = truncated_importance_weight(old_logp_BT, sampler_logp_BT, mask_BT, cap=config.importance_cap)
        loss = self.policy_loss(batch, logp_BT, old_logp_BT, weight_BT)
        self.stats.add_loss("policy_loss", loss, mask_BT, num_tokens)
        if config.kl_coeff > 0:
            ref_kl_BT = kl_estimate(logp_BT, batch["ref_logp"], kind=config.kl_kind).masked_fill(~mask_BT, 0.0)
            loss = loss + config.kl_coeff * ref_kl_BT.sum() / num_tokens
            self.stats.add("ref_kl", ref_kl_BT, mask_BT)
        if config.entropy_coeff > 0:
            loss = loss - config.entropy_coeff * fwd_out["entropy"].masked_fill(~mask_BT, 0.0).sum() / num_tokens
        self._add_stats(mask_BT, logp_BT.detach(), old_logp_BT, sampler_logp_BT, fwd_out["entropy"])
        return loss

    def _add_stats(
        self,
        mask_BT: torch.Tensor,
        logp_BT: torch.Tensor,
        old_logp_BT: torch.Tensor,
        sampler_logp_BT: torch.Tensor,
        entropy_BT: torch.Tensor,
    ) -> None:
        ratio_BT = (logp_BT - old_logp_BT).masked_fill(~mask_BT, 0.0).exp()
        is_clipped_BT = (ratio_BT < 1 - self.config.clip_low) | (ratio_BT > 1 + self.config.clip_high)
        self.stats.add("kl", kl_estimate(old_logp_BT, logp_BT, kind="k3"), mask_BT)
        self.stats.add("clip_fraction", is_clipped_BT.float(), mask_BT)
        self.stats.add("entropy", entropy_BT, mask_BT)
        if self.is_first_step:
            difference_BT = (logp_BT - sampler_logp_BT).abs()
            self.stats.add("logp_difference_mean", difference_BT, mask_BT)
            self.stats.maximum("logp_difference_max", difference_BT, mask_BT)
