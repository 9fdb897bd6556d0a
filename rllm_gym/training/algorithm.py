"""The base of all methods: an RLlib Algorithm, from its set-up over the verbs of a train step to its checkpoints."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rllm_gym.errors import RllmGymError
from rllm_gym.importing import uncollected

with uncollected():
    from ray.rllib.algorithms.algorithm import Algorithm
import ray
import torch
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, FAULT_TOLERANCE_STATS, LEARNER_RESULTS, WEIGHTS_SEQ_NO
from ray.tune import PlacementGroupFactory

from rllm_gym.checkpoints import check_checkpoint, write_manifest
from rllm_gym.data import Recorder
from rllm_gym.learner.batch import SampleData, deal, number_lots
from rllm_gym.learner.libraries import import_in_background
from rllm_gym.learner.probes import collect_notices
from rllm_gym.ray_token import hide_token
from rllm_gym.rollout.environments import Horizon, check_evaluation, resolve_horizons
from rllm_gym.rollout.notices import tell
from rllm_gym.signals import outlive_sigterm
from rllm_gym.training.config import LLMConfig
from rllm_gym.training.evaluation import Evaluation, success_by_split
from rllm_gym.training.learners import answers, learner_deaths
from rllm_gym.training.metrics import episode_metrics, metrics_by_env, metrics_by_role
from rllm_gym.training.samplers import Horizons, NoEnvRunners, Samplers
from rllm_gym.training.sync_check import sync_faults
from rllm_gym.training.task_sampler import DifficultySampler, TaskSampler
from rllm_gym.types import Episode, Sample, SamplingParams, TaskGroup
from rllm_gym.weights.sync import WeightSync

logger = logging.getLogger(__name__)


class LLMAlgorithm(Algorithm):
    """Base of the methods; a method gives `training_step` and a learner with its loss."""

    config: LLMConfig
    env_runner_group: Any
    config_class: type[LLMConfig]  # the method's
    screening_size: int | None = None  # of the groups to play
    _samplers_sleep = False  # while the learners work

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config_class" in vars(cls):
            # A function: Ray goes through the classes that a class names, and would go round for ever.
            cls.config_class._find_method = staticmethod(lambda: cls)

    @override(Algorithm)
    @classmethod
    def get_default_config(cls) -> LLMConfig:
        return cls.config_class(algo_class=cls)

    # --- set-up ---

    @override(Algorithm)
    @classmethod
    def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
        """Return RLlib's bundles; a sampler without CPUs asks for a byte of memory, as Ray refuses an empty bundle."""
        request = super().default_resource_request(config)
        bundles = [bundle if any(bundle.values()) else {"memory": 1} for bundle in request.bundles]
        return PlacementGroupFactory(bundles, strategy=request.strategy)

    @override(Algorithm)
    def setup(self, config: LLMConfig) -> None:
        if (
            ray.is_initialized() and ray.get_runtime_context().get_actor_id()
        ):  # a user's own process may start Ray again
            hide_token()
            outlive_sigterm()
        check_evaluation(config)
        self.horizons: dict[str, int | None] = {}  # by environment; the ScalingInter callback sets them
        self.evaluation_on_start: dict[str, Any] | None = None
        self._recorder: Recorder | None = None
        self._samplers_sleep = config.shares_gpus_by_turns
        self.environments = config.environments
        if config.num_learners == 0:
            import_in_background()
        tell(f"building: the samplers with their engines{', and the learners' if config.trains else ''}")
        super().setup(config)
        self.samplers.check("could not be built")
        if not config.trains:
            return
        notices, *_ = self.on_all_learners(collect_notices)
        faults = sync_faults(self)
        if faults and config.check_sync == "stop":
            raise RllmGymError(faults[0])
        for notice in [*notices, *faults]:
            logger.warning(notice)

    @property
    def spaces(self) -> Any:
        """RLlib's spaces, which it asks the EnvRunners for."""
        return self._spaces

    @spaces.setter
    def spaces(self, spaces: Any) -> None:
        """Let the samplers build: RLlib sets this just before it builds the learners, and each takes seconds.

        They are waited for where they share a GPU: an engine measures how much memory is free, and takes it.
        """
        self._spaces = spaces
        if spaces is not None:
            self.samplers.begin_build(wait=not float(self.config.num_gpus_per_env_runner).is_integer())

    @functools.cached_property
    def samplers(self) -> Samplers:
        """The EnvRunners of the run."""
        config = self.config
        if self.env_runner_group is None:
            self.env_runner_group = NoEnvRunners()
        return Samplers(
            self.env_runner_group,
            who=type(self).__name__,
            environments=config.all_environments,
            env_timeout_s=config.env_timeout_s,
            max_failed_fraction=config.max_failed_fraction,
            restore_timeout_s=config.env_runner_restore_timeout_s,
            present_state=self._sampler_state,
            on_metrics=lambda metrics: self.metrics.aggregate([metrics], key=ENV_RUNNER_RESULTS),
            on_restored=lambda restored: self._make_on_env_runners_recreated_callbacks(
                config=config, env_runner_group=self.env_runner_group, restored_env_runner_indices=restored
            ),
        )

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """Plays the tasks of splits."""
        return Evaluation(
            self.config,
            self.samplers,
            lambda episodes, split: self.record(self.training_iteration, episodes, split=split),
        )

    @functools.cached_property
    def task_sampler(self) -> TaskSampler | DifficultySampler:
        """Says which tasks a train step plays."""
        item_ids = [self.samplers.item_ids(env_index) for env_index in range(len(self.environments))]
        config, weights = self.config, [spec.weight for spec in self.environments]
        return TaskSampler(
            item_ids,
            weights,
            seed=config.seed or 0,
            group_size=config.group_size,
            screening_size=self.screening_size,
            invalid_action_penalty=getattr(config, "invalid_action_penalty", 0.0),
        )

    @functools.cached_property
    def _weight_sync(self) -> WeightSync | None:
        """Sends weights past Ray's object store; None where they go through it."""
        if not self.config.transfers_weights:
            return None
        return WeightSync(self.samplers, self.learner_group, self.on_all_learners)

    @override(Algorithm)
    @staticmethod
    def _get_env_id_and_creator(env_specifier: Any, config: LLMConfig) -> tuple[str | None, Any]:
        if isinstance(env_specifier, (list, tuple)):  # several: our EnvRunner makes them, RLlib only wants a name
            return "+".join(spec.name for spec in config.environments), None
        return Algorithm._get_env_id_and_creator(env_specifier, config)

    @override(Algorithm)
    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        return False  # evaluation runs on the training EnvRunners: a second inference engine would double the memory

    # --- the verbs of a train step ---

    @override(Algorithm)
    def step(self) -> dict[str, Any]:
        with self._learner_deaths():
            result = super().step()
        if "evaluation" in result and self.evaluation_on_start is not None:
            result["evaluation_on_start"] = self.evaluation_on_start
        if FAULT_TOLERANCE_STATS in result:
            result[FAULT_TOLERANCE_STATS]["num_groups_killed_runners"] = self.samplers.num_groups_killed_runners
        return result

    @property
    def max_episode_steps(self) -> int | None:
        """The present horizon, in turns; of several environments the longest one. None where there is no limit."""
        return max((horizon or 0 for horizon in self.horizons.values()), default=0) or None

    @max_episode_steps.setter
    def max_episode_steps(self, horizon: Horizon) -> None:
        """Set the horizon of the train steps to come: one for all environments, or by their names."""
        self.horizons = resolve_horizons(horizon, self.environments)

    def sample(
        self,
        groups: Sequence[TaskGroup],
        *,
        max_episode_steps: Horizons | None = None,
        params: SamplingParams | None = None,
        most_failed: float | None = None,
    ) -> tuple[list[Episode], list[Episode]]:
        """Play groups on the EnvRunners; return the episodes in the groups' order, and those that failed.

        Args:
            max_episode_steps: the horizon by the environment's name; None is the present one.
            params: how to sample; None is as in training.
            most_failed: see `Samplers.sample`.
        """
        horizons = self.horizons if max_episode_steps is None else max_episode_steps
        return self.samplers.sample(groups, horizons=horizons, params=params, most_failed=most_failed)

    def score(self, samples: Sequence[Sample], names: Sequence[str]) -> None:
        """Let the learners compute fields of samples with the weights as they are; writes them there."""
        if not samples or not names:
            return
        number_lots(samples, self.config.num_minibatches)
        shards = self.shards(samples)
        with self._gpus_for_learners():
            results = self.on_all_learners(lambda learner: learner.score(samples, shards, names))
        for scored in results:
            for index, fields in scored:
                for name, value in fields.items():
                    setattr(samples[index], name, value)

    def update(self, samples: Sequence[Sample], **settings: Any) -> list[Any]:
        """Train on samples, on all learners; return their results.

        Without a trainable token the learners change nothing but still report every metric.

        Args:
            settings: what the learners' `before_gradient_based_update` gets beside the train step.
        """
        number_lots(samples, self.config.num_minibatches)
        with self._gpus_for_learners():
            results = self.learner_group.update(
                training_data=SampleData(episodes=list(samples)),
                timesteps={"train_step": self.training_iteration, **settings},
            )
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        return results

    @property
    def only_playing(self) -> set[str]:
        """The modules that play without learning: policies that are not trained, and opponents."""
        return {policy_id for policy_id in self.config.policies if not self.config.is_trained(policy_id)}

    def num_tokens_trained(self, samples: Sequence[Sample]) -> int:
        """Return how many tokens an update on these samples reads, prompts included, each once in an epoch."""
        return sum(map(len, samples)) * self.config.num_epochs

    def sync_weights(self) -> None:
        """Give the learners' weights to the samplers, and wait until they have them."""
        if self._weight_sync is None:
            self.samplers.load_from(self.learner_group)
        else:
            self._weight_sync()
        # The sync only queues; what a runner answers next, it answers with the new weights.
        self.samplers.check("could not load the weights")

    def record(
        self, step: int, episodes: Sequence[Episode], samples: Sequence[Sample] = (), *, split: str | None = None
    ) -> None:
        """Append episodes to the trajectories, with what `samples` hold of their tokens; `split` was evaluated."""
        if not self.config.save_trajectories:
            return
        if self._recorder is None:
            environments = self.config.all_environments
            self._recorder = Recorder(self.trajectories_path, environments, self.config.kept_episodes)
        self._recorder.append(episodes, samples, train_step=step, split=split)

    @property
    def trajectories_path(self) -> Path:
        """Where this trial's episodes are appended: beside Tune's own files, else in the algorithm's log folder."""
        storage = self._storage
        if storage is not None and storage.storage_filesystem.type_name == "local":
            return Path(storage.trial_fs_path) / "trajectories"
        return Path(self.logdir) / "trajectories"

    def log_episodes(self, played: list[Episode], failed: list[Episode]) -> dict[str, float]:
        """Log what stands under `env_runners/`, and return it."""
        only_playing = self.only_playing
        statistics = episode_metrics(played, failed, only_playing=only_playing)
        self.metrics.log_dict({**statistics, "by_role": metrics_by_role(played)}, key=ENV_RUNNER_RESULTS, window=1)
        if len(self.environments) > 1:
            names = {k: spec.name for k, spec in enumerate(self.environments)}
            by_env = metrics_by_env(played, failed, names, only_playing=only_playing)
            for name, of_env in by_env.items():
                of_env["max_episode_steps"] = self.horizons[name] or 0
            self.metrics.log_dict(by_env, key=(ENV_RUNNER_RESULTS, "by_env"), window=1)
        for name in ("num_env_steps_sampled", "num_episodes"):
            self.metrics.log_value((ENV_RUNNER_RESULTS, f"{name}_lifetime"), statistics[name], reduce="lifetime_sum")
        return statistics

    # --- learners ---

    def shards(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Return which samples each learner gets."""
        return deal(samples, max(1, self.config.num_learners))

    def on_all_learners(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function on every learner; raises what a learner raised."""
        return answers(self.learner_group.foreach_learner(function, healthy_only=False))

    def _learner_deaths(self) -> contextlib.AbstractContextManager[None]:
        return learner_deaths(self.learner_group, who=type(self).__name__, num_learners=self.config.num_learners)

    @contextlib.contextmanager
    def _gpus_for_learners(self) -> Iterator[None]:
        """Let samplers sleep where they share GPUs with the learners; what uses their engines next wakes them."""
        if not self._samplers_sleep:
            yield
            return
        self.samplers.sleep()
        yield
        self.on_all_learners(lambda learner: torch.cuda.empty_cache())  # what PyTorch keeps, the samplers need

    @override(Algorithm)
    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> Any:
        """Return a policy's RLModule, None where there is none of this id; of remote learners a copy."""
        if self.config.num_learners == 0:
            return self.on_all_learners(lambda learner: learner.module.get(module_id))[0]
        if module_id not in (weights := self.learner_group.get_weights()):
            return None
        spec = self.config.get_multi_rl_module_spec(spaces=self.spaces).rl_module_specs[module_id]
        module = spec.build()
        module.set_state(weights[module_id])
        return module

    def policy_weights(self, policy_id: str) -> tuple[int, Mapping[str, Any]]:
        """Return a policy's version and weights, as they go to the samplers; of LoRA the adapter's."""
        state = self._sampler_state()
        return state.get(WEIGHTS_SEQ_NO, 0), {n: w.copy() for n, w in state[COMPONENT_RL_MODULE][policy_id].items()}

    def _sampler_state(self) -> dict[str, Any]:
        """Return the weights for the samplers: the policies', not copied, and their version."""
        components = f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}"
        return self.learner_group.get_state(components=components, inference_only=True)[COMPONENT_LEARNER]

    @override(Algorithm)
    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        return self.samplers.restore()

    # --- evaluation ---

    def evaluate_on_start(self) -> None:
        """Evaluate the policy before the first train step, once, where evaluation is on."""
        config = self.config
        if self.training_iteration > 0 or not (config.evaluation_interval and config.evaluation_on_start):
            return
        if self.evaluation_on_start is None:
            names = [spec.name for spec in config.evaluation_environments if spec not in self.environments]
            of_others = f" of {', '.join(names)}" if names else ""
            tell(f"evaluating before the first train step, on {', '.join(config.evaluation_splits)}{of_others}")
            self.evaluation_on_start = self.evaluate()
            tell(f"before training: {success_by_split(self.evaluation_on_start)}")

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Evaluate the present policy on `evaluation_splits`; return metrics by split, and pooled as `env_runners`."""
        self.call_back("on_evaluate_start")
        if function := self.config.custom_evaluation_function:
            results, *_ = function(self, self.env_runner_group)  # with the numbers of steps, as RLlib has it
        else:
            results = self.evaluation.all_splits()
        self.call_back("on_evaluate_end", evaluation_metrics=results)
        return results

    def call_back(self, name: str, **arguments: Any) -> None:
        """Make one of RLlib's callbacks around an evaluation."""
        make_callback(
            name,
            callbacks_objects=self.callbacks,
            callbacks_functions=getattr(self.config, f"callbacks_{name}"),
            kwargs=dict(algorithm=self, metrics_logger=self.metrics, **arguments),
        )

    # --- checkpoints: RLlib's files, and DeepSpeed's beside them, written by all learners together ---

    @property
    def protocol(self) -> str:
        """Prompt protocol of the training data: "agentgym" where an environment or the data has it, else "native"."""
        protocols = {spec.env_config.get("protocol") for spec in self.config.environments} if self.config.env else set()
        return "agentgym" if "agentgym" in protocols else "native"

    @override(Algorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().get_state(*args, **kwargs)
        state["evaluation_on_start"] = self.evaluation_on_start
        # RLlib's callbacks have a hook at loading, and none at saving.
        state["callbacks"] = {type(of).__name__: of.get_state() for of in self.callbacks if hasattr(of, "get_state")}
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.evaluation_on_start = state.get("evaluation_on_start")
        for callback in self.callbacks:
            if (saved := state.get("callbacks", {}).get(type(callback).__name__)) is not None:
                callback.set_state(saved)

    @override(Checkpointable)
    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        with self._learner_deaths():
            path = super().save_to_path(path, **kwargs)
            # RLlib asks learner 0 alone to save; DeepSpeed's files are a collective work.
            self.on_all_learners(lambda learner: learner.save_engines(f"{path}/deepspeed"))
        # Last: it says that all is there.
        write_manifest(Path(path), training_iteration=self.training_iteration, protocol=self.protocol)
        return path

    @override(Algorithm)
    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        check_checkpoint(Path(path))
        # A checkpoint of another run may carry the number of the weights that the runners hold.
        self.samplers.forget_weights()
        super().restore_from_path(path, *args, **kwargs)
        self._load_engines(Path(path))
        make_callback(
            "on_checkpoint_loaded",
            callbacks_objects=self.callbacks,
            callbacks_functions=self.config.callbacks_on_checkpoint_loaded,
            kwargs={"algorithm": self},
        )

    def _load_engines(self, path: Path) -> None:
        """Load the optimizers' states; those that other learners or another ZeRO stage wrote are converted first."""
        folder = str(path / "deepspeed")
        found = self.on_all_learners(lambda learner: learner.engines_to_convert(folder))
        changed = found[0] if found else {}  # no learner is there where the policy only plays
        if not changed:
            self.on_all_learners(lambda learner: learner.load_engines(folder))
            return
        with TemporaryDirectory(dir=path, prefix=".converted-") as converted:  # where all learners see it
            self.on_all_learners(lambda learner: learner.convert_engines(list(changed), folder, converted))
            self.on_all_learners(lambda learner: learner.load_engines(folder, converted))
        for module_id, (before, now) in changed.items():
            logger.warning("%s: the optimizer's state of %s is converted, from %s to %s", path, module_id, before, now)

    @override(Algorithm)
    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.restore_from_path(checkpoint_dir)  # fires on_checkpoint_loaded, as from_checkpoint() does

    @override(Algorithm)
    def cleanup(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        super().cleanup()
