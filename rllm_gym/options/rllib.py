"""RLlib's options: those that mean the same here, and the replacements of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from typing_extensions import Doc, TypedDict

from rllm_gym.errors import nearest
from rllm_gym.options.table import OptionTable
from rllm_gym.options.types import Count, CountOrZero, NonNegative, Positive

Callback = Callable | list[Callable] | None


class EvaluationConfig(TypedDict, total=False):
    """Options that evaluations may change: of sampling, and the environment."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    explore: bool
    temperature: NonNegative
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: CountOrZero
    max_new_tokens: Count
    env: Any
    env_config: dict


class PolicyOptions(TypedDict, total=False):
    """Options that may differ between the policies of a run."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    base_model: str
    lora: dict | None
    lr: NonNegative
    max_new_tokens: Count
    max_episode_steps: Count


class RLlibOptions(OptionTable):
    """RLlib's own options."""

    env: Annotated[Any, Doc("the environment: an id, a class, or a list of `{id, weight, env_config, name}`.")]
    env_config: Annotated[dict, Doc("keywords of the environment; the page of each lists them.")]
    seed: Annotated[CountOrZero | None, Doc("of tasks, environments and sampling.")] = 0

    num_env_runners: Annotated[CountOrZero, Doc("actors that sample, each with an engine of its own.")] = 1
    num_envs_per_env_runner: Annotated[
        Count, Doc("episodes that a runner has in flight at once, or as many as its engine's cache holds.")
    ] = 64
    num_cpus_per_env_runner: Annotated[
        NonNegative,
        Doc("also the threads of its engine. With 0, a single one has those of the main process, in turn with it."),
    ]
    num_gpus_per_env_runner: Annotated[NonNegative, Doc("GPUs of each runner.")]
    custom_resources_per_env_runner: Annotated[dict, Doc("Ray's custom resources of each runner.")]
    restart_failed_env_runners: Annotated[bool, Doc("bring a dead runner back, and play its share again.")] = True
    max_num_env_runner_restarts: Annotated[CountOrZero, Doc("how often a runner is brought back at most.")]
    delay_between_env_runner_restarts_s: Annotated[NonNegative, Doc("seconds before a runner is brought back.")] = 1.0
    env_runner_health_probe_timeout_s: Annotated[Positive, Doc("seconds that a runner has to say that it lives.")]
    env_runner_restore_timeout_s: Annotated[Positive, Doc("seconds that a restarted runner has to come up.")]

    num_learners: Annotated[CountOrZero, Doc("actors that train; 0 trains in the main process.")]
    num_cpus_per_learner: Annotated[NonNegative | Literal["auto"], Doc("also the threads of a learner.")]
    num_gpus_per_learner: Annotated[NonNegative, Doc("GPUs of each learner.")]
    custom_resources_per_learner: Annotated[dict, Doc("Ray's custom resources of each learner.")]
    num_cpus_for_main_process: Annotated[NonNegative, Doc("also the threads of a learner in the main process.")]
    custom_resources_for_main_process: Annotated[dict, Doc("Ray's custom resources of the main process.")]
    placement_strategy: Annotated[
        Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"], Doc("how Ray places a trial's processes on nodes.")
    ]
    local_gpu_idx: Annotated[CountOrZero, Doc("the GPU of a learner in the main process.")]
    learner_config_dict: Annotated[dict, Doc("anything for a learner of one's own.")]

    lr: Annotated[
        NonNegative, Doc("learning rate of AdamW; for a schedule set `deepspeed: {scheduler: {type: WarmupLR, ...}}`.")
    ] = 1e-6
    grad_clip: Annotated[NonNegative | None, Doc("bound on the gradient's global norm; null does not bound it.")] = 1.0
    num_epochs: Annotated[Count, Doc("passes over a train step's samples.")] = 1

    policies: Annotated[Any, Doc("ids of the policies, in environments of several agents.")]
    policy_mapping_fn: Annotated[
        Callable | None,
        Doc("the policy of an agent in an episode; by default the one policy, or of several the one of its name."),
    ]
    policies_to_train: Annotated[Any, Doc("ids of the policies that learn; null is all.")]
    algorithm_config_overrides_per_module: Annotated[
        dict[str, PolicyOptions],
        Doc(
            "what policies have otherwise than the run: `{planner: {base_model: ..., lora: ..., lr: 1e-5, "
            "max_new_tokens: 128, max_episode_steps: 1}}`; the last one counts the turns of the policy's agents. All "
            "base models need the same tokenizer."
        ),
    ]

    evaluation_interval: Annotated[Count | None, Doc("train steps between two evaluations; null never evaluates.")]
    evaluation_duration: Annotated[Count, Doc("episodes of each split.")] = 100
    evaluation_config: Annotated[
        EvaluationConfig | None,
        Doc(
            "what evaluations do otherwise than training. `explore: false` takes the likeliest token; `env` is another "
            "environment, or a list, with an `env_config` of its own; `env_config` alone changes the run's."
        ),
    ]
    custom_evaluation_function: Annotated[
        Callable | None, Doc("called with the algorithm and its EnvRunnerGroup in place of the evaluation.")
    ]

    callbacks_class: Annotated[type | list[type] | None, Doc("`RLlibCallback`s; ScalingInter is always among them.")]
    callbacks_on_algorithm_init: Annotated[Callback, Doc("as RLlib calls it.")]
    callbacks_on_checkpoint_loaded: Annotated[Callback, Doc("as RLlib calls it.")]
    callbacks_on_env_runners_recreated: Annotated[Callback, Doc("as RLlib calls it.")]
    callbacks_on_environment_created: Annotated[Callback, Doc("with each environment that a runner makes.")]
    callbacks_on_episode_start: Annotated[Callback, Doc("with an episode after its reset.")]
    callbacks_on_episode_end: Annotated[Callback, Doc("with a whole episode.")]
    callbacks_on_sample_end: Annotated[Callback, Doc("with all episodes of a request to a runner.")]
    callbacks_on_train_result: Annotated[Callback, Doc("as RLlib calls it.")]
    callbacks_on_evaluate_start: Annotated[Callback, Doc("as RLlib calls it.")]
    callbacks_on_evaluate_end: Annotated[Callback, Doc("as RLlib calls it.")]

    env_runner_cls: Annotated[type | None, Doc("the EnvRunner's class; one of your own derives from `LLMEnvRunner`.")]
    log_level: Annotated[Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR"], Doc("of RLlib's own logger.")]
    log_sys_usage: Annotated[bool, Doc("log memory and processor use of the main process's node.")]


# These belong to RLlib's old stack, or to what is not used here.
_DO_NOTHING = """
action_mask_key action_space actions_in_input_normalized add_default_connectors_to_env_to_module_pipeline
add_default_connectors_to_learner_pipeline add_default_connectors_to_module_to_env_pipeline
always_attach_evaluation_results auto_wrap_old_gym_envs broadcast_env_runner_states
broadcast_offline_eval_runner_states buffer_size callbacks_on_evaluate_offline_end
callbacks_on_evaluate_offline_start callbacks_on_offline_eval_runners_recreated checkpoint_trainable_policies_only
collect_metrics_timeout compress_observations count_steps_by create_env_on_local_worker create_local_env_runner
custom_async_evaluation_function custom_resources_per_offline_eval_runner dataset_num_iters_per_eval_runner
dataset_num_iters_per_learner eager_max_retraces eager_tracing enable_async_evaluation enable_connectors
enable_env_runner_and_connector_v2 enable_rl_module_and_learner enable_tf1_exec_eagerly
env_runner_state_server_max_concurrency env_task_fn episode_lookback_horizon episodes_to_numpy
evaluation_auto_duration_max_env_steps_per_sample evaluation_auto_duration_min_env_steps_per_sample
evaluation_error_after_n_consecutive_skips evaluation_force_reset_envs_before_iteration
evaluation_unhealthy_workers_timeout_s fake_sampler ignore_final_observation ignore_offline_eval_runner_failures
input_compress_columns input_evaluation input_filesystem input_filesystem_kwargs input_read_batch_size
input_read_episodes input_read_method input_read_method_kwargs input_read_sample_batches input_read_schema
input_spaces_jsonable iter_batches_kwargs keep_per_episode_custom_metrics learner_connector learning_starts
local_tf_session_args log_gradients map_batches_kwargs materialize_data materialize_mapped_data
max_num_offline_eval_runner_restarts max_requests_in_flight_per_aggregator_actor
max_requests_in_flight_per_env_runner max_requests_in_flight_per_learner
max_requests_in_flight_per_offline_eval_runner merge_env_runner_states metrics_episode_collection_timeout_s
metrics_smoothing_episodes min_iter_time_s min_sample_timesteps_per_reporting min_time_s_per_reporting
min_train_timesteps_per_reporting monitor num_aggregator_actors_per_learner num_cpus_per_offline_eval_runner
num_gpus_per_offline_eval_runner num_offline_eval_runners observation_space off_policy_estimation_methods
offline_data_class offline_eval_batch_size_per_runner offline_eval_rl_module_inference_only
offline_eval_runner_class offline_eval_runner_health_probe_timeout_s offline_eval_runner_restore_timeout_s
offline_evaluation_duration offline_evaluation_interval offline_evaluation_parallel_to_training
offline_evaluation_timeout_s offline_evaluation_type offline_loss_for_module_fn offline_sampling
ope_split_batch_by_episode output_compress_columns output_config output_filesystem output_filesystem_kwargs
output_max_file_size output_max_rows_per_file output_write_episodes output_write_method output_write_method_kwargs
output_write_remaining_data policy_map_cache policy_map_capacity policy_states_are_swappable postprocess_inputs
prelearner_buffer_class prelearner_buffer_kwargs prelearner_class prelearner_module_synch_period
prelearner_use_recorded_module_states prioritized_replay prioritized_replay_alpha prioritized_replay_beta
prioritized_replay_eps remote_env_batch_wait_ms replay_batch_size replay_mode replay_sequence_length
restart_failed_offline_eval_runners sample_collector sampler_perf_stats_ema_coef shuffle_batch_per_epoch
shuffle_buffer_size simple_optimizer stats_cls_lookup sync_filters_on_rollout_workers_timeout_s synchronize_filters
tf_session_args timesteps_per_iteration torch_compile_learner torch_compile_learner_dynamo_backend
torch_compile_learner_dynamo_mode torch_compile_learner_what_to_compile torch_compile_worker
torch_compile_worker_dynamo_backend torch_compile_worker_dynamo_mode torch_ddp_kwargs update_worker_filter_stats
use_env_runner_state_server use_worker_filter_stats validate_env_runners_after_construction
validate_offline_eval_runners_after_construction worker_cls
""".split()  # noqa: SIM905

# RLlib's other options, and what to use instead. Only their defaults are taken.
UNUSED: dict[str, str] = {
    "batch_mode": "episodes are always complete",
    "callbacks_on_episode_created": "use `callbacks_on_episode_start`",
    "callbacks_on_episode_step": "use `callbacks_on_episode_end`, whose episode has all turns",
    "clip_actions": "actions are token ids",
    "clip_rewards": "use a wrapper of the environment",
    "disable_env_checking": "`rllm-gym check-env` checks an environment",
    "evaluation_duration_unit": "an evaluation counts episodes, `evaluation_duration` of each split",
    "evaluation_num_env_runners": "evaluation runs on the training's EnvRunners, which have the newest weights",
    "evaluation_num_episodes": "use `evaluation_duration`",
    "evaluation_parallel_to_training": "evaluation runs on the training's EnvRunners, which have the newest weights",
    "evaluation_sample_timeout_s": "use `episode_timeout_s`",
    "exploration_config": "use `temperature`",
    "explore": "use `temperature`; in evaluations `evaluation_config: {explore: false}`",
    "export_native_model_files": "use `rllm-gym export`",
    "extra_python_environs_for_driver": "use Ray's `runtime_env`",
    "extra_python_environs_for_worker": "use Ray's `runtime_env`",
    "framework_str": "there is only torch",
    "gamma": "an episode's return is not discounted by this method; PPO and ReinforcePP have gamma",
    "grad_clip_by": "`grad_clip` bounds the global norm",
    "gym_env_vectorize_mode": "use `num_env_workers`",
    "horizon": "the horizon is `max_episode_steps` or `scaling_inter`",
    "ignore_env_runner_failures": "a dead runner's groups are played again; one that kills two runners is dropped",
    "input_": "use `data` of SFT and DPO",
    "input_config": "use `data` of SFT and DPO",
    "lambda_": "this method has no critic; PPO has lambda",
    "learner_class": "use `get_default_learner_class` of a method of your own",
    "metrics_num_episodes_for_smoothing": "metrics are those of one train step; smooth them where you plot them",
    "min_sample_timesteps_per_iteration": "a train step is one update; use `groups_per_step`",
    "min_time_s_per_iteration": "a train step is one update; use `groups_per_step`",
    "min_train_timesteps_per_iteration": "a train step is one update; use `groups_per_step`",
    "minibatch_size": "use `num_minibatches`",
    "model": "the language model is `base_model` (tiny, a folder or a Hugging Face name)",
    "model_config": "use `base_model`",
    "normalize_actions": "actions are token ids",
    "num_consecutive_env_runner_failures_tolerance": "use `max_failed_fraction` and `max_num_env_runner_restarts`",
    "num_cpus_for_local_worker": "use `num_cpus_for_main_process`",
    "num_gpus": "use `num_gpus_per_learner` and `num_gpus_per_env_runner`",
    "num_rollout_workers": "use `num_env_runners`",
    "num_sgd_iter": "use `num_epochs`",
    "observation_filter": "observations are token ids; use a wrapper of the environment",
    "observation_fn": "observations are token ids; use a wrapper of the environment",
    "optimizer": "the optimizer is AdamW; use `lr`, `weight_decay`, `adam_betas` or `deepspeed`",
    "output": "episodes are kept by `save_trajectories`",
    "preprocessor_pref": "observations are token ids; use a wrapper of the environment",
    "remote_worker_envs": "use `num_env_workers`",
    "render_env": "use `save_trajectories`",
    "restart_failed_sub_environments": "failed episodes begin again; use `max_episode_retries`",
    "rl_module_spec": "use `base_model`, or `get_default_rl_module_spec` of a method of your own",
    "rollout_fragment_length": "episodes are always complete; use `groups_per_step` and `group_size`",
    "sample_timeout_s": "use `episode_timeout_s` and `env_timeout_s`",
    "sgd_minibatch_size": "use `num_minibatches`",
    "torch_skip_nan_gradients": "use `skip_non_finite_steps`",
    "train_batch_size": "a train step samples `groups_per_step` x `group_size` episodes",
    "train_batch_size_per_learner": "a train step samples `groups_per_step` x `group_size` episodes",
    **dict.fromkeys(_DO_NOTHING, ""),
}

# Other names that RLlib takes for its options.
ALIASES = {
    "callbacks": "callbacks_class",
    "create_env_on_driver": "create_env_on_local_worker",
    "custom_eval_function": "custom_evaluation_function",
    "framework": "framework_str",
    "input": "input_",
    "lambda": "lambda_",
    "num_cpus_for_driver": "num_cpus_for_main_process",
    "num_workers": "num_env_runners",
}


def unused_option(name: str) -> str | None:
    """Return the replacement of an option of RLlib's that is not used here, in words; None for any other name."""
    if name not in UNUSED:
        return None
    return f"{name} is not used here; {UNUSED[name] or 'it does nothing. Leave it out'}."


def unknown_option(name: str, options: Collection[str]) -> str | None:
    """Return the fault of an unknown option's name; None where it is known."""
    if name in options:
        return None
    if reason := unused_option(name):
        return reason
    return f"unknown key {name!r}; did you mean {nearest(name, options)!r}?"
