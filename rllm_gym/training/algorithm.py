"""What all methods share: sampling, updates, weight sync, evaluation, records and checkpoints."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.importing import uncollected

with uncollected():
    from ray.rllib.algorithms.algorithm import Algorithm
import torch
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, FAULT_TOLERANCE_STATS, LEARNER_RESULTS, WEIGHTS_SEQ_NO

from rllm_gym.callbacks.horizon_schedules import Stage
from rllm_gym.callbacks.opponent_pool import Pool
from rllm_gym.data import Recorder
from rllm_gym.errors import RllmGymError
from rllm_gym.learner.batch import SampleData, deal
from rllm_gym.learner.probes import notices_of
from rllm_gym.rollout.environments import Horizon, check_evaluation, horizons_of
from rllm_gym.rollout.notices import tell
from rllm_gym.rollout.policies import OpponentWeights
from rllm_gym.rollout.sample_result import SampleResult
from rllm_gym.training.checkpointed import Checkpointed
from rllm_gym.training.config import LLMConfig
from rllm_gym.training.evaluation import evaluate, evaluate_split, success_by_split
from rllm_gym.training.frozen import frozen_weights
from rllm_gym.training.learner_deaths import answers, learner_deaths
from rllm_gym.training.metrics import episode_metrics, metrics_by_env, metrics_by_role
from rllm_gym.training.no_env_runners import NoEnvRunners
from rllm_gym.training.replay import Shares, await_runners, replay
from rllm_gym.training.task_sampler import DifficultySampler, TaskSampler
from rllm_gym.types import Episode, Sample, SamplingParams, TaskGroup
from rllm_gym.weights.sync import WeightSync

logger = logging.getLogger(__name__)


class LLMAlgorithm(Checkpointed):
    """Base of the methods; a method gives `training_step` and a learner with its loss."""

    config: LLMConfig
    env_runner_group: Any
    frozen_weights = staticmethod(frozen_weights)
    screening_size: int | None = None  # of the groups to play
    _samplers_sleep = False  # while the learners work

    @override(Algorithm)
    @classmethod
    def get_default_config(cls) -> LLMConfig:
        raise NotImplementedError

    # --- set-up ---

    @override(Algorithm)
    def setup(self, config: LLMConfig) -> None:
        check_evaluation(config)
        self.horizons: dict[str, int | None] = {}  # by environment; the ScalingInter callback sets them ...
        self.horizon_stages: dict[str, Stage] = {}  # ... and keeps here what it has seen
        self.evaluation_on_start: dict[str, Any] | None = None
        self.num_groups_killed_runners = 0
        self._recorder: Recorder | None = None
        self._weight_transfer = WeightSync(self) if config.transfers_weights else None
        self._samplers_sleep = config.shares_gpus_by_turns
        self.opponent_pools: dict[str, Pool] = {}  # by agent; the Opponents callback keeps them ...
        self.opponent_weights: OpponentWeights = {}  # ... and says who plays next
        self.environments = config.environments
        self._item_ids: dict[tuple[int, str | None], Sequence[str] | None] = {}
        tell(f"building: the samplers with their engines{', and the learners' if config.trains else ''}")
        super().setup(config)
        if self.env_runner_group is None:
            self.env_runner_group = NoEnvRunners()
        self._check_env_runners("could not be built")
        if not config.trains:
            return
        notices, *_ = self.on_all_learners(notices_of)
        for notice in notices:
            logger.warning(notice)

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

    @property
    def max_episode_steps(self) -> int | None:
        """The present horizon, in turns; of several environments the longest one. None where there is no limit."""
        return max((horizon or 0 for horizon in self.horizons.values()), default=0) or None

    @max_episode_steps.setter
    def max_episode_steps(self, horizon: Horizon) -> None:
        """Set the horizon of the train steps to come: one for all environments, or by their names."""
        self.horizons = horizons_of(horizon, self.environments)

    def item_ids(self, env_index: int = 0, split: str | None = None) -> Sequence[str] | None:
        """Return an environment's task ids, of `split` or of the configured one; None where it numbers none."""
        key = (env_index, split)
        if key not in self._item_ids:
            runner_id = self.runner_ids()[0]
            found = self.env_runner_group.foreach_env_runner(
                lambda runner: runner.item_ids(env_index, split), remote_worker_ids=[runner_id], local_env_runner=False
            )
            if not found:
                name = self.environments[env_index].name
                raise RllmGymError(f"{type(self).__name__}: the environment {name} could not list its tasks.")
            self._item_ids[key] = found[0]
        return self._item_ids[key]

    @functools.cached_property
    def task_sampler(self) -> TaskSampler | DifficultySampler:
        item_ids = [self.item_ids(env_index) for env_index in range(len(self.environments))]
        config, weights = self.config, [spec.weight for spec in self.environments]
        return TaskSampler(
            item_ids, weights, seed=config.seed or 0, group_size=config.group_size, screening_size=self.screening_size
        )

    def runner_ids(self) -> list[int]:
        """Return the EnvRunners that are not known to be dead."""
        return sorted(self.env_runner_group.healthy_worker_ids())

    # --- what train steps are made of ---

    def evaluate_on_start(self) -> None:
        """Evaluate the policy before the first train step, once, where evaluation is on."""
        config = self.config
        if self.training_iteration > 0 or not (config.evaluation_interval and config.evaluation_on_start):
            return
        if self.evaluation_on_start is None:
            tell(f"evaluating before the first train step, on {', '.join(config.evaluation_splits)}")
            self.evaluation_on_start = self.evaluate()
            tell(f"before training: {success_by_split(self.evaluation_on_start)}")

    def update(self, samples: Sequence[Sample], **settings: Any) -> list[Any]:
        """Train on samples, on all learners; returns their results.

        Without a trainable token the learners change nothing but still report every metric.

        Args:
            settings: what the learners' `before_gradient_based_update` gets beside the train step.
        """
        with self._gpus_for_learners():
            results = self.learner_group.update(
                training_data=SampleData(episodes=list(samples)),
                timesteps={"train_step": self.training_iteration, **settings},
            )
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        return results

    def score(self, samples: Sequence[Sample], names: Sequence[str]) -> None:
        """Let the learners compute fields of samples with the weights as they are; writes them there."""
        if not samples or not names:
            return
        shards = self.shards(samples)
        with self._gpus_for_learners():
            results = self.on_all_learners(lambda learner: learner.score(samples, shards, names))
        for scored in results:
            for index, fields in scored:
                for name, value in fields.items():
                    setattr(samples[index], name, value)

    @contextlib.contextmanager
    def _gpus_for_learners(self) -> Iterator[None]:
        """Let samplers sleep where they share GPUs with the learners; what uses their engines next wakes them."""
        if not self._samplers_sleep:
            yield
            return
        self.env_runner_group.foreach_env_runner("sleep", local_env_runner=False)
        yield
        self.on_all_learners(lambda learner: torch.cuda.empty_cache())  # what PyTorch keeps, the samplers need

    def shards(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Return which samples each learner gets."""
        return deal(samples, max(1, self.config.num_learners))

    def on_all_learners(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function on every learner; raises what a learner raised."""
        return answers(self.learner_group.foreach_learner(function, healthy_only=False))

    def sync_weights(self) -> None:
        """Give the learners' weights to the samplers, and wait until they have them."""
        if self._weight_transfer is None:
            self.sync_from(self.learner_group)
        else:
            self._weight_transfer()
        # The sync only queues; what a runner answers next, it answers with the new weights.
        self._check_env_runners("could not load the weights")

    def sync_from(self, source: Any) -> None:
        """Let the samplers take what a source's `get_state` returns, through Ray's object store; it only queues."""
        self.env_runner_group.sync_weights(
            from_worker_or_learner_group=source, timeout_seconds=None, inference_only=True
        )

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

    def _sampler_state(self) -> dict[str, Any]:
        """Return what samplers load: the policies' weights, not copied, and their version."""
        components = f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}"
        return self.learner_group.get_state(components=components, inference_only=True)[COMPONENT_LEARNER]

    def policy_weights(self, policy_id: str) -> tuple[int, Mapping[str, Any]]:
        """Return a policy's version and weights, as they go to the samplers; of LoRA the adapter's."""
        state = self._sampler_state()
        return state.get(WEIGHTS_SEQ_NO, 0), {n: w.copy() for n, w in state[COMPONENT_RL_MODULE][policy_id].items()}

    def _check_env_runners(self, what: str) -> None:
        for error in self.env_runner_group.foreach_env_runner(lambda runner: runner.build(), local_env_runner=False):
            if error is not None:
                raise RllmGymError(f"an EnvRunner {what}: {error}")

    def log_episodes(self, played: list[Episode], failed: list[Episode]) -> dict[str, float]:
        """Log what stands under `env_runners/`, and return it."""
        statistics = episode_metrics(played, failed)
        self.metrics.log_dict({**statistics, "by_role": metrics_by_role(played)}, key=ENV_RUNNER_RESULTS, window=1)
        if len(self.environments) > 1:
            by_env = metrics_by_env(played, failed, [spec.name for spec in self.environments])
            for name, of_env in by_env.items():
                of_env["max_episode_steps"] = self.horizons[name] or 0
            self.metrics.log_dict(by_env, key=(ENV_RUNNER_RESULTS, "by_env"), window=1)
        for name in ("num_env_steps_sampled", "num_episodes"):
            self.metrics.log_value((ENV_RUNNER_RESULTS, f"{name}_lifetime"), statistics[name], reduce="lifetime_sum")
        return statistics

    # --- sampling ---

    def sample(
        self,
        groups: Sequence[TaskGroup],
        *,
        max_episode_steps: Mapping[str, int | None],
        params: SamplingParams | None = None,
    ) -> tuple[list[Episode], list[Episode]]:
        """Play groups on the EnvRunners; returns the episodes in the groups' order, and those that failed.

        A runner that dies is restarted by RLlib, and its groups are played again, one by one; one that kills a second
        runner is missing, see `rllm_gym.training.replay`.

        Args:
            params: how to sample; None is as in training.

        Raises:
            RllmGymError: a runner failed by an error of its own, or none can be restarted.
        """
        runner_ids = self.runner_ids() or await_runners(self)
        shares = {runner_id: list(groups[k :: len(runner_ids)]) for k, runner_id in enumerate(runner_ids)}
        results, lost = self._play_shares(shares, max_episode_steps, params)
        if lost:
            results += self.replay(lost, num_groups=len(groups), max_episode_steps=max_episode_steps, params=params)
        order = {group.key: k for k, group in enumerate(groups)}
        played = [episode for result in results for episode in result.episodes]
        played.sort(key=lambda episode: (order[episode.group.key], episode.member))
        return played, [episode for result in results for episode in result.failed]

    def replay(
        self,
        lost: list[TaskGroup],
        *,
        num_groups: int,
        max_episode_steps: Mapping[str, int | None],
        params: SamplingParams | None = None,
    ) -> list[SampleResult]:
        """Play groups again whose runners have died, of so many; see `rllm_gym.training.replay`."""
        return replay(
            self,
            lost,
            lambda shares: self._play_shares(shares, max_episode_steps, params),
            max_dropped=max(1.0, self.config.max_failed_fraction * num_groups),  # one is never too many
        )

    def _play_shares(
        self, shares: Shares, max_episode_steps: Mapping[str, int | None], params: SamplingParams | None
    ) -> tuple[list[SampleResult], list[TaskGroup]]:
        """Play each runner's groups there; return the results, and the groups of runners that died."""
        opponents = self.opponent_weights
        results = self.ask_runners(
            shares,
            lambda runner, share: runner.sample_groups(
                share, max_episode_steps=max_episode_steps, params=params, opponents=opponents
            ),
        )
        answered = {result.worker_index for result in results}
        return results, [group for runner_id, share in shares.items() if runner_id not in answered for group in share]

    def ask_runners(self, shares: Shares, ask: Callable[[Any, list[TaskGroup]], SampleResult]) -> list[SampleResult]:
        """Ask each runner for what it makes of its groups; those that have died do not answer.

        Raises:
            RllmGymError: a runner failed by an error of its own.
        """
        results = self.env_runner_group.foreach_env_runner(
            [lambda runner, share=share: ask(runner, share) for share in shares.values()],
            remote_worker_ids=list(shares),
            local_env_runner=False,
            timeout_seconds=None,
        )
        for result in results:
            if result.error is not None:
                raise RllmGymError(f"EnvRunner {result.worker_index} failed: {result.error}")
            self.metrics.aggregate([result.metrics], key=ENV_RUNNER_RESULTS)
        return results

    def bring_back_env_runners(self) -> None:
        """Take back into service, and tell the callbacks of, the dead runners that RLlib has restarted."""
        if restored := self.restore_env_runners(self.env_runner_group):
            self._make_on_env_runners_recreated_callbacks(
                config=self.config, env_runner_group=self.env_runner_group, restored_env_runner_indices=restored
            )

    @override(Algorithm)
    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Give restarted runners the present weights; they get the horizon with their next request for episodes."""
        restored = env_runner_group.probe_unhealthy_env_runners()
        if restored:
            logger.warning("EnvRunners %s were restarted.", restored)
            state = self._sampler_state()
            env_runner_group.foreach_env_runner(
                lambda runner: (runner.forget_weights(), runner.set_state(state)),
                remote_worker_ids=restored,
                local_env_runner=False,
                timeout_seconds=None,
            )
        return restored or []

    # --- evaluation ---

    @override(Algorithm)
    def step(self) -> dict[str, Any]:
        with learner_deaths(self):
            result = super().step()
        if "evaluation" in result and self.evaluation_on_start is not None:
            result["evaluation_on_start"] = self.evaluation_on_start
        if FAULT_TOLERANCE_STATS in result:
            result[FAULT_TOLERANCE_STATS]["num_groups_killed_runners"] = self.num_groups_killed_runners
        return result

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Evaluate the present policy on `evaluation_splits`; returns metrics by split, and pooled as `env_runners`."""
        return evaluate(self)

    def evaluate_split(
        self, split: str, num_episodes: int, *, horizon: int | None, seed: int, params: SamplingParams | None = None
    ) -> tuple[dict[str, Any], list[Episode]]:
        """Play a split's tasks, see `rllm_gym.training.evaluation`; returns (metrics, episodes)."""
        return evaluate_split(self, split, num_episodes, horizon=horizon, seed=seed, params=params)

    # --- records ---

    def record(
        self, step: int, episodes: Sequence[Episode], samples: Sequence[Sample] = (), *, split: str | None = None
    ) -> None:
        """Append episodes to the trajectories, with what `samples` hold of their tokens; `split` was evaluated."""
        if not self.config.save_trajectories:
            return
        if self._recorder is None:
            self._recorder = Recorder(self.trajectories_path, self.environments, self.config.kept_episodes)
        self._recorder.append(episodes, samples, train_step=step, split=split)

    @property
    def trajectories_path(self) -> Path:
        """Where this trial's episodes are appended: beside Tune's own files, else in the algorithm's log folder."""
        storage = self._storage
        if storage is not None and storage.storage_filesystem.type_name == "local":
            return Path(storage.trial_fs_path) / "trajectories"
        return Path(self.logdir) / "trajectories"

    @override(Algorithm)
    def cleanup(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        super().cleanup()
