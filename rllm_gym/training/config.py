"""The base of every method's configuration: the model, the sampler, the learner, the horizon, the evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils import force_list
from ray.rllib.utils.annotations import override
from ray.util.debug import log_once

from rllm_gym.callbacks.exact_games import ExactGames
from rllm_gym.callbacks.opponents import Opponents
from rllm_gym.callbacks.scaling_inter import ScalingInter
from rllm_gym.data import Keep
from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import make_learner_connector
from rllm_gym.learner.deepspeed import DeepSpeedLearner
from rllm_gym.learner.rl_module import LLMModule
from rllm_gym.library_noise import hold_back
from rllm_gym.options.common import CommonOptions
from rllm_gym.rollout.engines import adapter_options
from rllm_gym.rollout.env_runner import LLMEnvRunner
from rllm_gym.training.learners import NoLearners
from rllm_gym.training.strict_config import StrictConfig
from rllm_gym.types import SamplingParams

PEFT_RANK = 8  # peft's default


class LLMConfig(StrictConfig, CommonOptions):
    """Configuration shared by all methods that train language models.

    Every option is an attribute of the same name, so that `config: {group_size: 8}` in YAML,
    `GRPOConfig().training(group_size=8)` and `Tuner(param_space={"group_size": 8})` mean the same.
    """

    num_recorded_samples_per_step = 0  # of a method that trains on what it does not sample

    _find_method: Callable[[], type | None] = staticmethod(lambda: None)  # returns whose `config_class` this is

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or self._find_method())
        self.env_runners(
            env_runner_cls=LLMEnvRunner,
            create_local_env_runner=False,  # else the driver would build a second inference engine
            sample_timeout_s=None,  # RLlib's 60 s drops slow rollouts in silence
            batch_mode="complete_episodes",
            episodes_to_numpy=False,  # episodes hold ragged token arrays
            max_requests_in_flight_per_env_runner=1000,  # at 1 a weight sync can be dropped in silence
            merge_env_runner_states=False,
            add_default_connectors_to_env_to_module_pipeline=False,
            add_default_connectors_to_module_to_env_pipeline=False,
        )
        self.learners(
            learner_connector=make_learner_connector,
            add_default_connectors_to_learner_pipeline=False,
        )

    # --- what RLlib asks for ---

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=LLMModule)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[DeepSpeedLearner]:
        return DeepSpeedLearner

    @override(AlgorithmConfig)
    def build_learner_group(self, **kwargs: Any) -> LearnerGroup:
        return super().build_learner_group(**kwargs) if self.trains else NoLearners(kwargs["rl_module_spec"])

    @property
    @override(AlgorithmConfig)
    def _model_config_auto_includes(self) -> dict[str, Any]:
        names = ("base_model", "gradient_checkpointing", "lora", "max_model_len", "temperature", "trust_remote_code")
        settings = {name: getattr(self, name) for name in names} | {"dtype": self.weight_dtype}
        settings["has_entropy_gradient"] = getattr(self, "entropy_coeff", 0.0) > 0
        return super()._model_config_auto_includes | settings

    @override(AlgorithmConfig)
    def get_multi_rl_module_spec(self, **kwargs: Any) -> MultiRLModuleSpec:
        """Return RLlib's specification, in which policies have their own models and adapters."""
        spec = super().get_multi_rl_module_spec(**kwargs)
        for policy_id in self.algorithm_config_overrides_per_module.keys() & spec.rl_module_specs.keys():
            policy = spec.rl_module_specs[policy_id]
            own = {name: self.option_of(policy_id, name) for name in ("base_model", "lora")}
            policy.model_config = {**policy.model_config, **own}
        return spec

    def option_of(self, policy_id: str, name: str) -> Any:
        """Return an option as one policy has it."""
        return self.algorithm_config_overrides_per_module.get(policy_id, {}).get(name, getattr(self, name))

    def policy_of(self, agent_id: str, episode: Any = None) -> str:
        """Return the policy of the run that plays an agent, or whose earlier selves do.

        Differs: without `policy_mapping_fn` it is the one policy, or of several the one with the agent's name; RLlib
        takes "default_policy", though there may be none.

        Raises:
            ConfigError: there is no such policy.
        """
        if not self.is_multi_agent:
            return DEFAULT_MODULE_ID
        mapping: Any = self.policy_mapping_fn
        if mapping is AlgorithmConfig.DEFAULT_POLICY_MAPPING_FN:
            policy_id = next(iter(self.policies)) if len(self.policies) == 1 else agent_id
        else:
            policy_id = mapping(agent_id, episode)
        if policy_id not in self.policies:
            raise ConfigError(
                f"{type(self).__name__}: policies: must have one for each agent; got {', '.join(sorted(self.policies))}"
                f", and {policy_id!r} is to play {agent_id}. Name them after the agents, or set policy_mapping_fn."
            )
        return policy_id

    @property
    def adapter_hosts(self) -> dict[str, str]:
        """The opponents that are adapters on a policy's engine: module to policy. The others have engines of their own.

        A pool of adapters is one, with vLLM.
        """
        hosts = {
            opponent.module_of(a): self.policy_of(a)
            for a, opponent in self.opponent_specs.items()
            if opponent.kind == "pool"
        }
        fits = {policy_id for policy_id in hosts.values() if self._adapter_rank(policy_id) is not None}
        return {module_id: policy_id for module_id, policy_id in hosts.items() if policy_id in fits}

    def _adapter_rank(self, policy_id: str) -> int | None:
        lora = self.option_of(policy_id, "lora")
        rank = None if lora is None or self.engine != "vllm" else int(lora.get("r", PEFT_RANK))
        return rank if rank is not None and adapter_options(rank, 1) else None

    def adapter_options(self, module_id: str) -> dict[str, Any]:
        """Return the options of a policy's engine on which opponents ride."""
        num_adapters = list(self.adapter_hosts.values()).count(module_id)
        rank = self._adapter_rank(module_id) if num_adapters else None
        return {} if rank is None else adapter_options(rank, num_adapters) or {}

    @property
    def max_turns(self) -> dict[str, int]:
        """The horizons of policies that have one of their own, in turns of their agents."""
        own = self.algorithm_config_overrides_per_module
        return {name: of["max_episode_steps"] for name, of in own.items() if "max_episode_steps" in of}

    @property
    def chat_options(self) -> dict[str, Any]:
        """How conversations become tokens: keywords of `ChatTokenizer`."""
        # A checkpoint of an earlier version has the first one alone.
        names = ("chat_template", "history", "chat_template_kwargs", "template_date")
        values = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def sampling_params(self) -> SamplingParams:
        return SamplingParams(self.max_new_tokens, self.temperature, self.top_p, self.top_k)

    @property
    def greedy_params(self) -> SamplingParams:
        """Those of the likeliest token."""
        return SamplingParams(self.max_new_tokens, temperature=0.0)

    @property
    def evaluation_params(self) -> SamplingParams:
        """Those of training, as `evaluation_config` changes them."""
        changes: dict[str, Any] = dict(self.evaluation_config or {})
        for name in ("env", "env_config"):
            changes.pop(name, None)
        explores = changes.pop("explore", True)
        params = dataclasses.replace(self.sampling_params, **changes)
        return params if explores else dataclasses.replace(params, temperature=0.0, top_p=1.0, top_k=0)

    def is_trained(self, policy_id: str) -> bool:
        """Return whether a policy learns, or only plays."""
        trained = self.policies_to_train
        return trained(policy_id, None) if callable(trained) else trained is None or policy_id in trained

    @property
    def weight_dtype(self) -> str:
        """The `dtype` that holds where it is left to the devices."""
        has_gpu = self.num_gpus_per_learner > 0 or self.num_gpus_per_env_runner > 0
        return str(self.dtype or ("bfloat16" if has_gpu else "float32"))

    @property
    def has_autocast(self) -> bool:
        """Whether the learners multiply in 16 bits, whatever their weights are: DeepSpeed's `torch_autocast`."""
        return bool(self.deepspeed.get("torch_autocast", {}).get("enabled"))

    @property
    def transfers_weights(self) -> bool:
        """Whether weights may go from the learners to the EnvRunners past the object store; see `weight_transfer`."""
        is_split = any(self.engine_options.get(f"{of}_parallel_size", 1) > 1 for of in ("tensor", "pipeline"))
        # Opponents' adapters need a policy's weights later, too; a split model is in several processes.
        return self.weight_transfer == "broadcast" and not (self.adapter_hosts or is_split)

    @property
    def shares_gpus_by_turns(self) -> bool:
        """Whether samplers and learners share GPUs and work in turns, and vLLM is to sleep meanwhile.

        `engine_options: {enable_sleep_mode: true}` asks for it.
        """
        is_shared = self.num_gpus_per_learner % 1 > 0 and self.num_gpus_per_env_runner % 1 > 0
        asks = self.engine == "vllm" and bool(self.engine_options.get("enable_sleep_mode"))
        return is_shared and asks and not getattr(self, "staleness", 0)

    @property
    def num_learner_threads(self) -> int:
        """Threads of a learner: the CPUs that it was given; a local one lives in the main process."""
        if self.num_learners == 0:
            return max(1, int(self.num_cpus_for_main_process))
        return 1 if self.num_cpus_per_learner == "auto" else max(1, int(self.num_cpus_per_learner))

    @property
    def num_env_runner_threads(self) -> int:
        """Threads of a sampler: the CPUs that its runner was given.

        A single one with none has the threads of a main process that takes turns with it.
        """
        takes_turns = self.num_env_runners == 1 and not getattr(self, "staleness", 0)
        shared = self.num_cpus_for_main_process if takes_turns and self.num_cpus_per_env_runner == 0 else 0
        return max(1, int(self.num_cpus_per_env_runner), int(shared))

    @property
    def kept_episodes(self) -> Keep | None:
        """Which episodes stay on the disk; None where all do."""
        kept: Any = self.keep_episodes
        return None if kept == "all" else Keep(**kept)

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Check all options, then what RLlib checks. Some more is set: callbacks, and where frozen opponents are.

        Raises:
            ConfigError: a line for everything that is wrong.
        """
        callbacks: list[type] = force_list(self.callbacks_class)
        if missing := [callback for callback in (ScalingInter, Opponents, ExactGames) if callback not in callbacks]:
            self.callbacks(callbacks_class=[*missing, *callbacks])
        log_once(f"{self.algo_class.__name__}_on_new_api_stack")  # RLlib's notice to those who come from the old stack
        if self.quiet_libraries:
            hold_back()
        if not self.in_evaluation:  # RLlib's copy for runners of its own, which there are none of
            self.check_options()
        super().validate()
        if self.in_evaluation:
            return
        frozen = {a: opponent.source for a, opponent in self.opponent_specs.items() if opponent.kind == "frozen"}
        if frozen:  # by the path of its folder, whoever reads this
            written = getattr(self, "opponents", {})
            self.update_from_dict({"opponents": {**written, **{a: {"frozen": path} for a, path in frozen.items()}}})
