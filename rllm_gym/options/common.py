"""The options that every method has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import Doc, TypedDict

from rllm_gym.callbacks.horizon_schedules import Schedule, last_horizon, parse_schedules
from rllm_gym.callbacks.opponent_pool import Opponent
from rllm_gym.errors import ConfigError, nearest
from rllm_gym.options.rllib import RLlibOptions
from rllm_gym.options.table import OptionTable, faults_raised_by
from rllm_gym.options.types import Count, CountOrZero, Fraction, NonNegative, Positive
from rllm_gym.rollout.engines import ONLY_PLAYS, check_engine
from rllm_gym.rollout.environments import EnvironmentSpec, change_environments, read_environments
from rllm_gym.types import DEFAULT_MODULE, Engine


def _as_text(value: Any) -> Any:
    """Return a date as text, which is how YAML reads 2026-01-31."""
    return value.isoformat() if isinstance(value, date) else value


class ModelOptions(OptionTable):
    """The language model."""

    base_model: Annotated[str, Doc("`tiny` (the shipped model), a folder, or a Hugging Face name.")] = "tiny"
    trust_remote_code: Annotated[
        bool, Doc("run the code that `base_model` brings (`auto_map`), in every process of the run. Read it first.")
    ] = False
    chat_template: Annotated[
        str | None, Doc("replaces the tokenizer's: Jinja text, a path, or the name of a shipped one.")
    ] = None
    history: Annotated[
        Literal["auto", "append_only", "as_template"],
        Doc(
            "how a conversation goes on. `append_only`: nothing that was read is ever rewritten, so that an episode is "
            "one sample; other templates are refused. `as_template`: every prompt is what the template renders for the "
            "messages, sampled tokens are kept where their text is, and a new sample begins where history was "
            "rewritten. `auto` takes the second where the template is not append-only, and says what it costs."
        ),
    ] = "auto"
    chat_template_kwargs: Annotated[dict, Doc("variables of the template, such as `{enable_thinking: false}`.")] = {}
    template_date: Annotated[
        str | None,
        BeforeValidator(_as_text),
        Doc("today, for a template that writes it, as 2026-01-31; null is 2026-01-01, and never the clock's."),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        Doc(
            "of the weights in samplers and in forward passes; with 16 bits the optimizer keeps float32 masters. null: "
            "bfloat16 where a sampler or a learner has a GPU, else float32."
        ),
    ] = None
    gradient_checkpointing: Annotated[
        Literal["selective"] | bool,
        Doc(
            "recompute activations in the backward pass to save memory: of each layer all, or (`selective`) what costs "
            "little to compute, but neither attention nor the wide products."
        ),
    ] = False
    lora: Annotated[
        dict | None,
        Doc(
            "arguments of `peft.LoraConfig`, such as `{r: 16, lora_alpha: 32}`; null trains all weights. Dropout is "
            "off. With 16 bits, `torch_autocast` included, about half of a young adapter's effect is lost to rounding."
        ),
    ] = None


class SamplingOptions(OptionTable):
    """The options of sampling."""

    engine: Annotated[
        str | Callable[..., Engine],
        Doc(
            "`vllm`, `transformers` (slow, no extra dependency), or one of your own as `module:name`; for "
            "`rllib evaluate` also `openai`, any OpenAI-compatible endpoint."
        ),
    ] = "vllm"
    engine_options: Annotated[dict, Doc("passed through to vLLM's `EngineArgs`, or to the other engine.")] = {}
    stop: Annotated[
        list[str] | None,
        Doc(
            "texts that end a turn, such as `['</search>']`: the token in which the first one ends is the last that is "
            "kept and trained, and the environment reads up to the text's end. null: the environment's own, which "
            "SearchQA has; `[]`: none."
        ),
    ] = None
    max_model_len: Annotated[
        Annotated[int, Field(ge=2)],
        Doc("tokens of a whole episode at most; an episode with no room for another turn is truncated."),
    ] = 2048
    max_new_tokens: Annotated[Count, Doc("tokens of one turn at most.")] = 64
    temperature: Annotated[NonNegative, Doc("of sampling, and of the trainer's probabilities.")] = 1.0
    top_p: Annotated[
        Annotated[float, Field(gt=0, le=1)], Doc("of sampling; other than 1.0 in `evaluation_config` only.")
    ] = 1.0
    top_k: Annotated[CountOrZero, Doc("of sampling; 0 is all, other than that in `evaluation_config` only.")] = 0
    groups_per_step: Annotated[Count, Doc("tasks per train step.")] = 8
    group_size: Annotated[Count, Doc("episodes per task.")] = 8
    num_env_workers: Annotated[
        CountOrZero,
        Doc(
            "threads that call the environments while the engine decodes, each environment's calls from one of them "
            "for life; with 0 there is one, which is waited for in a fixed order: seeded runs repeat bit for bit, and "
            "cheap environments are fastest so."
        ),
    ] = 0
    env_process: Annotated[
        bool,
        Doc(
            "give each environment a process of its own, where the main thread calls it: for one that sets signal "
            "handlers or timers, crashes, or leaves processes behind. It costs some 100 MB and a second or two each."
        ),
    ] = False
    episode_timeout_s: Annotated[
        Positive | None, Doc("wall seconds after which an episode has failed; null never.")
    ] = None
    env_timeout_s: Annotated[
        Positive,
        Doc("wall seconds that a call into an environment may take; then it is abandoned and its episode has failed."),
    ] = 120.0
    max_episode_retries: Annotated[
        CountOrZero, Doc("how often a failed episode begins again, on a fresh environment, before it is dropped.")
    ] = 1
    max_failed_fraction: Annotated[
        Fraction, Doc("share of a train step's episodes that may fail before the run stops.")
    ] = 0.1
    max_episode_steps: Annotated[int | None, Doc("the horizon, in turns; null leaves it to the environment.")] = None
    scaling_inter: Annotated[
        dict | None,
        Doc(
            "a schedule of horizons instead: `{type: stepwise, horizons: [..], steps_per_stage: N}`, `{type: fixed, "
            "horizons: [N]}` or `{type: adaptive, horizons: [..], min_steps_per_stage: N}` (its other keys: "
            "`rllm_gym.callbacks.horizon_schedules.AdaptiveSchedule`); of several environments one for all, or `{name: "
            "schedule}`."
        ),
    ] = None


class LearnerOptions(OptionTable):
    """The DeepSpeed learners and their update."""

    tokens_per_micro_batch: Annotated[Count, Doc("tokens of one forward and backward pass, padding included.")] = 8192
    packing: Annotated[
        Literal["auto"] | bool,
        Doc(
            "let a row of a micro-batch hold several samples, so that little is padding; it changes no "
            "log-probability. `auto` does so where the model can keep them apart, and says where it cannot; true "
            "stops there."
        ),
    ] = "auto"
    share_prefixes: Annotated[
        Literal["auto"] | bool,
        Doc(
            "read once what samples begin with in common, such as a group's first prompt, where that saves more than "
            "longer rows cost; it changes no log-probability. Needs packed rows and a model whose layers all see the "
            "whole row. `auto` does so on CPUs, where attention goes from block to block of a row; true on GPUs, too."
        ),
    ] = "auto"
    skip_non_finite_steps: Annotated[
        CountOrZero,
        Doc(
            "optimizer steps of a run whose loss or gradient may be NaN or infinite; each is discarded and counted in "
            "`num_skipped_steps`, and one more ends the run."
        ),
    ] = 0
    num_minibatches: Annotated[
        Count,
        Doc(
            "optimizer steps per pass over a train step's samples. Above 1, tasks are shuffled in every pass, from the "
            "seed, whatever `num_learners`."
        ),
    ] = 1
    zero_stage: Annotated[
        Literal[0, 1, 2, 3] | None,
        Doc(
            "what DeepSpeed partitions over learners: 0 nothing, 1 optimizer, 2 gradients too, 3 weights too; null is "
            "2, but 0 where one learner trains in float32 and nothing is offloaded."
        ),
    ] = None
    quiet_libraries: Annotated[
        bool,
        Doc("keep back what Ray and transformers say of themselves at every build: notices, deprecations, bars."),
    ] = True
    check_sync: Annotated[
        Literal["stop", "warn"],
        Doc(
            "what to do where the sampler, after the first sync of weights, gives a fixed prompt other "
            "log-probabilities than the trainer: stop, or say so and go on. Of engines `vllm` and `transformers`."
        ),
    ] = "stop"
    weight_transfer: Annotated[
        Literal["auto", "object_store", "broadcast"],
        Doc(
            "how new weights reach the samplers: `auto` and `object_store` by Ray's object store; `broadcast` from "
            "the first learner, by CUDA IPC on one GPU, NCCL between several and Gloo between CPUs. No GPU has run "
            "`broadcast` yet."
        ),
    ] = "auto"
    deepspeed: Annotated[
        dict,
        Doc(
            "merged over the generated DeepSpeed configuration: `scheduler`, `zero_optimization.offload_optimizer`, ..."
        ),
    ] = {}
    weight_decay: Annotated[NonNegative, Doc("of AdamW.")] = 0.0
    adam_betas: Annotated[
        Sequence[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2), Doc("of AdamW.")
    ] = (0.9, 0.999)


class KeepOptions(TypedDict, total=False):
    """See `rllm_gym.data.Keep`."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    newest: Count
    best: CountOrZero
    worst: CountOrZero
    share: Fraction


class EvaluationOptions(OptionTable):
    """Evaluations and records."""

    evaluation_splits: Annotated[Sequence[str], Doc("splits of the environment to evaluate on.")] = ("eval",)
    evaluation_horizon: Annotated[Count | None, Doc("in turns; null is the last stage's.")] = None
    evaluation_seed: Annotated[
        CountOrZero, Doc("of the tasks' environments and of the sampling; the same at every evaluation.")
    ] = 10_000
    evaluation_game_samples: Annotated[
        CountOrZero,
        Doc(
            "completions at each information set of a game with a known optimum, where the chances of moves cannot be "
            "computed; 0 then leaves `nash_conv` out."
        ),
    ] = 16
    evaluation_on_start: Annotated[
        bool, Doc("also evaluate before the first train step, when `evaluation_interval` is set.")
    ] = True
    save_trajectories: Annotated[bool, Doc("append every episode to `trajectories/` in the trial's folder.")] = True
    keep_episodes: Annotated[
        Literal["all"] | KeepOptions,
        Doc(
            "which of them stay: `all`, or `{newest: 1000, best: 1, worst: 1, share: 0}` (the defaults of what is left "
            "out): the newest, each task's best and worst, a share of the rest. Thinned whenever 64 MiB have been "
            "written, and at the end."
        ),
    ] = "all"


class CommonOptions(ModelOptions, SamplingOptions, LearnerOptions, EvaluationOptions, RLlibOptions):
    """Options of every method."""

    needs_env = True  # the method cannot do without an environment
    trains = True  # False where a policy is only played
    learns_from_its_trajectories = False  # so that all of them must stay

    @property
    def environments(self) -> list[EnvironmentSpec]:
        """The environments that the run trains on."""
        return read_environments(self.env, self.env_config or {})

    @property
    def evaluation_environments(self) -> list[EnvironmentSpec]:
        """Those that it evaluates on: the same, unless `evaluation_config` says otherwise.

        Raises:
            ConfigError: it cannot be read.
        """
        trained, changes = self.environments, self.evaluation_config or {}
        try:
            return change_environments(trained, changes.get("env"), changes.get("env_config") or {})
        except ConfigError as error:
            raise ConfigError(f"{self.who}: evaluation_config: {error}") from error

    @property
    def all_environments(self) -> list[EnvironmentSpec]:
        """Both, those of training first; a task group's `env_index` counts them."""
        trained = self.environments
        return trained + [spec for spec in self.evaluation_environments if spec not in trained]

    @property
    def last_horizons(self) -> dict[str, int | None]:
        """The horizons of the environments that are evaluated, by their names, as they are at the end of training."""
        schedules = self.horizon_schedules
        return {spec.name: last_horizon(schedules, spec.name) for spec in self.evaluation_environments}

    @property
    def horizon_schedules(self) -> dict[str, Schedule]:
        """The horizon of every train step, by the environment's name."""
        return parse_schedules(self.scaling_inter, self.max_episode_steps, [spec.name for spec in self.environments])

    @property
    def has_env_runners(self) -> bool:
        """True where something is sampled."""
        return True

    @property
    def opponent_specs(self) -> dict[str, Opponent]:
        """The opponent that plays each agent that is not the learner's."""
        return {}

    @property
    def token_options(self) -> dict[str, Any]:
        """Keywords of `make_token_env`, the same for all that play in the run: samplers, experts and the dry run."""
        # A checkpoint of an earlier version has neither.
        return {"stop": getattr(self, "stop", None), "in_process": getattr(self, "env_process", False)}

    @property
    def policy_ids(self) -> list[str]:
        """The run's policies; RLlib's only one where none is named."""
        named: Any = self.policies
        return [DEFAULT_MODULE] if named is None or isinstance(named, str) else list(named)

    @property
    def has_named_policies(self) -> bool:
        return self.policy_ids != [DEFAULT_MODULE]

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from faults_raised_by(lambda: self.horizon_schedules)
        if self.env is None and {"env", "env_config"} & set(self.evaluation_config or {}):
            yield (
                f"{self.who}: evaluation_config changes the environment of a run that has one; got "
                f"{self.evaluation_config!r} without env. Set env."
            )
        elif not faults_raised_by(lambda: self.environments):  # else said with the horizons
            yield from faults_raised_by(lambda: self.evaluation_environments)
        if self.has_env_runners and self.num_env_runners < 1:
            yield f"{self.who}: num_env_runners must be at least 1; got {self.num_env_runners}."
        if self.trains and isinstance(self.engine, str) and self.engine in ONLY_PLAYS:
            yield ONLY_PLAYS[self.engine]
        else:
            yield from faults_raised_by(lambda: check_engine(self.engine, self.engine_options))
        if self.learns_from_its_trajectories and self.keep_episodes != "all":
            yield f"{self.who}: keep_episodes must be all, for it learns from them; got {self.keep_episodes!r}."
        overrides: Mapping[str, Any] = self.algorithm_config_overrides_per_module or {}
        for policy_id in overrides:
            if policy_id not in self.policy_ids:
                yield (
                    f"{self.who}: algorithm_config_overrides_per_module is for policies of the run; got {policy_id!r}. "
                    f"Did you mean {nearest(policy_id, self.policy_ids)!r}?"
                )
        if self.max_new_tokens >= self.max_model_len:
            yield (
                f"{self.who}: max_new_tokens must be below max_model_len, which holds a whole episode; got "
                f"{self.max_new_tokens} and {self.max_model_len}. Raise max_model_len."
            )
