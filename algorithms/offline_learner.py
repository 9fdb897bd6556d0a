"""What the learners of offline methods share: packed samples or pairs, and their statistics on held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ray.rllib.core import DEFAULT_MODULE_ID

from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import Batch, MicroBatch
from rllm_gym.learner.deepspeed import DeepSpeedLearner
from rllm_gym.learner.packing import pack_into_micro_batches
from rllm_gym.learner.samples import SamplesToBatch, collate_samples
from rllm_gym.learner.stats import TokenStats
from rllm_gym.types import Sample

_CANNOT_PACK = "packing: the model must keep sequences apart by their positions; base_model does not"


class OfflineLearner(DeepSpeedLearner):
    """A learner of samples or pairs, packed; a method gives the loss."""

    MEAN_STATS: tuple[str, ...] = ("loss",)
    LOSS_STAT = "loss"

    def build(self) -> None:
        super().build()
        if self.config.packing:
            self._check_packing()

    @torch.no_grad()
    def _check_packing(self) -> None:
        """Make sure that this model keeps packed sequences apart."""
        forward = self.engines[DEFAULT_MODULE_ID]
        samples = [Sample(np.arange(n) % 7, np.ones(n, np.float32)) for n in (6, 3, 3)]
        batch = Batch.from_mapping(collate_samples(samples), self._device)
        try:
            # Three rows of one sequence, then one row of one and one of two.
            logps = []
            for is_packed in (False, True):
                [part] = pack_into_micro_batches(batch, 64, is_packed=is_packed)
                logps.append(forward(part.model_inputs)["logp"].float())
            difference = (logps[0] - logps[1]).abs().max().item()
        except (TypeError, ValueError) as error:  # no position_ids, or none that begin anew
            raise ConfigError(f"{_CANNOT_PACK} ({error}). Set packing: false.") from error
        is_exact = self.config.dtype == "float32" and not forward.torch_autocast_enabled()
        if not difference < (1e-3 if is_exact else 0.5):
            raise ConfigError(f"{_CANNOT_PACK}; log-probabilities differ by {difference:.2g}. Set packing: false.")

    def split(self, batch: Batch) -> list[MicroBatch]:
        return pack_into_micro_batches(batch, self.config.tokens_per_micro_batch, is_packed=self.config.packing)

    def batch_of(self, shards: Sequence[Sequence[Any]]) -> Batch:
        """Return the batch of this learner's shard."""
        items = shards[dist.get_rank()]
        tensors = SamplesToBatch()(rl_module=self.module, batch={}, episodes=list(items))
        return Batch.from_mapping(tensors[DEFAULT_MODULE_ID], self._device)

    @torch.no_grad()
    def evaluate(self, shards: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return the statistics of training, on other data and without learning from it (collective)."""
        batch = self.batch_of(shards)
        self.stats = TokenStats(self.MEAN_STATS, self.MAX_STATS)
        counts = {
            "num_tokens": self.all_reduce(batch.mask.sum().double(), dist.ReduceOp.SUM),
            "num_sequences": self.all_reduce(batch.mask.any(-1).sum().double(), dist.ReduceOp.SUM),
        }
        for part in self.micro_batches(DEFAULT_MODULE_ID, batch):
            out = self.engines[DEFAULT_MODULE_ID](part.model_inputs)
            self.compute_loss_for_module(
                module_id=DEFAULT_MODULE_ID, config=self.config, batch={**part.tensors, **counts}, fwd_out=out
            )
        return self.stats.reduced(self.all_reduce)
