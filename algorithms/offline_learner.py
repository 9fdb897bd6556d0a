"""The loss of the offline methods: one per token, averaged over the tokens that carry a weight."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.learner.learner import Learner
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import Counts, aggregate, negative_log_likelihood
from rllm_gym.learner.deepspeed import DeepSpeedLearner


class OfflineLearner(DeepSpeedLearner):
    """A learner whose loss is `token_loss`, by default the negative log-likelihood times each token's weight.

    Metrics under `learners/<module>/`, and of held-out samples under `evaluation/`: `loss` (nats per token) and
    `entropy` (of the policy, nats per token).
    """

    MEAN_STATS: tuple[str, ...] = ("loss", "entropy")

    def token_loss(self, batch: dict[str, torch.Tensor], logp_BT: torch.Tensor) -> torch.Tensor:
        """Return the loss of every token, [B, T].

        Args:
            batch: a micro-batch: `weight` and `mask` [B, T], and the rest of `rllm_gym.learner.batch`.
        """
        return negative_log_likelihood(logp_BT, batch["weight"], batch["mask"])

    @override(Learner)
    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        mask_BT = batch["mask"]
        counts = Counts(batch["num_tokens"], batch["num_sequences"], batch["num_episodes"])
        loss = aggregate(self.token_loss(batch, fwd_out["logp"]), mask_BT, over="tokens", counts=counts)
        self.add_step_means(loss=loss)
        self.add_means(mask_BT, entropy=fwd_out["entropy"])
        return loss
