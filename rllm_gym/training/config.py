"""What every method's configuration has in common: the model, the sampler, the learner, the horizon, the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils import force_list
from ray.rllib.utils.annotations import override
from ray.util.debug import log_once

from rllm_gym.callbacks.scaling_inter import ScalingInter, Schedule, schedules_of
from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import make_learner_connector
from rllm_gym.learner.deepspeed import DeepSpeedLearner
from rllm_gym.learner.rl_module import LLMModule
from rllm_gym.rollout.engines import check_engine
from rllm_gym.rollout.env_runner import LLMEnvRunner
from rllm_gym.rollout.environments import EnvironmentSpec, environments_of
from rllm_gym.training.strict_config import StrictConfig
from rllm_gym.types import Engine, SamplingParams

DTYPES = ("float32", "bfloat16", "float16")


class LLMConfig(StrictConfig):
    """Configuration shared by all methods that train language models.

    Every option is an attribute of the same name, so that `config: {group_size: 8}` in YAML,
    `GRPOConfig().training(group_size=8)` and `Tuner(param_space={"group_size": 8})` mean the same.
    """

    needs_env = True
    num_recorded_samples_per_step = 0  # of a method that trains on what it does not sample

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        # Model.
        self.base_model: str = "tiny"
        self.chat_template: str | None = None
        self.dtype: str = "float32"
        self.gradient_checkpointing: bool = False
        self.lora: dict | None = None
        # Sampling.
        self.engine: str | Callable[..., Engine] = "vllm"
        self.engine_options: dict = {}
        self.max_model_len: int = 2048
        self.max_new_tokens: int = 64
        self.temperature: float = 1.0
        self.top_p: float = 1.0
        self.top_k: int = 0
        self.groups_per_step: int = 8
        self.group_size: int = 8
        self.num_env_workers: int = 0
        self.episode_timeout_s: float | None = None
        self.max_episode_retries: int = 1
        self.max_failed_fraction: float = 0.1
        self.max_episode_steps: int | None = None
        self.scaling_inter: dict | None = None
        # Learning.
        self.tokens_per_micro_batch: int = 8192
        self.packing: bool | str = "auto"
        self.skip_non_finite_steps: int = 0
        self.num_minibatches: int = 1
        self.zero_stage: int = 2
        self.deepspeed: dict = {}
        self.weight_decay: float = 0.0
        self.adam_betas: Sequence[float] = (0.9, 0.999)
        # Evaluation and records.
        self.evaluation_splits: Sequence[str] = ("eval",)
        self.evaluation_horizon: int | None = None
        self.evaluation_seed: int = 10_000
        self.evaluation_on_start: bool = True
        self.save_trajectories: bool = True

        # RLlib's own options, where a language model needs another default.
        self.lr = 1e-6
        self.grad_clip = 1.0
        self.seed = 0
        self.num_epochs = 1
        self.evaluation_duration = 100
        self.env_runners(
            env_runner_cls=LLMEnvRunner,
            num_env_runners=1,
            num_envs_per_env_runner=64,
            create_local_env_runner=False,  # else the driver would build a second inference engine
            sample_timeout_s=None,  # RLlib's 60 s drops slow rollouts in silence
            batch_mode="complete_episodes",
            episodes_to_numpy=False,  # episodes hold ragged token arrays
            max_requests_in_flight_per_env_runner=1000,  # at 1 a weight sync can be dropped in silence
            merge_env_runner_states=False,
            add_default_connectors_to_env_to_module_pipeline=False,
            add_default_connectors_to_module_to_env_pipeline=False,
        )
        self.fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=1.0)
        self.learners(
            num_learners=0,
            learner_connector=make_learner_connector,
            add_default_connectors_to_learner_pipeline=False,
        )

    # --- builder methods: RLlib's, with our options added ---

    @override(AlgorithmConfig)
    def rl_module(
        self,
        *,
        base_model: str = NotProvided,
        chat_template: str | None = NotProvided,
        dtype: Literal["float32", "bfloat16", "float16"] = NotProvided,
        gradient_checkpointing: bool = NotProvided,
        lora: dict[str, Any] | None = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the language model.

        Args:
            base_model: `tiny` (the shipped model), a folder, or a Hugging Face name.
            chat_template: replaces the tokenizer's: Jinja text, a path, or the name of a shipped one.
            dtype: of the weights in the sampler and in forward passes; with 16 bits the optimizer keeps float32
                masters.
            gradient_checkpointing: recompute activations in the backward pass to save memory.
            lora: arguments of `peft.LoraConfig`, for example `{r: 16, lora_alpha: 32}`; None trains all weights.
        """
        self._set(
            base_model=base_model,
            chat_template=chat_template,
            dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
            lora=lora,
        )
        super().rl_module(**kwargs)
        return self

    @override(AlgorithmConfig)
    def env_runners(
        self,
        *,
        engine: str | Callable[..., Engine] = NotProvided,
        engine_options: dict[str, Any] = NotProvided,
        max_model_len: int = NotProvided,
        max_new_tokens: int = NotProvided,
        temperature: float = NotProvided,
        top_p: float = NotProvided,
        top_k: int = NotProvided,
        groups_per_step: int = NotProvided,
        group_size: int = NotProvided,
        num_env_workers: int = NotProvided,
        episode_timeout_s: float | None = NotProvided,
        max_episode_retries: int = NotProvided,
        max_failed_fraction: float = NotProvided,
        max_episode_steps: int | None = NotProvided,
        scaling_inter: dict[str, Any] | None = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set how episodes are sampled.

        Args:
            engine: `vllm`, `transformers` (slow, no extra dependency), or one of your own as "module:name" or as it is,
                see `rllm_gym.rollout.engines`.
            engine_options: passed through to vLLM's `EngineArgs`, or to the other engine.
            max_model_len: tokens of a whole episode at most; an episode with no room for another turn is truncated.
            max_new_tokens: tokens of one turn at most.
            temperature, top_p, top_k: of sampling; `top_k` 0 means all. Training uses the same temperature.
            groups_per_step: tasks per train step.
            group_size: episodes per task.
            num_env_workers: threads that step the environments while the engine decodes; 0 steps them in line and in a
                fixed order, which makes seeded runs repeat bit for bit and is best for cheap environments.
            episode_timeout_s: wall seconds after which an episode has failed; None never.
            max_episode_retries: how often a failed episode begins again, on a fresh environment, before it is dropped.
            max_failed_fraction: share of a train step's episodes that may fail before the run stops.
            max_episode_steps: the horizon, in turns; None leaves it to the environment.
            scaling_inter: a schedule of horizons instead: `{type: stepwise, horizons: [..], steps_per_stage: N}`,
                `{type: fixed, horizons: [N]}` or `{type: adaptive, horizons: [..], min_steps_per_stage: N}` (its other
                keys: `rllm_gym.callbacks.scaling_inter.AdaptiveSchedule`); of several environments one for all, or
                `{name: schedule}`.
        """
        self._set(
            engine=engine,
            engine_options=engine_options,
            max_model_len=max_model_len,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            groups_per_step=groups_per_step,
            group_size=group_size,
            num_env_workers=num_env_workers,
            episode_timeout_s=episode_timeout_s,
            max_episode_retries=max_episode_retries,
            max_failed_fraction=max_failed_fraction,
            max_episode_steps=max_episode_steps,
            scaling_inter=scaling_inter,
        )
        super().env_runners(**kwargs)
        return self

    @override(AlgorithmConfig)
    def training(
        self,
        *,
        num_minibatches: int = NotProvided,
        weight_decay: float = NotProvided,
        adam_betas: Sequence[float] = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set what every method's update has in common.

        Args:
            num_minibatches: optimizer steps per pass over a train step's samples.
            weight_decay, adam_betas: of AdamW.
        """
        self._set(
            num_minibatches=num_minibatches,
            weight_decay=weight_decay,
            adam_betas=adam_betas,
        )
        self.refuse_model_key(kwargs)
        super().training(**kwargs)
        return self

    @override(AlgorithmConfig)
    def learners(
        self,
        *,
        tokens_per_micro_batch: int = NotProvided,
        packing: Literal["auto"] | bool = NotProvided,
        skip_non_finite_steps: int = NotProvided,
        zero_stage: Literal[0, 1, 2, 3] = NotProvided,
        deepspeed: dict[str, Any] = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the DeepSpeed learners.

        Args:
            tokens_per_micro_batch: tokens of one forward and backward pass, padding included.
            packing: let a row of a micro-batch hold several samples, so that little is padding; it changes no
                log-probability. `auto` does so where the model can keep them apart, and says where it cannot.
            skip_non_finite_steps: optimizer steps of a run whose loss or gradient may be NaN or infinite; each is
                discarded, and one more ends the run.
            zero_stage: what DeepSpeed partitions over the learners: 0 nothing, 1 optimizer, 2 gradients too, 3 weights
                too.
            deepspeed: merged over the generated DeepSpeed configuration: `scheduler`,
                `zero_optimization.offload_optimizer`, ...
        """
        self._set(
            tokens_per_micro_batch=tokens_per_micro_batch,
            packing=packing,
            skip_non_finite_steps=skip_non_finite_steps,
            zero_stage=zero_stage,
            deepspeed=deepspeed,
        )
        super().learners(**kwargs)
        return self

    @override(AlgorithmConfig)
    def evaluation(
        self,
        *,
        evaluation_splits: Sequence[str] = NotProvided,
        evaluation_horizon: int | None = NotProvided,
        evaluation_seed: int = NotProvided,
        evaluation_on_start: bool = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the evaluation: `evaluation_duration` episodes of each split, sampled as in training, with fixed seeds.

        It runs on the training EnvRunners, which hold the newest weights anyway.

        Args:
            evaluation_splits: splits of the environment to evaluate on.
            evaluation_horizon: in turns; None is the last stage's horizon.
            evaluation_seed: of the tasks' environments and of the sampling; the same at every evaluation.
            evaluation_on_start: also evaluate before the first train step, when `evaluation_interval` is set.
        """
        self._set(
            evaluation_splits=evaluation_splits,
            evaluation_horizon=evaluation_horizon,
            evaluation_seed=evaluation_seed,
            evaluation_on_start=evaluation_on_start,
        )
        super().evaluation(**kwargs)
        return self

    @override(AlgorithmConfig)
    def reporting(self, *, save_trajectories: bool = NotProvided, **kwargs: Any) -> Self:
        """Set the records: `save_trajectories` appends every episode to `trajectories/` in the trial's folder."""
        self._set(save_trajectories=save_trajectories)
        super().reporting(**kwargs)
        return self

    # --- what RLlib asks for ---

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=LLMModule)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[DeepSpeedLearner]:
        return DeepSpeedLearner

    @property
    @override(AlgorithmConfig)
    def _model_config_auto_includes(self) -> dict[str, Any]:
        names = ("base_model", "dtype", "gradient_checkpointing", "lora", "temperature")
        settings = {name: getattr(self, name) for name in names}
        settings["has_entropy_gradient"] = getattr(self, "entropy_coeff", 0.0) > 0
        return super()._model_config_auto_includes | settings

    @property
    def sampling_params(self) -> SamplingParams:
        return SamplingParams(self.max_new_tokens, self.temperature, self.top_p, self.top_k)

    def is_trained(self, policy_id: str) -> bool:
        """Return whether a policy learns, or only plays."""
        trained = self.policies_to_train
        return trained(policy_id, None) if callable(trained) else trained is None or policy_id in trained

    @property
    def num_learner_threads(self) -> int:
        """Threads of a learner: the CPUs that it was given; a local one lives in the main process."""
        if self.num_learners == 0:
            return max(1, int(self.num_cpus_for_main_process))
        return 1 if self.num_cpus_per_learner == "auto" else max(1, int(self.num_cpus_per_learner))

    @property
    def num_env_runner_threads(self) -> int:
        """Threads of a sampler: the CPUs that its runner was given."""
        return max(1, int(self.num_cpus_per_env_runner))

    @property
    def has_env_runners(self) -> bool:
        """Whether anything is sampled."""
        return True

    @property
    def environments(self) -> list[EnvironmentSpec]:
        """The run's environments; a task group's `env_index` counts them."""
        return environments_of(self.env, self.env_config)

    @property
    def horizon_schedules(self) -> dict[str, Schedule]:
        """The horizon of every train step, by the environment's name."""
        return schedules_of(self.scaling_inter, self.max_episode_steps, [spec.name for spec in self.environments])

    @override(AlgorithmConfig)
    def validate(self) -> None:
        self._check_finite()
        callbacks: list[type] = force_list(self.callbacks_class)
        if ScalingInter not in callbacks:
            self.callbacks(callbacks_class=[ScalingInter, *callbacks])
        log_once(f"{self.algo_class.__name__}_on_new_api_stack")  # RLlib's notice to those who come from the old stack
        super().validate()
        if self.in_evaluation:  # RLlib's copy for runners of its own, which there are none of
            return
        who = type(self).__name__
        self.horizon_schedules  # noqa: B018  raises what is wrong with it, and with the environments
        self._check_at_least(
            group_size=1,
            groups_per_step=1,
            num_env_runners=1 if self.has_env_runners else 0,
            num_envs_per_env_runner=1,
            max_new_tokens=1,
            max_model_len=2,
            tokens_per_micro_batch=1,
            num_minibatches=1,
            num_epochs=1,
            num_env_workers=0,
            max_episode_retries=0,
            temperature=0,
            max_failed_fraction=0,
            num_learners=0,
            skip_non_finite_steps=0,
            evaluation_seed=0,
            top_k=0,
            weight_decay=0,
        )
        for name, least in {"seed": 0, "evaluation_horizon": 1}.items():
            if getattr(self, name) is not None:
                self._check_at_least(**{name: least})
        if self.episode_timeout_s is not None and not self.episode_timeout_s > 0:
            raise ConfigError(f"{who}: episode_timeout_s must be above 0, or null; got {self.episode_timeout_s!r}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"{who}: top_p must be above 0 and at most 1; got {self.top_p!r}.")
        self._check_one_of(packing=("auto", True, False), dtype=DTYPES, zero_stage=(0, 1, 2, 3))
        check_engine(self.engine, self.engine_options)
        if self.max_new_tokens >= self.max_model_len:
            raise ConfigError(
                f"{who}: max_new_tokens must be below max_model_len, which holds a whole episode; got "
                f"{self.max_new_tokens} and {self.max_model_len}. Raise max_model_len."
            )
        if isinstance(self.lr, bool) or not isinstance(self.lr, (int, float)) or not self.lr >= 0:
            raise ConfigError(
                f"{who}: lr must be a number of at least 0; got {self.lr!r}. For a schedule set deepspeed: "
                f"{{scheduler: {{type: WarmupLR, ...}}}}."
            )
