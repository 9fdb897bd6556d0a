"""The driver's end of a weight sync past Ray's object store: which EnvRunner gets weights how."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

logger = logging.getLogger(__name__)

Places = Mapping[int, tuple[str | None, str]]  # by EnvRunner: its GPU, and its process


@dataclass(frozen=True)
class WeightTransfer:
    """Where an EnvRunner finds the weights of one sync; it goes through the object store in their place.

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


class WeightSync:
    """Gives the learners' weights to the EnvRunners, and waits until they have them.

    Args:
        samplers: the EnvRunners, see `rllm_gym.training.samplers.Samplers`.
        learner_group: gives weights to the object store, where there is no other way.
        on_all_learners: calls a function on every learner, and returns what they answer.
    """

    def __init__(
        self, samplers: Any, learner_group: Any, on_all_learners: Callable[[Callable[[Any], Any]], list[Any]]
    ) -> None:
        self._samplers, self._learner_group, self._on_all_learners = samplers, learner_group, on_all_learners
        self._places: Places = {}
        self._transfer: WeightTransfer | None = None  # the last one

    def __call__(self) -> None:
        """Sync the weights.

        Where an EnvRunner does not take them, all get them through the object store, until others are there: RLlib
        brings back one that has died.
        """
        if (transfer := self._next()) is None:
            self._samplers.load_from(self._learner_group)
            return
        self._samplers.load_from(self)  # it only queues: the runners wait for what the learners send now
        errors = self._on_all_learners(lambda learner: learner.send_weights(transfer))
        if error := next(filter(None, errors), None):
            logger.warning(
                "weight_transfer: %s. Weights go through Ray's object store until another EnvRunner is there.", error
            )
            self._transfer = None
            self._samplers.forget_weights()
            self._samplers.load_from(self._learner_group)

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the object of RLlib's sync: the address of the weights, in place of them."""
        version = self._on_all_learners(lambda learner: learner.policy_version)[0]
        return {COMPONENT_RL_MODULE: self._transfer, WEIGHTS_SEQ_NO: version}

    def _next(self) -> WeightTransfer | None:
        """Return the next transfer, None where an EnvRunner is out of the learner's reach.

        New connections are made where the EnvRunners are others than in the last sync.
        """
        places: Places = self._samplers.places()
        if places != self._places:
            self._transfer, self._places = None, places
            if places:
                address, gpu = next(filter(None, self._on_all_learners(lambda learner: learner.open_sender())))
                self._transfer = _first_transfer(address, gpu, {index: of for index, (of, _) in places.items()})
        elif self._transfer is not None:
            self._transfer = replace(self._transfer, number=self._transfer.number + 1)
        return self._transfer


def _first_transfer(address: tuple[str, int], gpu: str | None, gpus: Mapping[int, str | None]) -> WeightTransfer | None:
    """Return who gets weights how, None if somebody cannot.

    Args:
        gpu: the learner's.
        gpus: the EnvRunners', by index.
    """
    near = [index for index, other in gpus.items() if gpu is not None and other == gpu]
    far = [index for index in gpus if index not in near]
    if gpu is None:
        is_in_reach = all(other is None for other in gpus.values())
    else:  # NCCL goes to GPUs, and to each only once
        far_gpus = [gpus[index] for index in far]
        is_in_reach = None not in far_gpus and len(set(far_gpus)) == len(far_gpus)
    return WeightTransfer(0, address, far, near) if is_in_reach else None
