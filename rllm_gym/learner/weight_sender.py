"""What a learner does when its weights go to the EnvRunners past the object store; called on all of them together."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override

from rllm_gym.weight_transfer import Key, Sender, Shipment, TransferError, gpu_of


class WeightSender(TorchLearner):
    """A learner of `LanguageModule`s that can send their weights."""

    _sender: Sender | None = None  # the first learner's

    def open_sender(self) -> tuple[tuple[str, int], str | None] | None:
        """Let the first learner listen; returns its address and its GPU there, None on the others."""
        if not self._is_first:
            return None
        self._sender = Sender(self.device)
        return self._sender.address, gpu_of(self.device)

    @torch.no_grad()
    def send_weights(self, shipment: Shipment) -> str | None:
        """Send what `get_state(inference_only=True)` returns; ZeRO-3's partitions are gathered by all (collective).

        Returns:
            What went wrong, if an EnvRunner has not taken them: RLlib takes a learner that raises for a dead one.
        """
        weights: dict[Key, torch.Tensor] = {}
        with contextlib.ExitStack() as gathered:
            for module_id, module in self.module.items():
                if not module.learner_only:
                    if module.gather_parameters is not None:
                        gathered.enter_context(module.gather_parameters(list(module.parameters())))
                    state = module.inference_state()
                    weights |= {(module_id, name): weight.detach() for name, weight in state.items()}
            if self._is_first:
                assert self._sender is not None
                try:
                    self._sender.send(weights, shipment)
                except TransferError as error:
                    return str(error)
        return None

    @override(Learner)
    def shutdown(self) -> None:
        self._sender = None  # its store listens as long as it is there
        super().shutdown()

    @property
    def _is_first(self) -> bool:
        return not dist.is_initialized() or dist.get_rank() == 0
