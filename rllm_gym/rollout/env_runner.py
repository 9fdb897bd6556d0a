"""RLlib's side of sampling: an EnvRunner over the rollout loop, returning RLlib episodes."""

from __future__ import annotations

import contextlib
import math
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rllm_gym.importing import uncollected
from rllm_gym.library_noise import hold_back

with uncollected():
    from ray.rllib.env.env_runner import EnvRunner

import gymnasium
import torch
from gymnasium.spaces import Discrete
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.utils import force_list
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.spaces.repeated import Repeated

from rllm_gym.envs.program.conversation import note_of_replaced
from rllm_gym.errors import ConfigError, EngineDiedError, RllmGymError
from rllm_gym.memory import GIVE_BACK_EVERY, give_back_freed_memory, keep_freed_memory
from rllm_gym.models import resolve_base_model
from rllm_gym.ray_token import hide_token
from rllm_gym.rollout import watch
from rllm_gym.rollout.background import BackgroundSampling
from rllm_gym.rollout.beats import Beats
from rllm_gym.rollout.environments import Horizon, list_item_ids, make_token_env, resolve_horizons
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.rollout.notices import NoticeHandler, tell, tell_progress
from rllm_gym.rollout.policies import EngineWeights, OpponentWeights, find_base_models, make_engines
from rllm_gym.rollout.rllib_episode import (
    EPISODE_CALLBACKS,
    EpisodeCallbacks,
    RLlibEpisode,
    has_callbacks,
    to_rllib_episode,
)
from rllm_gym.signals import outlive_sigterm
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import (
    AGENT,
    CompletionRequest,
    Engine,
    Episode,
    EpisodeGroup,
    Probe,
    SampleReply,
    SamplingParams,
    TaskGroup,
)
from rllm_gym.weights.receiver import Receiver, arriving
from rllm_gym.weights.sender import TransferError
from rllm_gym.weights.sync import WeightTransfer

# What is sampled to compare an engine with the trainer: words, numbers and signs, so that many tokens occur.
PROBE_TEXT = (
    "Between 1804 and 1912, three rivers (the Elbe, the Oder & the Rhine) rose above 7.35 m; who measured them? "
    "Answer in one line: `name=value`, then stop. Do not guess!"
)
PROBE_TOKENS = 16


class LLMEnvRunner(EnvRunner, Checkpointable):
    """Samples groups of multi-turn token episodes with an inference engine per module."""

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        hide_token()
        self.worker_index: int = kwargs.get("worker_index") or 0
        if self.worker_index > 0:  # a process of its own
            outlive_sigterm()
        self.callbacks = [cls() for cls in force_list(self.config.callbacks_class)]
        self.episode_callbacks = None
        if has_callbacks(self.config, self.callbacks, *EPISODE_CALLBACKS):
            self.episode_callbacks = EpisodeCallbacks(self, self.callbacks, self.to_rllib)
        self.weights_seq_no: int | None = None
        self.num_groups_sampled = 0
        self._has_told_of_params = False
        self.engines: dict[str, Engine] = {}
        self.loop: RolloutLoop | None = None
        self._background: BackgroundSampling | None = None  # once it has been asked to sample ahead
        self.receiver = Receiver(self.worker_index)
        self.error: str | None = None
        with self._errors_kept():
            self._open_tokenizer()
            if self._token_options["in_process"] and has_callbacks(
                self.config, self.callbacks, "on_environment_created"
            ):
                raise ConfigError(
                    "env_process: on_environment_created gets an environment, which is in another process; got both. "
                    "Leave one of them out."
                )

    @contextlib.contextmanager
    def _errors_kept(self) -> Iterator[None]:
        """Keep the first exception in `error`, for which the driver asks: RLlib would lose it, and the runner."""
        try:
            yield
        except TransferError:
            self.weights_seq_no = None  # the first learner finds out, too; the driver says so, and takes another way
        except Exception as error:
            self.error = self.error or self._describe(error)

    def _describe(self, error: Exception) -> str:
        """Return the message, below it the traceback of what is no error of ours; where its engine has died, an actor
        ends instead.
        """
        if isinstance(error, EngineDiedError) and self.worker_index > 0:
            tell(f"EnvRunner {self.worker_index} ends: {error}")
            os._exit(1)  # RLlib makes another one, which plays what this one was playing
        if isinstance(error, RllmGymError):
            return str(error)
        return f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"

    def _open_tokenizer(self) -> None:
        from transformers import AutoConfig  # takes seconds

        config = self.config
        if getattr(config, "quiet_libraries", True):  # a checkpoint of an earlier version has none
            hold_back()
        model = str(resolve_base_model(config.base_model))
        vocab_size = (
            AutoConfig.from_pretrained(model, trust_remote_code=config.trust_remote_code).get_text_config().vocab_size
        )
        self.chat = ChatTokenizer(model, vocab_size=vocab_size, **config.chat_options)
        self.environments = config.all_environments
        self._token_options = config.token_options
        # Read once: the configuration makes them anew each time.
        self._opponent_specs, self._adapter_hosts = config.opponent_specs, config.adapter_hosts

    def build(self) -> str | None:
        """Make the engines and the loop, if this was not done before; returns what has gone wrong, if anything has.

        Not done by the constructor: it takes seconds, in which the driver can build the learners.
        """
        if self.loop is None and self.error is None:
            with self._errors_kept():
                self._build()
        return self.error

    def _build(self) -> None:
        config = self.config
        torch.set_num_threads(config.num_env_runner_threads)
        for environment in self.environments:  # a wrong env_config shows here, before the engine takes its memory
            if config.engine == "openai" and environment.calls_tools:
                raise ConfigError(
                    f"{environment.name}: format: tools is for engines that sample tokens; got the engine openai. "
                    "Take format: function_call."
                )
            self._make_token_env(environment).close()
        if self.worker_index <= 1:
            for note in self.chat.notes():
                tell(note)
        base_models = find_base_models(config, self._module_ids(), self._opponent_specs, self._space)
        self.engines = make_engines(config, base_models, self._opponent_specs, self._adapter_hosts, self.chat)
        self._weights = EngineWeights(
            self.engines,
            base_models,
            dtype=config.weight_dtype,
            opponents=self._opponent_specs,
            adapter_hosts=self._adapter_hosts,
            trust_remote_code=config.trust_remote_code,
        )
        self._params = self._params_of(config.sampling_params)
        self._notices = NoticeHandler(f"EnvRunner {self.worker_index}")
        watch.logger.addHandler(self._notices)
        self.loop = RolloutLoop(
            self._make_env,
            self.engines,
            module_of=self._module_of,
            on_start=self.episode_callbacks.episode_started if self.episode_callbacks else None,
            num_envs=config.num_envs_per_env_runner,
            num_env_workers=config.num_env_workers,
            params=self._params,
            max_turns=config.max_turns,
            max_model_len=config.max_model_len,
            env_timeout_s=config.env_timeout_s,
            episode_timeout_s=config.episode_timeout_s,
            max_retries=config.max_episode_retries,
        )
        loop = self.loop
        self._progress = watch.ProgressReports(lambda: loop.num_unfinished_episodes, tell_progress)
        self._beats = Beats()
        keep_freed_memory()

    # --- building ---

    def _make_env(self, env_index: int) -> Any:
        env = self._make_token_env(self.environments[env_index])
        if self.episode_callbacks:
            self.episode_callbacks.environment_created(env, env_index)
        return env

    def _make_token_env(self, environment: Any) -> Any:
        return make_token_env(environment, self.chat, self._opponent_specs, **self._token_options)

    def _module_ids(self) -> list[str]:
        return sorted(self.config.policies) if self.config.is_multi_agent else [DEFAULT_MODULE_ID]

    def _module_of(self, agent_id: str, episode: Episode) -> str:
        if (opponent := self._opponent_specs.get(agent_id)) and opponent.kind != "self":
            return opponent.module_of(agent_id)
        return self.config.policy_of(agent_id, episode) if self.config.is_multi_agent else DEFAULT_MODULE_ID

    def _params_of(self, params: SamplingParams) -> dict[str, SamplingParams]:
        """Return how each module samples: some may write longer turns than others."""
        lengths = self.config.algorithm_config_overrides_per_module
        return {
            module_id: replace(
                params, max_new_tokens=lengths.get(module_id, {}).get("max_new_tokens", params.max_new_tokens)
            )
            for module_id in self.engines
        }

    @property
    def _space(self) -> Repeated:
        # At RLlib's edge only: its checkpoints know how to write a Repeated, but not a space of ours.
        vocab_size = self.chat.vocab_size if self.error is None else 1
        return Repeated(Discrete(vocab_size), self.config.max_model_len)

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, tuple[gymnasium.Space, gymnasium.Space]]:
        pair = (self._space, self._space)
        return {INPUT_ENV_SPACES: pair, INPUT_ENV_SINGLE_SPACES: pair, **dict.fromkeys(self._module_ids(), pair)}

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        pass  # what went wrong is in `error`

    def item_ids(self, env_index: int, split: str | None = None) -> Sequence[str] | None:
        """Return the ids of an environment's tasks of `split`, see `rllm_gym.rollout.environments.list_item_ids`."""
        return list_item_ids(self.environments[env_index], split)

    # --- sampling ---

    @override(EnvRunner)
    def sample(
        self,
        *,
        groups: Iterable[TaskGroup] | None = None,
        num_episodes: int | None = None,
        max_episode_steps: Horizon = None,
        explore: bool | None = None,
        **kwargs: Any,
    ) -> list[RLlibEpisode]:
        """Return finished episodes in the order of `groups` and of members; those that failed are left out.

        Args:
            groups: the tasks to play; default: `num_episodes` tasks (1) that the environment draws itself.
            max_episode_steps: the horizon; default: the first one of the configuration.
            explore: False samples greedily.
        """
        if groups is None:
            first = self.num_groups_sampled
            groups = [TaskGroup((self.config.seed or 0, 2**31 + first + k), None, 1) for k in range(num_episodes or 1)]
        if max_episode_steps is None:
            max_episode_steps = {name: s.horizon(0) for name, s in self.config.horizon_schedules.items()}
        horizons = resolve_horizons(max_episode_steps, self.config.environments)
        params = self.config.greedy_params if explore is False else None
        finished = self._play(list(groups), horizons, params)
        return [self.to_rllib(episode) for group in finished for episode in group.episodes]

    def sample_groups(
        self,
        groups: Sequence[TaskGroup],
        *,
        max_episode_steps: Mapping[str, int | None],
        params: SamplingParams | None = None,
        opponents: OpponentWeights = MappingProxyType({}),
        most_failed: float = math.inf,
    ) -> SampleReply:
        """Play groups of episodes for the driver; an exception comes back as text instead of ending the actor.

        Args:
            most_failed: episodes; once more than these have failed, the run ends, and nothing else is played.
            params: how to sample; None is as in training.
            opponents: policy versions and weights of the opponents that have theirs from a run.
        """

        def play() -> list[EpisodeGroup]:
            self._weights.load_opponents(opponents)
            return self._play(list(groups), max_episode_steps, params, most_failed)

        return self._answer(play)

    def sample_ahead(
        self,
        groups: Sequence[TaskGroup],
        *,
        max_episode_steps: Mapping[str, int | None],
        opponents: OpponentWeights,
        wait_s: float,
    ) -> SampleReply:
        """Begin to play groups, and return those that have ended, these or others; what is left is played meanwhile.

        Args:
            wait_s: how long to wait for a group to end, if none has since the last call.
        """

        def begin() -> None:
            self._weights.load_opponents(opponents)
            self._submit(groups, max_episode_steps, None)

        def exchange() -> list[EpisodeGroup]:
            if self._background is None:
                self._background = BackgroundSampling(self._loop, num_threads=self.config.num_env_runner_threads)
            if groups:
                self._background.begin(begin, groups)
            return self._conclude(self._background.take(wait_s))

        return self._answer(exchange)

    def _answer(self, play: Callable[[], list[EpisodeGroup]]) -> SampleReply:
        reply = SampleReply(worker_index=self.worker_index, error=self.build())
        if reply.error is None:
            try:
                for group in play():
                    reply.episodes += group.episodes
                    reply.failed += group.failed
                reply.metrics = self.get_metrics()
            except Exception as error:  # whatever it was, the driver raises it
                reply.error = self._describe(error)
        if self._background is not None:
            reply.groups_left = frozenset(self._background.groups)
        return reply

    def _between_steps(self, function: Callable[[], object]) -> None:
        """Call what touches the engines: at once, or where something is played meanwhile between two of their steps."""
        if self._background is None:
            function()
        else:
            self._background.between_steps(function)

    def _play(
        self,
        groups: list[TaskGroup],
        max_episode_steps: Mapping[str, int | None],
        params: SamplingParams | None,
        most_failed: float = math.inf,
    ) -> list[EpisodeGroup]:
        self.build()
        if self._background is not None and self._background.groups:
            raise RllmGymError("LLMEnvRunner: other groups are being played in the background. Take them first.")
        for engine in self.engines.values():
            engine.reset_prefix_cache()  # every call begins alike, so that a resumed run repeats an uninterrupted one
        self._submit(groups, max_episode_steps, params)
        loop = self._loop
        most_failed += loop.num_dropped
        finished = list(loop.finished_groups(pauses=lambda: loop.num_dropped > most_failed))
        if loop.num_dropped > most_failed:
            finished += loop.abandon()
        order = {group.key: k for k, group in enumerate(groups)}
        return self._conclude(sorted(finished, key=lambda one: order[one.group.key]))

    @property
    def _loop(self) -> RolloutLoop:
        if self.loop is None:
            raise RllmGymError(f"LLMEnvRunner: could not be built. {self.error}")
        return self.loop

    def _submit(
        self, groups: Sequence[TaskGroup], max_episode_steps: Mapping[str, int | None], params: SamplingParams | None
    ) -> None:
        self.num_groups_sampled += len(groups)
        # Those that are not played need none: training says nothing of what is only evaluated.
        horizons = [max_episode_steps.get(environment.name) for environment in self.environments]
        for env_index in {group.env_index for group in groups}:
            environment = self.environments[env_index]
            if max_episode_steps[environment.name] is None and environment.rewrites_history:
                raise ConfigError(
                    f"{environment.name}: an agent whose context is not full, or a program, needs a horizon: nothing "
                    "else bounds its episodes; got none. Set max_episode_steps or scaling_inter."
                )
        params_of = self._params_of(params) if params else self._params
        self._loop.submit(groups, max_episode_steps=horizons, params=params_of)

    def _conclude(self, finished: list[EpisodeGroup]) -> list[EpisodeGroup]:
        episodes = [episode for group in finished for episode in group.episodes]
        for episode in episodes:
            episode.num_role_markers = sum(
                self.chat.count_role_markers(message["content"])
                for stream in episode.streams.values()
                for message in stream.messages
                if message["role"] in ("user", "tool")
            )
            if self.episode_callbacks:
                self.episode_callbacks.episode_ended(episode)
            self.num_env_steps_sampled_lifetime += episode.num_env_steps
        if not self._has_told_of_params and (note := note_of_replaced(episode.info for episode in episodes)):
            self._has_told_of_params = True
            if self.worker_index <= 1:
                tell(note)
        if self.episode_callbacks:
            self.episode_callbacks.sample_ended(episodes)
        return finished

    def to_rllib(self, episode: Episode) -> RLlibEpisode:
        """Return RLlib's form of an episode."""
        is_multi_agent = self.config.is_multi_agent or set(episode.streams) != {AGENT}
        return to_rllib_episode(episode, self._space, is_multi_agent=is_multi_agent)

    def probe(self) -> dict[str, Probe]:
        """Let each policy's engine that gives a model's log-probabilities go on from a fixed prompt, as in training."""
        probes = {}
        with self._errors_kept():  # the driver asks for errors
            for module_id in self._module_ids():
                engine: Any = self.engines[module_id]
                if getattr(engine, "gives_model_logps", False):
                    params = self._params[module_id]
                    probes[module_id] = probe_engine(engine, self.chat, params, self.config.max_model_len)
        return probes

    def take_usage(self) -> dict[str, float]:
        """Return the usage of engines that are paid for since the last call; see their `usage`."""
        taken: dict[str, float] = {}
        for engine in self.engines.values():
            usage: dict[str, float] = getattr(engine, "usage", {})
            for name in list(usage):
                taken[name] = taken.get(name, 0) + usage.pop(name)
        return taken

    @override(EnvRunner)
    def get_metrics(self) -> Any:
        """Return the metrics that callbacks logged; the driver, which sees all episodes, computes theirs."""
        return self.metrics.reduce()

    # --- weights and checkpoints ---

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        if COMPONENT_RL_MODULE not in state:
            return
        version = state.get(WEIGHTS_SEQ_NO, 0)
        sent = state[COMPONENT_RL_MODULE]
        # Not "older than": restoring an earlier checkpoint must load it.
        if version != 0 and version == self.weights_seq_no and not isinstance(sent, WeightTransfer):
            return
        self.build()
        with self._errors_kept(), arriving(sent, self.receiver) as weights:  # the driver asks for errors
            policies = {module_id: weights[module_id] for module_id in self._module_ids()}
            self._between_steps(lambda: self._weights.load_policies(policies, version))
            self.weights_seq_no = version
        if version % GIVE_BACK_EVERY == 0:
            give_back_freed_memory()

    def sleep(self) -> None:
        """Leave the GPU to the learners, with engines that can; what uses an engine next wakes it."""
        with self._errors_kept():
            for engine in self.engines.values():
                if hasattr(engine, "sleep"):
                    engine.sleep()

    def forget_weights(self) -> None:
        """Make the next `set_state` load its weights whatever their number: another run's may have the same."""
        self.weights_seq_no = None

    @override(Checkpointable)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {WEIGHTS_SEQ_NO: self.weights_seq_no or 0}

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        return (), {"config": self.config}

    @override(Checkpointable)
    def get_checkpointable_components(self) -> list:
        return []

    @override(EnvRunner)
    def stop(self) -> None:
        if self._background is not None:
            self._background.stop()
        if self.loop is not None:
            watch.logger.removeHandler(self._notices)
            self._progress.stop()
            self._beats.stop()
            self.loop.close()
        for engine in self.engines.values():
            engine.close()


def probe_engine(engine: Any, chat: ChatTokenizer, params: SamplingParams, max_model_len: int) -> Probe:
    """Return how an engine goes on from a fixed prompt.

    Raises:
        RllmGymError: it cannot sample.
    """
    room = min(PROBE_TOKENS, params.max_new_tokens)
    ids = chat.encode_chat(chat.opening("", PROBE_TEXT), add_generation_prompt=True)[: max_model_len - room]
    try:
        engine.submit(CompletionRequest("probe", ids, (), replace(params, max_new_tokens=room), seed=0))
        while not (done := engine.step()):
            pass
    except EngineDiedError:
        raise
    except Exception as error:  # an engine's own
        raise RllmGymError(
            f"{type(engine).__name__}: an engine must go on from a prompt before the first train step; got "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}. Choose another engine or model."
        ) from error
    return Probe(ids, done[0], getattr(engine, "loading", ""), getattr(engine, "unloaded", ()))
