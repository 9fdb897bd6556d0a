"""AgentEvol: the policy explores, keeps what was rewarded, is trained on it beside the base data, and so on."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.functional import evolution_weight
from rllm_gym.algorithms.offline import OfflineAlgorithm, OfflineConfig
from rllm_gym.algorithms.offline_learner import OfflineLearner
from rllm_gym.checkpoints import resumed_alike
from rllm_gym.data import EpisodeRecord, EpochOrder, SampleFile, read_episodes, restore_episode
from rllm_gym.options.methods import AgentEvolOptions
from rllm_gym.rollout.loop import derive_seed
from rllm_gym.types import Episode, Sample, TaskGroup

logger = logging.getLogger(__name__)


class AgentEvolConfig(OfflineConfig, AgentEvolOptions):
    """Configuration of AgentEvol.

    Source: Xi et al. 2024 (AgentGym), arXiv:2406.04151, section 4 and algorithm 1; from their training script
    (examples/agentevol/train_agentevol_multi_task.sh and the filter that it calls): each generation begins with the
    base model, one success per item is kept, and the data accumulate over generations.

    Differs: rewards outside of 0 to 1 are held to it (`keep: reward`).
    """

    num_recorded_samples_per_step = 0  # it samples

    @override(OfflineConfig)
    def get_default_learner_class(self) -> type[AgentEvolLearner]:
        return AgentEvolLearner


class AgentEvolLearner(OfflineLearner):
    """The loss of imitation, whose weights say how much each kept episode counts."""

    _weights_seq_no: int

    @override(OfflineLearner)
    def build(self) -> None:
        super().build()
        self._schedules = {
            module_id: copy.deepcopy(engine.lr_scheduler.state_dict())
            for module_id, engine in self.engines.items()
            if engine.lr_scheduler is not None
        }
        self._first_rates = {
            module_id: [group["lr"] for group in engine.basic_optimizer.param_groups]
            for module_id, engine in self.engines.items()
        }

    def restart(self, weights: dict[str, Any]) -> None:
        """Go back to weights that never were trained, to a fresh optimizer, and to the schedule's beginning."""
        version = self._weights_seq_no
        for module_id, engine in self.engines.items():
            if module_id in self._schedules:
                engine.lr_scheduler.load_state_dict(copy.deepcopy(self._schedules[module_id]))
            for group, rate in zip(engine.basic_optimizer.param_groups, self._first_rates[module_id], strict=True):
                group["lr"] = rate
            for state in engine.basic_optimizer.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()
        self.set_state({COMPONENT_RL_MODULE: weights})
        self._weights_seq_no = version  # or the samplers would take what comes next for what they have


class AgentEvol(OfflineAlgorithm):
    """Explores with the present policy, keeps what was rewarded, and imitates it beside the base data."""

    config_class = AgentEvolConfig
    config: AgentEvolConfig

    @override(OfflineAlgorithm)
    def setup(self, config: AgentEvolConfig) -> None:
        self._first_generation = 0  # of this process
        self._earlier_path: str | None = None
        self.kept: SampleFile | None = None  # of all generations so far
        super().setup(config)
        self._base_weights = self.learner_group.get_weights() if config.restart_from_base and config.trains else None

    @override(OfflineAlgorithm)
    def prepare(self) -> None:
        if self.config.data is not None:
            super().prepare()
        else:
            self.evaluation_items = []

    # --- one generation ---

    @override(OfflineAlgorithm)
    def training_step(self) -> None:
        config, generation = self.config, self.training_iteration
        self.prepare()
        self.evaluate_on_start()
        if generation == 0 and self.samples is not None and config.num_cloning_epochs:
            self._imitate(None, num_epochs=config.num_cloning_epochs, seed=derive_seed(config.seed or 0, generation, 0))
            self.sync_weights()
        start = time.perf_counter()
        played, failed, num_played_before = self._explore(generation)
        explored = time.perf_counter()
        if self.kept is None or not config.accumulates:
            self.kept = SampleFile(self.trajectories_path.parent)
        kept = self.kept
        self._keep(played, kept)
        if self._base_weights is not None:
            weights = self._base_weights
            self.on_all_learners(lambda learner: learner.restart(weights))
        losses, num_tokens = self._imitate(
            kept, num_epochs=config.num_generation_epochs, seed=derive_seed(config.seed or 0, generation, 1)
        )
        learned = time.perf_counter()
        self.sync_weights()
        statistics = self.log_episodes(played, failed)
        self.metrics.log_dict(
            {
                "max_episode_steps": self.max_episode_steps or 0,
                "num_groups": config.groups_per_step,
                "num_episodes_from_trajectories": num_played_before,
                "num_kept_samples": len(kept),
                "num_base_samples": 0 if self.samples is None else len(self.training_items),
                "mean_loss": float(np.mean(losses)),
                "num_updates": len(losses),
                "sampling_s": explored - start,
                "learning_s": learned - explored,
                "num_tokens_trained_per_s": num_tokens / (learned - explored),
                "num_tokens_sampled_per_s": statistics["num_sampled_tokens"] / (explored - start),
            },
            window=1,
        )

    def _explore(self, generation: int) -> tuple[list[Episode], list[Episode], int]:
        """Return a generation's episodes, those that failed, and how many of both had been played before."""
        groups = self.task_sampler.groups(generation, self.config.groups_per_step)
        episodes = self._played_before(generation, groups)
        num_played_before = len(episodes)
        finished = {episode.group.key for episode in episodes}
        groups = [group for group in groups if group.key not in finished]
        for first in range(0, len(groups), self.config.groups_per_request):
            request = groups[first : first + self.config.groups_per_request]
            played, failed = self.sample(request)
            self.record(generation, played + failed)
            self.samplers.check_failures(played, failed)
            episodes += played + failed
        # In a fixed order, so that a generation that was interrupted goes on to train as any other.
        episodes.sort(key=lambda episode: (episode.group.key, episode.member))
        played_episodes = [episode for episode in episodes if episode.error is None]
        return played_episodes, [episode for episode in episodes if episode.error is not None], num_played_before

    def _played_before(self, generation: int, groups: Sequence[TaskGroup]) -> list[Episode]:
        """Return the finished groups of a generation that was interrupted; only its policy is the present one's."""
        if generation != self._first_generation:
            return []
        by_key: dict[tuple[int | str, ...], TaskGroup] = {group.key: group for group in groups}
        found: dict[tuple[int | str, ...], dict[int, list[EpisodeRecord]]] = defaultdict(lambda: defaultdict(list))
        for path in self._trajectory_folders():
            for record in read_episodes(path) if path.is_dir() else ():
                group = by_key.get(record.seed_key)
                if group is not None and record.train_step == generation and self._is_of(record, group):
                    found[group.key][record.member].append(record)
        return [
            restore_episode(records, by_key[key])
            for key, members in found.items()
            if len(members) == by_key[key].size
            for records in members.values()
        ]

    def _trajectory_folders(self) -> list[Path]:
        """Return where the generation's episodes may lie: several resumptions of it may have been killed."""
        mine = self.trajectories_path
        alike = (trial / mine.name for trial in resumed_alike(mine.parent))
        return sorted({mine, Path(self._earlier_path or mine), *alike})

    def _is_of(self, record: EpisodeRecord, group: TaskGroup) -> bool:
        name = self.config.environments[group.env_index].name
        same_item = group.item_id is None or record.item_id == group.item_id
        return same_item and record.max_episode_steps == self.horizons[name]

    def _keep(self, episodes: Sequence[Episode], kept: SampleFile) -> None:
        """Append the samples that carry a weight: of each task the first `keep_per_item`, in the order of play."""
        maker, most = self.sample_maker(), self.config.keep_per_item
        streams = [(e, stream) for e in episodes for stream in e.streams.values() if stream.turns]
        return_N = torch.tensor([stream.total_reward for _, stream in streams], dtype=torch.float64)
        size_N = torch.tensor([stream.reward_size for _, stream in streams], dtype=torch.float64)
        weight_N = evolution_weight(return_N, kind=self.config.keep, threshold=self.config.threshold, size_N=size_N)
        num_kept: Counter[tuple[int, Any, str]] = Counter()
        if self.config.keep == "reward" and (num_left_out := int((weight_N <= 0).sum())):
            logger.warning(
                "keep: reward: %d of %d episodes are left out: their returns are 0 or less.", num_left_out, len(streams)
            )
        for (episode, stream), weight in zip(streams, weight_N.tolist(), strict=True):
            # An environment that numbers no tasks draws them by the group's seed.
            task = episode.group.key if episode.item_id is None else episode.item_id
            item = (episode.group.env_index, task, stream.agent_id)
            if weight <= 0 or (most is not None and num_kept[item] >= most):
                continue
            if samples := maker.of_stream(stream):
                num_kept[item] += 1
            for sample in samples:
                kept.append(dataclasses.replace(sample, weight=sample.weight * np.float32(weight)))

    def _imitate(self, kept: SampleFile | None, *, num_epochs: int, seed: int) -> tuple[list[float], int]:
        """Train on the base data and on kept samples; returns the loss of each update, and how many tokens it read."""
        num_base = 0 if self.samples is None else len(self.training_items)
        total, count = num_base + (0 if kept is None else len(kept)), self.config.samples_per_step
        order, losses, num_tokens = EpochOrder(total, seed=seed), [], 0

        def sample(index: int) -> Sample:
            if index < num_base:
                return self.samples[int(self.training_items[index])]  # type: ignore[index]
            return kept[index - num_base]  # type: ignore[index]

        for update in range(max(1, math.ceil(total * num_epochs / count))):
            first = update * count
            indices = order.indices(first, min(count, total * num_epochs - first))
            trained = [sample(index) for index in indices]
            results = self.update(trained)
            num_tokens += self.num_tokens_trained(trained)
            losses.append(float(results[0][DEFAULT_MODULE_ID]["loss"].peek()))
        return losses, num_tokens

    # --- checkpoints ---

    @override(OfflineAlgorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        mine = {
            "trajectories_path": str(self.trajectories_path),
            "kept": None if self.kept is None else [self.kept[k] for k in range(len(self.kept))],
        }
        return super().get_state(*args, **kwargs) | mine

    @override(OfflineAlgorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._first_generation = state["training_iteration"]
        self._earlier_path = state.get("trajectories_path")
        self.kept = None
        if state.get("kept") is not None:
            self.kept = SampleFile(self.trajectories_path.parent)
            for sample in state["kept"]:
                self.kept.append(sample)
