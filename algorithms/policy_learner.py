"""What the losses of all policy-gradient methods share: old log-probabilities, the reference policy, the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rllm_gym.algorithms.functional import (
    adaptive_kl_coeff,
    clipped_surrogate,
    kl_estimate,
    kl_shaped_reward,
    truncated_importance_weight,
)
from rllm_gym.learner.batch import Batch
from rllm_gym.learner.deepspeed import DeepSpeedLearner
from rllm_gym.learner.rl_module import forward_logps, load_language_model


class PolicyLearner(DeepSpeedLearner):
    """A learner whose loss is `policy_loss`, the clipped surrogate, plus the KL and entropy terms.

    A method gives the advantages, and overrides `policy_loss` where its loss is another.

    With `kl_in: reward` the penalty is in the rewards that `set_advantages` sees.

    Metrics under `learners/<module>/`: `policy_loss`; `kl` (k3 estimate of KL(sampling policy || policy)); `ref_kl` (KL
    to the reference, 0 without one); `kl_coeff`; `clip_fraction` (share of tokens whose ratio is outside the clip
    range); `entropy` (nats per token); `logp_difference_mean`, `logp_difference_max` (absolute, between sampler and
    trainer, before the first step).
    """

    MEAN_STATS: tuple[str, ...] = ("policy_loss", "kl", "ref_kl", "clip_fraction", "entropy", "logp_difference_mean")
    MAX_STATS: tuple[str, ...] = ("logp_difference_max",)

    def build(self) -> None:
        self._kl_coeff: dict[str, float] = {}  # where it follows a target; else the configured one
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
        """Return the loss of one micro-batch, divided by `batch["num_tokens"]`; the default is the clipped surrogate.

        Args:
            weight_BT: the importance correction of each token, or None.
        """
        return clipped_surrogate(
            logp_BT,
            old_logp_BT,
            batch["advantage"],
            batch["mask"],
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            num_tokens=batch["num_tokens"],
            weight_BT=weight_BT,
        )

    def set_advantages(self, module_id: str, batch: Batch) -> None:
        """Write `batch.per_token["advantage"]`, where the learner computes it from the rewards and not the driver."""

    def ratio(self, logp_BT: torch.Tensor, old_logp_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return what the clip range holds, at every token; for `clip_fraction`."""
        return (logp_BT - old_logp_BT).masked_fill(~mask_BT, 0.0).exp()

    def prepare_batch(self, module_id: str, batch: Batch) -> None:
        config = self.config
        if config.old_logp == "recompute" and config.num_epochs * config.num_minibatches > 1:
            batch.per_token["trainer_logp"] = self.forward_logps(module_id, batch)
        if config.kl_coeff > 0:
            batch.per_token["ref_logp"] = self.forward_logps(module_id, batch, self._reference_forward(module_id))
            if config.kl_in == "reward":
                batch.per_token["reward"] = kl_shaped_reward(
                    batch.per_token["reward"],
                    batch.per_token.get("trainer_logp", batch.per_token["old_logp"]),
                    batch.per_token["ref_logp"],
                    batch.mask,
                    kl_coeff=self.kl_coeff(module_id),
                    kind=config.kl_kind,
                )
        self.set_advantages(module_id, batch)

    def kl_coeff(self, module_id: str) -> float:
        """Return the weight of the KL in this train step."""
        return self._kl_coeff.get(module_id, self.config.kl_coeff)

    def _update_module(self, module_id: str, batch: Batch) -> dict[str, float]:
        metrics = super()._update_module(module_id, batch)
        metrics["kl_coeff"] = kl_coeff = self.kl_coeff(module_id)
        if self.config.kl_target is not None and metrics["num_optimizer_steps"] > 0:
            self._kl_coeff[module_id] = adaptive_kl_coeff(
                kl_coeff, metrics["ref_kl"], target=self.config.kl_target, rate=self.config.kl_rate
            )
        return metrics

    def sum_over_learners(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum (collective)."""
        return self.all_reduce(value, dist.ReduceOp.SUM)

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().get_state(*args, **kwargs) | {"kl_coeff": dict(self._kl_coeff)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._kl_coeff = dict(state.get("kl_coeff", self._kl_coeff))

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
            ref_kl_BT = kl_estimate(logp_BT, batch["ref_logp"], kind=config.kl_kind, mask_BT=mask_BT)
            if config.kl_in == "loss":
                loss = loss + self.kl_coeff(module_id) * ref_kl_BT.sum() / num_tokens
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
        ratio_BT = self.ratio(logp_BT, old_logp_BT, mask_BT)
        is_clipped_BT = (ratio_BT < 1 - self.config.clip_low) | (ratio_BT > 1 + self.config.clip_high)
        self.stats.add("kl", kl_estimate(old_logp_BT, logp_BT, kind="k3"), mask_BT)
        self.stats.add("clip_fraction", is_clipped_BT.float(), mask_BT)
        self.stats.add("entropy", entropy_BT, mask_BT)
        if self.is_first_step:
            difference_BT = (logp_BT - sampler_logp_BT).abs()
            self.stats.add("logp_difference_mean", difference_BT, mask_BT)
            self.stats.maximum("logp_difference_max", difference_BT, mask_BT)
