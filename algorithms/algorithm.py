"""What all methods share: the train step (sample, evaluate, update, sync), evaluation, records and checkpoints."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS

from rllm_gym.algorithms.config import LLMConfig
from rllm_gym.algorithms.episode_recorder import EpisodeRecorder
from rllm_gym.algorithms.metrics import episode_metrics, metrics_by_env
from rllm_gym.algorithms.no_env_runners import NoEnvRunners
from rllm_gym.algorithms.task_sampler import TaskSampler
from rllm_gym.callbacks.scaling_inter import Stage
from rllm_gym.checkpoints import write_manifest
from rllm_gym.errors import RllmGymError, TooManyFailedEpisodesError
from rllm_gym.rollout.env_runner import RLlibEpisode, SampleResult
from rllm_gym.rollout.environments import Horizon, check_evaluation, horizon_of
from rllm_gym.types import Episode, TaskGroup

logger = logging.getLogger(__name__)

EVALUATION_STEP = 2**31  # stands in a group's key for the train step, so that evaluation draws numbers of its own


class LLMAlgorithm(Algorithm):
    """Base of the methods; a method gives `training_step` and a learner with its loss."""

    config: LLMConfig
    env_runner_group: Any

    @classmethod
    def get_default_config(cls) -> LLMConfig:
        raise NotImplementedError

    # --- set-up ---

    def setup(self, config: LLMConfig) -> None:
        check_evaluation(config)
        self.max_episode_steps: Horizon = None  # the ScalingInter callback sets it ...
        self.horizon_stages: dict[str, Stage] = {}  # ... and keeps here what it has seen
        self.evaluation_on_start: dict[str, Any] | None = None
        self.recorder = EpisodeRecorder(self.trajectories_path, config.environments)
        self._item_ids: dict[tuple[int, str | None], Sequence[str] | None] = {}
        super().setup(config)
        if self.env_runner_group is None:
            self.env_runner_group = NoEnvRunners()
        for error in self.env_runner_group.foreach_env_runner(lambda runner: runner.error, local_env_runner=False):
            if error is not None:
                raise RllmGymError(f"an EnvRunner could not be built: {error}")

    @staticmethod
    def _get_env_id_and_creator(env_specifier: Any, config: LLMConfig) -> tuple[str | None, Any]:
        if isinstance(env_specifier, (list, tuple)):  # several: our EnvRunner makes them, RLlib only wants a name
            return "+".join(spec.name for spec in config.environments), None
        return Algorithm._get_env_id_and_creator(env_specifier, config)

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        return False  # evaluation runs on the training EnvRunners: a second inference engine would double the memory

    @property
    def policy_version(self) -> int:
        """Number of weight syncs to the samplers."""
        runners = self.env_runner_group.foreach_env_runner("get_state", local_env_runner=False)
        return max((state["weights_seq_no"] for state in runners), default=0)

    def item_ids(self, env_index: int = 0, split: str | None = None) -> Sequence[str] | None:
        """Return an environment's task ids, of `split` or of the configured one; None where it numbers none."""
        key = (env_index, split)
        if key not in self._item_ids:
            found = self.env_runner_group.foreach_env_runner(
                lambda runner: runner.item_ids(env_index, split),
                remote_worker_ids=[self._runner_ids()[0]],
                local_env_runner=False,
            )
            if not found:
                name = self.config.environments[env_index].name
                raise RllmGymError(f"{type(self).__name__}: the environment {name} could not list its tasks.")
            self._item_ids[key] = found[0]
        return self._item_ids[key]

    @functools.cached_property
    def task_sampler(self) -> TaskSampler:
        environments = self.config.environments
        return TaskSampler(
            [self.item_ids(env_index) for env_index in range(len(environments))],
            [spec.weight for spec in environments],
            seed=self.config.seed or 0,
            group_size=self.config.group_size,
        )

    @property
    def longest_horizon(self) -> int | None:
        """The present horizon; of several environments the longest one."""
        horizon = self.max_episode_steps
        if not isinstance(horizon, Mapping):
            return horizon
        return max((of_env for of_env in horizon.values() if of_env is not None), default=None)

    def _runner_ids(self) -> list[int]:
        return sorted(self.env_runner_group.healthy_worker_ids())

    # --- what train steps are made of ---

    def evaluate_on_start(self) -> None:
        """Evaluate the policy before the first train step, once, where evaluation is on."""
        config = self.config
        if self.training_iteration > 0 or not (config.evaluation_interval and config.evaluation_on_start):
            return
        if self.evaluation_on_start is None:
            self.evaluation_on_start = self.evaluate()

    def update(self, data: TrainingData) -> None:
        """Train on the streams that have an advantage, or on samples, on all learners.

        Without a trainable token the learners change nothing but still report every metric.
        """
        results = self.learner_group.update(training_data=data, timesteps={})
        self.metrics.aggregate(results, key=LEARNER_RESULTS)

    def sync_weights(self) -> None:
        """Give the learners' weights to the samplers."""
        self.env_runner_group.sync_weights(
            from_worker_or_learner_group=self.learner_group, timeout_seconds=None, inference_only=True
        )

    def log_episodes(self, played: list[Episode], failed: list[Episode]) -> dict[str, float]:
        """Log what stands under `env_runners/`, and return it."""
        statistics = episode_metrics(played, failed)
        self.metrics.log_dict(statistics, key=ENV_RUNNER_RESULTS, window=1)
        environments = self.config.environments
        if len(environments) > 1:
            by_env = metrics_by_env(played, failed, [spec.name for spec in environments])
            for name, of_env in by_env.items():
                of_env["max_episode_steps"] = horizon_of(self.max_episode_steps, name) or 0
            self.metrics.log_dict(by_env, key=(ENV_RUNNER_RESULTS, "by_env"), window=1)
        for name in ("num_env_steps_sampled", "num_episodes"):
            self.metrics.log_value((ENV_RUNNER_RESULTS, f"{name}_lifetime"), statistics[name], reduce="lifetime_sum")
        return statistics

    # --- sampling ---

    def sample(
        self, groups: Sequence[TaskGroup], *, max_episode_steps: Horizon, greedy: bool = False
    ) -> tuple[list[RLlibEpisode], list[Episode]]:
        """Play groups on the EnvRunners; returns the episodes in the groups' order, and those that failed.

        A runner that dies is restarted by RLlib, and its share is played again.

        Raises:
            RllmGymError: a runner failed by an error of its own, or none can be restarted.
            TooManyFailedEpisodesError: more than `max_failed_fraction` of the episodes failed.
        """
        episodes: dict[int, RLlibEpisode] = {}
        failed: list[Episode] = []
        left = list(groups)
        for attempt in range(1 + self.config.num_consecutive_env_runner_failures_tolerance):
            if attempt:
                self._await_runner()
            results = self._sample_once(left, max_episode_steps, greedy)
            done = set()
            for result, share in results:
                if result.error is not None:
                    raise RllmGymError(f"EnvRunner {result.worker_index} failed: {result.error}")
                done |= {group.key for group in share}
                self.metrics.aggregate([result.metrics], key=ENV_RUNNER_RESULTS)
                failed += result.failed
                for episode in result.episodes:
                    episodes[len(episodes)] = episode
            left = [group for group in left if group.key not in done]
            if not left:
                break
            logger.error("an EnvRunner died; %d of %d groups are played again once it is back.", len(left), len(groups))
        if left:
            raise RllmGymError(
                f"{type(self).__name__}: EnvRunners died in every attempt to sample; their errors are above."
            )
        self._check_failures(len(episodes), failed)
        order = {group.key: k for k, group in enumerate(groups)}
        in_order = sorted(
            episodes.values(), key=lambda e: (order[e.custom_data["episode"].group.key], e.custom_data["member"])
        )
        return in_order, failed

    def _sample_once(
        self, groups: list[TaskGroup], max_episode_steps: Horizon, greedy: bool
    ) -> list[tuple[SampleResult, list[TaskGroup]]]:
        runner_ids = self._runner_ids()
        shares = {runner_id: groups[k :: len(runner_ids)] for k, runner_id in enumerate(runner_ids)}
        results = self.env_runner_group.foreach_env_runner(
            [
                lambda runner, share=share: runner.sample_groups(
                    share, max_episode_steps=max_episode_steps, greedy=greedy
                )
                for share in shares.values()
            ],
            remote_worker_ids=list(shares),
            local_env_runner=False,
            timeout_seconds=None,
        )
        return [(result, shares[result.worker_index]) for result in results]

    def _await_runner(self) -> None:
        """Wait until RLlib has brought back at least one dead runner, or one is still alive."""
        deadline = time.monotonic() + self.config.env_runner_restore_timeout_s
        while True:
            restored = self.restore_env_runners(self.env_runner_group)
            if restored:
                self._make_on_env_runners_recreated_callbacks(
                    config=self.config, env_runner_group=self.env_runner_group, restored_env_runner_indices=restored
                )
            if self._runner_ids():
                return
            if time.monotonic() > deadline:
                raise RllmGymError(
                    f"{type(self).__name__}: no EnvRunner came back in time; env_runner_restore_timeout_s is "
                    f"{self.config.env_runner_restore_timeout_s}. Its errors are above."
                )
            time.sleep(1.0)

    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Give restarted runners the present weights; they get the horizon with their next request for episodes."""
        restored = env_runner_group.probe_unhealthy_env_runners()
        if restored:
            logger.warning("EnvRunners %s were restarted.", restored)
            state = self.learner_group.get_state(
                components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
            )[COMPONENT_LEARNER]
            env_runner_group.foreach_env_runner(
                lambda runner: (runner.forget_weights(), runner.set_state(state)),
                remote_worker_ids=restored,
                local_env_runner=False,
                timeout_seconds=None,
            )
        return restored or []

    def _check_failures(self, num_played: int, failed: list[Episode]) -> None:
        for episode in failed:
            logger.warning("dropped an episode of %s: %s", episode.item_id, episode.error)
        if failed and len(failed) > self.config.max_failed_fraction * (num_played + len(failed)):
            raise TooManyFailedEpisodesError(
                f"{type(self).__name__}: {len(failed)} of {num_played + len(failed)} episodes failed, more than "
                f"max_failed_fraction {self.config.max_failed_fraction}. The first error: {failed[0].error}"
            )

    # --- evaluation ---

    def step(self) -> dict[str, Any]:
        result = super().step()
        if "evaluation" in result and self.evaluation_on_start is not None:
            result["evaluation_on_start"] = self.evaluation_on_start
        return result

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Evaluate the present policy on `evaluation_splits`; returns metrics by split, and pooled as `env_runners`."""
        self._make_evaluation_callback("on_evaluate_start")
        everything: list[Episode] = []
        results: dict[str, Any] = {}
        for split in self.config.evaluation_splits:
            results[split], episodes = self.evaluate_split(
                split,
                self.config.evaluation_duration,
                horizon=self.config.evaluation_horizon,
                seed=self.config.evaluation_seed,
            )
            everything += episodes
        results[ENV_RUNNER_RESULTS] = episode_metrics(everything, [])
        self._make_evaluation_callback("on_evaluate_end", evaluation_metrics=results)
        return results

    def evaluate_split(
        self, split: str, num_episodes: int, *, horizon: int | None, seed: int, greedy: bool = False
    ) -> tuple[dict[str, Any], list[Episode]]:
        """Play `num_episodes` episodes over a split's tasks, as evenly as can be; all seeds come from `seed`.

        Of several environments each plays as many.

        Args:
            horizon: in turns; None is the last stage's horizon.

        Returns:
            (metrics, episodes); metrics are those of `env_runners/` and `horizon`.
        """
        names = [spec.name for spec in self.config.environments]
        horizons = {
            name: horizon if horizon is not None else schedule.last
            for name, schedule in self.config.horizon_schedules.items()
        }
        groups: list[TaskGroup] = []
        for env_index in range(len(names)):
            items: Sequence[str | None] = self.item_ids(env_index, split) or [None]
            order = np.random.default_rng(seed).permutation(len(items))
            groups += [
                TaskGroup((seed, EVALUATION_STEP, len(groups) + k), items[order[k % len(order)]], 1, env_index)
                for k in range(num_episodes)
            ]
        played, failed = self.sample(groups, max_episode_steps=horizons, greedy=greedy)
        episodes = [episode.custom_data.pop("episode") for episode in played]
        metrics: dict[str, Any] = episode_metrics(episodes, failed)
        metrics["horizon"] = max(of_env or 0 for of_env in horizons.values())
        if len(names) > 1:
            metrics["by_env"] = metrics_by_env(episodes, failed, names)
        return metrics, episodes

    def _make_evaluation_callback(self, name: str, **kwargs: Any) -> None:
        make_callback(
            name,
            callbacks_objects=self.callbacks,
            callbacks_functions=getattr(self.config, f"callbacks_{name}"),
            kwargs=dict(algorithm=self, metrics_logger=self.metrics, **kwargs),
        )

    # --- records ---

    def store(self, step: int, episodes: list[Episode], rllib_episodes: list[RLlibEpisode]) -> None:
        """Append episodes to the trajectory store; `rllib_episodes` are those of them that carry advantages."""
        if self.config.save_trajectories:
            self.recorder.append(episodes, rllib_episodes, train_step=step, max_episode_steps=self.max_episode_steps)

    @property
    def trajectories_path(self) -> Path:
        """Where this trial's episodes are appended: beside Tune's own files, else in the algorithm's log folder."""
        storage = self._storage
        if storage is not None and storage.storage_filesystem.type_name == "local":
            return Path(storage.trial_fs_path) / "trajectories"
        return Path(self.logdir) / "trajectories"

    # --- checkpoints: RLlib's files, and the DeepSpeed engines' beside them, written by all learners together ---

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().get_state(*args, **kwargs)
        state["evaluation_on_start"] = self.evaluation_on_start
        state["horizon_stages"] = {name: asdict(stage) for name, stage in self.horizon_stages.items()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.evaluation_on_start = state.get("evaluation_on_start")
        self.horizon_stages = {name: Stage(**stage) for name, stage in state.get("horizon_stages", {}).items()}

    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        path = super().save_to_path(path, **kwargs)
        self._on_all_learners("save_engines", path)
        write_manifest(Path(path), training_iteration=self.training_iteration)  # last: it says that all is there
        return path

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        # A checkpoint of another run may carry the number of the weights that the runners hold.
        self.env_runner_group.foreach_env_runner("forget_weights", local_env_runner=False)
        super().restore_from_path(path, *args, **kwargs)
        self._on_all_learners("load_engines", path)
        make_callback(
            "on_checkpoint_loaded",
            callbacks_objects=self.callbacks,
            callbacks_functions=self.config.callbacks_on_checkpoint_loaded,
            kwargs={"algorithm": self},
        )

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.restore_from_path(checkpoint_dir)  # fires on_checkpoint_loaded, as from_checkpoint() does

    def _on_all_learners(self, method: str, path: Any) -> None:
        # RLlib asks learner 0 alone to save; DeepSpeed's files are a collective work.
        folder = str(Path(path) / "deepspeed")
        for result in self.learner_group.foreach_learner(lambda learner: getattr(learner, method)(folder)):
            result.get()  # raises what a learner raised

    def cleanup(self) -> None:
        self.recorder.close()
        super().cleanup()
