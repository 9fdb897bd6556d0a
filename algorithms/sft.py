"""SFT: supervised fine-tuning on recorded episodes, which is behavioural cloning."""

from __future__ import annotations

from typing import Any

import torch

from rllm_gym.algorithms.functional import negative_log_likelihood
from rllm_gym.algorithms.offline import OfflineAlgorithm, OfflineConfig
from rllm_gym.algorithms.offline_learner import OfflineLearner


class SFTConfig(OfflineConfig):
    """Configuration of SFT.

    Source: as the first stage of Xi et al. 2024 (AgentGym), arXiv:2406.04151, section 4.1.

    Differs: every assistant token counts alike, over the whole optimizer step, however long its episode is.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or SFT)
        self.lr = 1e-5
        self.learners(learner_class=SFTLearner)

    def get_default_learner_class(self) -> type[SFTLearner]:
        return SFTLearner


class SFTLearner(OfflineLearner):
    """The negative log-likelihood of the tokens that carry a weight.

    Metrics under `learners/<module>/`, and of held-out samples under `evaluation/`: `loss` (nats per token) and
    `entropy` (of the policy, nats per token).
    """

    MEAN_STATS = ("loss", "entropy")

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        mask_BT, num_tokens = batch["mask"], batch["num_tokens"]
        loss = negative_log_likelihood(fwd_out["logp"], mask_BT, num_tokens=num_tokens, weight_BT=batch["weight"])
        self.stats.add_loss("loss", loss, mask_BT, num_tokens)
        self.stats.add("entropy", fwd_out["entropy"], mask_BT)
        return loss


class SFT(OfflineAlgorithm):
    """Imitates the assistant's tokens of recorded episodes."""

    @classmethod
    def get_default_config(cls) -> SFTConfig:
        return SFTConfig()
