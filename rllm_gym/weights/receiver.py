"""The EnvRunner's end of a weight sync: weights come through the object store, or the learner sends them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from rllm_gym.errors import RllmGymError
from rllm_gym.weights.format import received
from rllm_gym.weights.sender import CONNECT_TIMEOUT, Group, Key, closed_on_error, finish_work, gpu_of
from rllm_gym.weights.sync import WeightTransfer


def arriving(sent: Any, receiver: Receiver) -> contextlib.AbstractContextManager[Mapping[str, Mapping[str, Any]]]:
    """Return a context that gives an EnvRunner its weights by module, in either way."""
    if isinstance(sent, WeightTransfer):
        return receiver.weights(sent)
    weights = ray.get(sent) if isinstance(sent, ray.ObjectRef) else sent
    return contextlib.nullcontext({module_id: received(of_module) for module_id, of_module in weights.items()})


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
        self._group: Group | None = None

    @property
    def place(self) -> tuple[str | None, str]:
        """Its GPU's id, None of a CPU, and its process."""
        return gpu_of(self._device), f"{platform.node()}:{os.getpid()}"

    @contextlib.contextmanager
    def weights(self, shipment: WeightTransfer) -> Iterator[Mapping[str, Mapping[str, torch.Tensor]]]:
        """Give the weights by module, each of which may be asked for once; the learner waits meanwhile.

        Raises:
            TransferError: they do not arrive.
        """
        with closed_on_error(self, "weights did not come from the learner"):
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
                with closed_on_error(self, "the learner did not wait"):
                    if self._index in shipment.near:
                        finish_work(self._device)  # what was copied from the learner's memory is there
                    group.meet()

    def close(self) -> None:
        """Close the connections, so that nobody waits for the others."""
        self._address = self._store = None
        if self._group is not None:
            self._group.close()

    def _connected(self, shipment: WeightTransfer) -> Group:
        if self._group is None or shipment.address != self._address:
            self.close()
            self._store = dist.TCPStore(*shipment.address, is_master=False, timeout=CONNECT_TIMEOUT)
            self._group = Group(self._store, shipment, self._index, self._device)
            self._address = shipment.address
        return self._group

    def _receive(self, group: Group, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        with closed_on_error(self, "the learner stopped sending"):
            group.broadcast(tensor)
        return tensor


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


def _typed(description: Sequence[Any]) -> list[tuple[list[Key], torch.Size, torch.dtype]]:
    """Parse the JSON description of tensors: by tensor all its keys, its shape and dtype."""
    return [
        ([(module_id, name) for module_id, name in keys], torch.Size(shape), getattr(torch, dtype))
        for keys, shape, dtype in description
    ]


def _opened(handles: bytes, device: torch.device) -> dict[Key, torch.Tensor]:
    opened = {}
    for key, (rebuild, args) in pickle.loads(handles).items():
        if rebuild is rebuild_cuda_tensor:  # the GPU's number differs with what a process sees
            args = (*args[:6], device.index, *args[7:])
        opened[key] = rebuild(*args)
    return opened
