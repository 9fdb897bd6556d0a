"""The engines of an EnvRunner, one for each policy and each opponent, and the weights that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ray
import torch

from rllm_gym.causal_lm import load_causal_lm
from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.models import resolve_base_model
from rllm_gym.rollout.engines import engine_maker
from rllm_gym.rollout.opponents import SCRIPTED, MovePlayer
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import Engine
from rllm_gym.weights.format import LORA_A, AdaptedWeights, difference, received

OpponentWeights = Mapping[str, tuple[int, ray.ObjectRef]]  # by module: policy version and weights


def find_base_models(
    config: Any, policy_ids: Iterable[str], opponents: Mapping[str, Any], space: Any
) -> dict[str, str]:
    """Return the model that each module's weights belong to, by name or folder.

    Args:
        opponents: by agent, who plays it if no policy does.
        space: of the observations and the actions, which RLlib asks for.
    """
    spaces = dict.fromkeys(policy_ids, (space, space))
    specs = config.get_multi_rl_module_spec(spaces=spaces, inference_only=True).rl_module_specs
    models = {id_: str(resolve_base_model(specs[id_].model_config["base_model"])) for id_ in spaces}
    for agent_id, opponent in opponents.items():
        if opponent.is_model:
            own = opponent.hugging_face_model
            model = models[config.policy_of(agent_id)] if own is None else str(resolve_base_model(own))
            models[opponent.module_of(agent_id)] = model
    return models


def make_engines(
    config: Any,
    base_models: Mapping[str, str],
    opponents: Mapping[str, Any],
    adapter_hosts: Mapping[str, str],
    chat: ChatTokenizer,
) -> dict[str, Engine]:
    """Return an engine by module, also those that say what random and expert players do.

    Args:
        adapter_hosts: by opponent's module, the policy on whose engine it rides as an adapter.
    """
    # In one process vLLM lets one engine sleep.
    may_sleep = config.shares_gpus_by_turns and len(base_models) - len(adapter_hosts) == 1
    engines: dict[str, Engine] = {}
    for module_id in sorted(base_models, key=lambda module_id: module_id in adapter_hosts):  # hosts first
        _check_tokenizer(config, module_id, base_models[module_id], chat)
        if policy_id := adapter_hosts.get(module_id):
            host: Any = engines[policy_id]
            engines[module_id] = host.with_adapter()
        else:
            engines[module_id] = engine_maker(config.engine)(
                base_models[module_id],
                dtype=config.weight_dtype,
                max_model_len=config.max_model_len,
                max_num_seqs=config.num_envs_per_env_runner,
                options={
                    **({"trust_remote_code": True} if config.trust_remote_code else {}),
                    **({"enable_sleep_mode": True} if may_sleep else {}),
                    **config.adapter_options(module_id),
                    **config.engine_options,
                },
            )
    for kind in dict.fromkeys(opponent.kind for opponent in opponents.values() if opponent.kind in SCRIPTED):
        engines[kind] = MovePlayer(chat, max_context_tokens=config.max_model_len)
    return engines


def _check_tokenizer(config: Any, module_id: str, model: str, chat: ChatTokenizer) -> None:
    if model == str(resolve_base_model(config.base_model)):
        return
    if ChatTokenizer(model, **config.chat_options).tokenizer.get_vocab() != chat.tokenizer.get_vocab():
        raise ConfigError(
            f"policy {module_id!r}: all policies of a run must have the same tokenizer, which the environments "
            f"write with; got {model!r} beside {config.base_model!r}. Choose models of one family."
        )


class EngineWeights:
    """Loads what the policies and the opponents have learnt into their engines, which may share a base model.

    Args:
        engines: by module.
        base_models: by module, the name or folder of the model that its engine was made from.
        dtype: of the base model's weights, where LoRA is added to them.
        opponents: by agent, who plays it if no policy does.
        adapter_hosts: by opponent's module, the policy on whose engine it rides as an adapter.
        trust_remote_code: of base models.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        base_models: Mapping[str, str],
        *,
        dtype: str,
        opponents: Mapping[str, Any],
        adapter_hosts: Mapping[str, str],
        trust_remote_code: bool = False,
    ) -> None:
        self._trust_remote_code = trust_remote_code
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
            lm = load_causal_lm(
                self._base_models[module_id],
                dtype=getattr(torch, self._dtype),
                trust_remote_code=self._trust_remote_code,
            )
            self._base_weights[module_id] = lm.state_dict()
        return AdaptedWeights(self._base_weights[module_id], weights)
