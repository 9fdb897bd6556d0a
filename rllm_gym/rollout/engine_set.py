"""The engines of an EnvRunner: one for each policy, and for each opponent that is a model or a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.models import resolve_base_model
from rllm_gym.rollout.engines import engine_maker
from rllm_gym.rollout.scripted_opponents import SCRIPTED, MovePlayer
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import Engine


def base_models_of(config: Any, policy_ids: Iterable[str], opponents: Mapping[str, Any], space: Any) -> dict[str, str]:
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
    if ChatTokenizer(model, config.chat_template).tokenizer.get_vocab() != chat.tokenizer.get_vocab():
        raise ConfigError(
            f"policy {module_id!r}: all policies of a run must have the same tokenizer, which the environments "
            f"write with; got {model!r} beside {config.base_model!r}. Choose models of one family."
        )
