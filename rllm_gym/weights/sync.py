"""New weights to the EnvRunners past Ray's object store, where a way lies between them and the learners."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

logger = logging.getLogger(__name__)

Places = Mapping[int, tuple[str | None, str]]  # by EnvRunner: its GPU, and its process


@dataclass(frozen=True)
class WeightTransfer:
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


class WeightSync:
    """Gives the learners' weights to the EnvRunners, and waits until they have them.

    Args:
        algorithm: whose learners and EnvRunners.
    """

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self._places: Places = {}
        self._shipment: WeightTransfer | None = None  # the last one

    def __call__(self) -> None:
        """Sync; RLlib's own sync hands over what `get_state` returns.

        Where an EnvRunner does not take them, all get them through the object store, until others are there: RLlib
        brings back one that has died.
        """
        algorithm = self._algorithm
        if (shipment := self._next()) is None:
            algorithm.sync_from(algorithm.learner_group)
            return
        algorithm.sync_from(self)  # it only queues: the runners wait for what the learners send now
        errors = algorithm.on_all_learners(lambda learner: learner.send_weights(shipment))
        if error := next(filter(None, errors), None):
            logger.warning(
                "weight_transfer: %s. Weights go through Ray's object store until another EnvRunner is there.", error
            )
            self._shipment = None
            algorithm.env_runner_group.foreach_env_runner("forget_weights", local_env_runner=False)
            algorithm.sync_from(algorithm.learner_group)

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return what RLlib's sync puts into the object store: where weights come from, in place of them."""
        [version, *_] = self._algorithm.on_all_learners(lambda learner: learner.policy_version)
        return {COMPONENT_RL_MODULE: self._shipment, WEIGHTS_SEQ_NO: version}

    def _next(self) -> WeightTransfer | None:
        """Return the next shipment, None where an EnvRunner is out of the learner's reach.

        New connections are made where the EnvRunners are others than in the last sync.
        """
        algorithm = self._algorithm
        places: Places = dict(
            algorithm.env_runner_group.foreach_env_runner(
                lambda runner: (runner.worker_index, runner.receiver.place), local_env_runner=False
            )
        )
        if places != self._places:
            self._shipment, self._places = None, places
            if places:
                address, gpu = next(filter(None, algorithm.on_all_learners(lambda learner: learner.open_sender())))
                self._shipment = _first_transfer(address, gpu, {index: of for index, (of, _) in places.items()})
        elif self._shipment is not None:
            self._shipment = replace(self._shipment, number=self._shipment.number + 1)
        return self._shipment


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
