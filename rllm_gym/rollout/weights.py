"""Weights as EnvRunners get them, those of the object store in its own memory, which is only read; who holds which."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import ray
import torch

from rllm_gym.errors import RllmGymError
from rllm_gym.models import BFLOAT16_BITS, LORA_A
from rllm_gym.rollout.adapters import AdaptedWeights, difference
from rllm_gym.types import Engine
from rllm_gym.weight_transfer import Receiver, Shipment

OpponentWeights = Mapping[str, tuple[int, ray.ObjectRef]]  # by module: policy version and weights

warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)


class Tensors(Mapping[str, torch.Tensor]):
    """Arrays and tensors by name, all as tensors, without copies."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.as_tensor(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def received(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return weights as engines take them: bfloat16, whose bits came, as tensors."""
    return {
        name: torch.as_tensor(value).view(torch.bfloat16) if str(value.dtype) == BFLOAT16_BITS else value
        for name, value in weights.items()
    }


def arriving(sent: Any, receiver: Receiver) -> contextlib.AbstractContextManager[Mapping[str, Mapping[str, Any]]]:
    """Give an EnvRunner its weights, by module: what came through the object store, or what the learner sends."""
    if isinstance(sent, Shipment):
        return receiver.weights(sent)
    weights = ray.get(sent) if isinstance(sent, ray.ObjectRef) else sent
    return contextlib.nullcontext({module_id: received(of_module) for module_id, of_module in weights.items()})


class EngineWeights:
    """Loads what the policies and the opponents have learnt into their engines, which may share a base model.

    Args:
        engines: by module.
        base_models: by module, the name or folder of the model that its engine was made from.
        dtype: of the base model's weights, where LoRA is added to them.
        opponents: by agent, who plays it if no policy does.
        adapter_hosts: by opponent's module, the policy on whose engine it rides as an adapter.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        base_models: Mapping[str, str],
        *,
        dtype: str,
        opponents: Mapping[str, Any],
        adapter_hosts: Mapping[str, str],
    ) -> None:
        self._engines, self._base_models, self._dtype = engines, base_models, dtype
        self._opponents, self._adapter_hosts = opponents, adapter_hosts
        self._loaded: dict[str, ray.ObjectRef] = {}  # by opponent's module, what its engine holds
        self._policies: Mapping[str, Any] = {}  # the adapters that the policies' engines hold, if any rides on one
        self._base_weights: dict[str, Mapping[str, torch.Tensor]] = {}  # by module, where LoRA is added to them

    def load_policies(self, weights: Mapping[str, Mapping[str, Any]], version: int) -> None:
        """Load the policies' weights, by module; each is read once."""
        for module_id, of_module in weights.items():
            self._engines[module_id].load_weights(self._whole(module_id, of_module), version)
        self._policies = weights if self._adapter_hosts else {}
        self._loaded = {id_: of for id_, of in self._loaded.items() if id_ not in self._adapter_hosts}

    def load_opponents(self, weights: OpponentWeights) -> None:
        """Load the weights of the opponents that have theirs from a run, where they are others than before."""
        for agent_id, opponent in self._opponents.items():
            has_weights = opponent.is_model and opponent.hugging_face_model is None
            if has_weights and opponent.module_of(agent_id) not in weights:
                raise RllmGymError(f"LLMEnvRunner: the opponent of {agent_id} has no weights; got {opponent.source!r}.")
        for module_id, (version, of_module) in weights.items():
            if self._loaded.get(module_id) != of_module:
                state = received(ray.get(of_module))
                if policy_id := self._adapter_hosts.get(module_id):
                    whole: Mapping[str, Any] = difference(state, self._policies[policy_id])
                else:
                    whole = self._whole(module_id, state)
                self._engines[module_id].load_weights(whole, version)
                self._loaded[module_id] = of_module

    def _whole(self, module_id: str, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the weights as an engine takes them; of LoRA only the adapter has come."""
        if not any(name.endswith(LORA_A) for name in weights):
            return weights
        if module_id not in self._base_weights:
            from transformers import AutoModelForCausalLM

            lm = AutoModelForCausalLM.from_pretrained(self._base_models[module_id], dtype=getattr(torch, self._dtype))
            self._base_weights[module_id] = lm.state_dict()
        return AdaptedWeights(self._base_weights[module_id], weights)
