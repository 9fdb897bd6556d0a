"""The learner's end of a weight transfer that does not go through the host's memory.

Ray's object store takes weights everywhere, by copies on the host. From one GPU to others the first learner broadcasts
them instead (NCCL; between CPUs, where that is asked for, Gloo), and an EnvRunner on that learner's own GPU opens the
learner's tensors and copies from them (CUDA IPC). They meet at a store of PyTorch's, which the first learner opens.
An end that fails closes its connections, by which the others notice; none waits longer than `TIMEOUT`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import ray
import torch
import torch.distributed as dist
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from torch.multiprocessing.reductions import reduce_tensor

from rllm_gym.errors import RllmGymError
from rllm_gym.weights.sync import WeightTransfer

TIMEOUT = timedelta(minutes=5)  # that one end waits for another, which may have to finish a step of its engine
CONNECT_TIMEOUT = timedelta(seconds=30)  # all have just answered the driver, so who is not there has died

Key = tuple[str, str]  # a module, and the name of a weight of it


class TransferError(RllmGymError):
    """Weights did not arrive: one end has died, or the network does not let it through."""


def gpu_of(device: torch.device) -> str | None:
    """Return the id of a GPU, the same in all processes; None of a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


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
    def send_weights(self, shipment: WeightTransfer) -> str | None:
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


class Sender:
    """The first learner's end.

    Args:
        device: of the weights.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        host = ray.util.get_node_ip_address()
        self._store: Any = dist.TCPStore(host, 0, is_master=True, timeout=CONNECT_TIMEOUT, wait_for_workers=False)
        self._group: Group | None = None
        self.address = host, self._store.port

    def send(self, weights: Mapping[Key, torch.Tensor], shipment: WeightTransfer) -> None:
        """Hand weights over, and return when all EnvRunners have taken them.

        Raises:
            TransferError: one has not.
        """
        with closed_on_error(self, "an EnvRunner did not take the weights"):
            unique = _unique(weights)
            description = [(keys, list(of.shape), str(of.dtype).removeprefix("torch.")) for keys, of in unique]
            entries = {shipment.description: json.dumps(description).encode()}
            for index in shipment.near:  # each gets handles of its own: CUDA counts who has opened them
                entries[shipment.handles(index)] = _handles(weights)
            for key, entry in entries.items():
                self._store.set(key, entry)
            finish_work(self._device)  # neighbours read what is in memory
            group = self._group = self._group or Group(self._store, shipment, None, self._device)
            group.meet()
            for _, tensor in unique if shipment.far else ():
                group.broadcast(tensor.contiguous())
            group.meet()
            for key in entries:
                self._store.delete_key(key)

    def close(self) -> None:
        """Close the connections, so that nobody waits for the others."""
        if self._group is not None:
            self._group.close()


class End(Protocol):
    """A sender or a receiver."""

    def close(self) -> None: ...


class Group:
    """Groups beside the process's default one, which is DeepSpeed's or vLLM's: to meet, and to broadcast in.

    All meet by Gloo, which notices who has died; NCCL would wait for them.

    Args:
        index: the EnvRunner's; None is the learner, of rank 0. It waits until all are there.
    """

    def __init__(self, store: Any, shipment: WeightTransfer, index: int | None, device: torch.device) -> None:
        members = [None, *shipment.far, *shipment.near]
        rank = members.index(index)
        # The timeout is first that of the connection, in which all take part.
        self._all: Any = dist.ProcessGroupGloo(dist.PrefixStore("all", store), rank, len(members), CONNECT_TIMEOUT)
        self._all.set_timeout(TIMEOUT)
        self._nccl: Any = None
        if device.type == "cuda" and shipment.far and index not in shipment.near:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, 1 + len(shipment.far), options)

    @property
    def is_open(self) -> bool:
        return self._all is not None

    def meet(self) -> None:
        """Wait until all are here."""
        self._all.barrier().wait()

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send it, as the learner, or receive into it."""
        (self._nccl or self._all).broadcast(tensor, 0).wait()

    def close(self) -> None:
        if self._nccl is not None:
            self._nccl.abort()  # what is on its way to a dead one would stay on the GPU
        self._all = self._nccl = None  # Gloo closes with the last reference, and only so


def _unique(weights: Mapping[Key, torch.Tensor]) -> list[tuple[list[Key], torch.Tensor]]:
    """Return each weight with all its keys: tied ones have several."""
    found: dict[tuple[Any, ...], tuple[list[Key], torch.Tensor]] = {}
    for key, tensor in weights.items():
        place = tensor.data_ptr(), tensor.shape, tensor.stride()
        found.setdefault(place, ([], tensor))[0].append(key)
    return list(found.values())


def _handles(weights: Mapping[Key, torch.Tensor]) -> bytes:
    """Return how another process opens these tensors."""
    return bytes(ForkingPickler.dumps({key: reduce_tensor(tensor) for key, tensor in weights.items()}))


def finish_work(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def closed_on_error(end: End, what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        end.close()
        if isinstance(error, RuntimeError):  # torch.distributed's are
            raise TransferError(f"{what}: {str(error).splitlines()[0]}") from error
        raise
