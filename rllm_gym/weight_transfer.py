"""Weights from the learners to the EnvRunners without a way through the host's memory: both ends of it.

Ray's object store takes weights everywhere, by copies on the host. From one GPU to others the first learner broadcasts
them instead (NCCL; between CPUs, where that is asked for, Gloo), and an EnvRunner on that learner's own GPU opens the
learner's tensors and copies from them (CUDA IPC). They meet at a store of PyTorch's, which the first learner opens.
An end that fails closes its connections, by which the others notice; none waits longer than `TIMEOUT`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any

import ray
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from rllm_gym.errors import RllmGymError

TIMEOUT = timedelta(minutes=5)  # that one end waits for another, which may have to finish a step of its engine
CONNECT_TIMEOUT = timedelta(seconds=30)  # all have just answered the driver, so who is not there has died

Key = tuple[str, str]  # a module, and the name of a weight of it


class TransferError(RllmGymError):
    """Weights did not arrive: one end has died, or the network does not let it through."""


@dataclass(frozen=True)
class Shipment:
    """What an EnvRunner gets in place of weights.

    Args:
        number: of the transfer, under which what belongs to it stands in the store.
        address: host and port of the store.
        far: the EnvRunners to which the learner broadcasts, in the order of their ranks.
        near: those on the learner's own GPU.
    """

    number: int
    address: tuple[str, int]
    far: Sequence[int]
    near: Sequence[int]

    @property
    def description(self) -> str:
        """The store's key of what is broadcast: names, shapes and dtypes."""
        return f"{self.number}/description"

    def handles(self, index: int) -> str:
        """Return the store's key of what an EnvRunner on the learner's own GPU opens."""
        return f"{self.number}/handles/{index}"


def gpu_of(device: torch.device) -> str | None:
    """Return the id of a GPU, the same in all processes; None of a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


class Sender:
    """The first learner's end.

    Args:
        device: of the weights.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        host = ray.util.get_node_ip_address()
        self._store: Any = dist.TCPStore(host, 0, is_master=True, timeout=CONNECT_TIMEOUT, wait_for_workers=False)
        self._group: _Group | None = None
        self.address = host, self._store.port

    def send(self, weights: Mapping[Key, torch.Tensor], shipment: Shipment) -> None:
        """Hand weights over, and return when all EnvRunners have taken them.

        Raises:
            TransferError: one has not.
        """
        with _closed_on_error(self, "an EnvRunner did not take the weights"):
            unique = _unique(weights)
            description = [(keys, list(of.shape), str(of.dtype).removeprefix("torch.")) for keys, of in unique]
            entries = {shipment.description: json.dumps(description).encode()}
            for index in shipment.near:  # each gets handles of its own: CUDA counts who has opened them
                entries[shipment.handles(index)] = _handles(weights)
            for key, entry in entries.items():
                self._store.set(key, entry)
            _finish_work(self._device)  # neighbours read what is in memory
            group = self._group = self._group or _Group(self._store, shipment, None, self._device)
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


class Receiver:
    """An EnvRunner's end.

    Args:
        index: the EnvRunner's.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        # Ray shows an EnvRunner its own GPU alone; vLLM and transformers take the first one, too.
        self._device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self._address: tuple[str, int] | None = None
        self._store: Any = None
        self._group: _Group | None = None

    @property
    def place(self) -> tuple[str | None, str]:
        """Its GPU's id, None of a CPU, and its process."""
        return gpu_of(self._device), f"{platform.node()}:{os.getpid()}"

    @contextlib.contextmanager
    def weights(self, shipment: Shipment) -> Iterator[Mapping[str, Mapping[str, torch.Tensor]]]:
        """Give the weights by module, each of which may be asked for once; the learner waits meanwhile.

        Raises:
            TransferError: they do not arrive.
        """
        with _closed_on_error(self, "weights did not come from the learner"):
            group = self._connected(shipment)
            group.meet()
            if self._index in shipment.near:
                incoming = _Incoming(_opened(self._store.get(shipment.handles(self._index)), self._device))
            else:
                description = json.loads(self._store.get(shipment.description))
                incoming = _Incoming({}, _typed(description), lambda *of: self._receive(group, *of))
        try:
            yield incoming.by_module()
        finally:
            if group.is_open:  # an engine's error is no reason to keep the learner and the others waiting
                incoming.drain()
                with _closed_on_error(self, "the learner did not wait"):
                    if self._index in shipment.near:
                        _finish_work(self._device)  # what was copied from the learner's memory is there
                    group.meet()

    def close(self) -> None:
        """Close the connections, so that nobody waits for the others."""
        self._address = self._store = None
        if self._group is not None:
            self._group.close()

    def _connected(self, shipment: Shipment) -> _Group:
        if self._group is None or shipment.address != self._address:
            self.close()
            self._store = dist.TCPStore(*shipment.address, is_master=False, timeout=CONNECT_TIMEOUT)
            self._group = _Group(self._store, shipment, self._index, self._device)
            self._address = shipment.address
        return self._group

    def _receive(self, group: _Group, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        with _closed_on_error(self, "the learner stopped sending"):
            group.broadcast(tensor)
        return tensor


class _Group:
    """Groups beside the process's default one, which is DeepSpeed's or vLLM's: to meet, and to broadcast in.

    All meet by Gloo, which notices who has died; NCCL would wait for them.

    Args:
        index: the EnvRunner's; None is the learner, of rank 0. It waits until all are there.
    """

    def __init__(self, store: Any, shipment: Shipment, index: int | None, device: torch.device) -> None:
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


class _Incoming:
    """Weights that are there, or come one after the other in the order in which they are sent."""

    def __init__(
        self,
        here: Mapping[Key, torch.Tensor],
        description: Sequence[tuple[Sequence[Key], torch.Size, torch.dtype]] = (),
        receive: Callable[[torch.Size, torch.dtype], torch.Tensor] | None = None,
    ) -> None:
        self._here, self._coming, self._receive = dict(here), deque(description), receive
        self._names: dict[str, list[str]] = {}
        for module_id, name in [*here, *(key for keys, *_ in description for key in keys)]:
            self._names.setdefault(module_id, []).append(name)

    def by_module(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return {module_id: _OfModule(self, module_id, names) for module_id, names in self._names.items()}

    def take(self, key: Key) -> torch.Tensor:
        while key not in self._here and self._coming:
            self._take_next()
        if key not in self._here:
            raise RllmGymError(
                f"the engine reads the weight {key[1]} twice, and weights that do not come through the object store "
                "come once. Set weight_transfer: object_store."
            )
        return self._here.pop(key)

    def drain(self) -> None:
        """Take what nobody has asked for: it is sent all the same."""
        self._here.clear()
        while self._coming:
            self._take_next()
            self._here.clear()

    def _take_next(self) -> None:
        assert self._receive is not None
        keys, shape, dtype = self._coming.popleft()
        self._here |= dict.fromkeys(keys, self._receive(shape, dtype))


class _OfModule(Mapping[str, torch.Tensor]):
    """A module's weights by name."""

    def __init__(self, incoming: _Incoming, module_id: str, names: Sequence[str]) -> None:
        self._incoming, self._module_id, self._names = incoming, module_id, dict.fromkeys(names)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._incoming.take((self._module_id, name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _unique(weights: Mapping[Key, torch.Tensor]) -> list[tuple[list[Key], torch.Tensor]]:
    """Return each weight with all its keys: tied ones have several."""
    found: dict[tuple[Any, ...], tuple[list[Key], torch.Tensor]] = {}
    for key, tensor in weights.items():
        place = tensor.data_ptr(), tensor.shape, tensor.stride()
        found.setdefault(place, ([], tensor))[0].append(key)
    return list(found.values())


def _typed(description: Sequence[Any]) -> list[tuple[list[Key], torch.Size, torch.dtype]]:
    """Return what was described as JSON: by tensor all its keys, its shape and dtype."""
    return [
        ([(module_id, name) for module_id, name in keys], torch.Size(shape), getattr(torch, dtype))
        for keys, shape, dtype in description
    ]


def _handles(weights: Mapping[Key, torch.Tensor]) -> bytes:
    """Return how another process opens these tensors."""
    return bytes(ForkingPickler.dumps({key: reduce_tensor(tensor) for key, tensor in weights.items()}))


def _opened(handles: bytes, device: torch.device) -> dict[Key, torch.Tensor]:
    opened = {}
    for key, (rebuild, args) in pickle.loads(handles).items():
        if rebuild is rebuild_cuda_tensor:  # the GPU's number differs with what a process sees
            args = (*args[:6], device.index, *args[7:])
        opened[key] = rebuild(*args)
    return opened


def _finish_work(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _closed_on_error(end: Sender | Receiver, what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        end.close()
        if isinstance(error, RuntimeError):  # torch.distributed's are
            raise TransferError(f"{what}: {str(error).splitlines()[0]}") from error
        raise
