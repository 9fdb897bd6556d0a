"""The policy-gradient methods on the driver: their configuration, and the train step."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS

from rllm_gym.algorithms.functional import adaptive_kl_coeff, has_spread, kl_shaped_reward
from rllm_gym.algorithms.policy_learner import PolicyLearner
from rllm_gym.errors import RllmGymError
from rllm_gym.options.methods import PolicyGradientOptions
from rllm_gym.training.advantage_rows import AdvantageRows, Advantages
from rllm_gym.training.algorithm import LLMAlgorithm
from rllm_gym.training.config import LLMConfig
from rllm_gym.training.samples import StepSamples, samples_from_episode
from rllm_gym.training.samples_ahead import SamplesAhead
from rllm_gym.training.task_difficulty import TaskDifficulty
from rllm_gym.training.task_sampler import DifficultySampler, TaskSampler
from rllm_gym.types import Episode, Sample, TaskGroup

logger = logging.getLogger(__name__)


class PolicyGradientConfig(LLMConfig, PolicyGradientOptions):
    """Options of every method that reinforces the tokens it sampled."""

    @override(LLMConfig)
    def get_default_learner_class(self) -> type[PolicyLearner]:
        return PolicyLearner

    @property
    def max_tokens_to_bootstrap(self) -> int | None:
        """The tokens of a truncated episode that a critic reads to value its end; None where nothing bootstraps."""
        return None

    @property
    def num_loss_tokens(self) -> int:
        """The divisor of `loss_average: constant`."""
        if self.loss_constant is not None:
            return self.loss_constant
        horizons = [horizon for schedule in self.horizon_schedules.values() for horizon in schedule.horizons]
        longest = max((self.max_model_len if horizon is None else horizon) for horizon in horizons)
        most = longest * self.max_new_tokens
        return most if any(spec.rewrites_history for spec in self.environments) else min(self.max_model_len, most)

    @property
    def scores_for_advantage(self) -> list[str]:
        """The fields of samples that the learners compute before the advantages."""
        if not self.is_kl_in_reward:
            return []
        return ["ref_logp", "trainer_logp"] if self.old_logp == "recompute" else ["ref_logp"]

    @property
    def scores_for_loss(self) -> list[str]:
        """Those that only the loss needs: computed for what is trained on."""
        # In the only optimizer step the weights still are those before the update.
        has_later_step = self.num_epochs * self.num_minibatches > 1
        wanted = ["ref_logp"] * (self.kl_coeff > 0)
        is_needed = self.old_logp == "recompute" and has_later_step
        wanted += ["trainer_logp"] * (is_needed or self.save_trainer_logp)
        return [name for name in wanted if name not in self.scores_for_advantage]


class PolicyGradient(LLMAlgorithm):
    """Samples episodes and reinforces their tokens; a method gives `advantage`."""

    config: PolicyGradientConfig

    @property
    @override(LLMAlgorithm)
    def only_playing(self) -> set[str]:
        return super().only_playing | {of.module_of(agent) for agent, of in self.config.opponent_specs.items()}

    def advantage(self, rows: AdvantageRows) -> torch.Tensor | Advantages:
        """Return how much better each row did than expected: one number per row [N], or one per token [N, K].

        Args:
            rows: the samples of one module in this train step, or in one of its rounds of refilling.
        """
        raise NotImplementedError

    @override(LLMAlgorithm)
    def setup(self, config: PolicyGradientConfig) -> None:
        self.num_empty_steps = 0
        self.kl_coeff: dict[str, float] = {}  # by module, once it has followed its target
        self._scores_for_advantage, self._scores_for_loss = config.scores_for_advantage, config.scores_for_loss
        self._max_tokens_to_bootstrap, self.screening_size = config.max_tokens_to_bootstrap, config.screening_size
        self._only_playing = self.only_playing
        super().setup(config)
        self.ahead: SamplesAhead | None = None
        if config.staleness:
            self.ahead = SamplesAhead(
                self.samplers,
                config.staleness,
                num_groups=config.groups_per_step,
                horizons=lambda: self.horizons,
            )
        self.task_difficulty: TaskDifficulty | None = None
        if config.task_sampling == "difficulty":
            names = [spec.name for spec in self.environments]
            self.task_difficulty = TaskDifficulty(names, min_probability=config.min_probability)
            uniform = self.task_sampler
            assert isinstance(uniform, TaskSampler)
            self.task_sampler = DifficultySampler(uniform, self.task_difficulty, lambda: self.horizons)

    @override(Algorithm)
    def training_step(self) -> None:
        self.evaluate_on_start()
        step, begun = self.training_iteration, time.perf_counter()
        self.sampled = StepSamples()
        try:
            self._sample_groups(step)
            sampled_at = time.perf_counter()
            self.score(self.sampled.trained, self._scores_for_loss)
        finally:
            # Whatever has failed, what was sampled is not lost.
            self.record(step, self.sampled.played + self.sampled.failed, self.sampled.samples)
        if self.task_difficulty is not None:
            self.task_difficulty.record(step, self.sampled.played)
        trained = self.sampled.trained
        results = self.update(trained, kl_coeff=self.kl_coeff)
        learned_at = time.perf_counter()
        self._follow_kl_target(results)
        if trained:
            self.sync_weights()
        self._log(
            sampling_s=sampled_at - begun,
            learning_s=learned_at - sampled_at,
            sync_s=time.perf_counter() - learned_at,
        )
        self._count_empty_steps(not self.sampled.useful_groups, step)

    def _sample_groups(self, step: int) -> None:
        """Fill `self.sampled`, with fresh tasks for the groups that are dropped."""
        config = self.config
        if self.ahead is not None and not self.ahead.has_begun:
            for behind in range(config.staleness):
                self.ahead.submit(self.task_sampler.groups(step + behind, config.groups_per_step), step)
        groups = self.task_sampler.groups(step + config.staleness, config.groups_per_step)
        for refill in range(1 + config.max_refill_rounds):
            played, failed = self._play(groups, step)
            self.sampled.played += played
            self.sampled.failed += failed
            if failed:
                self.samplers.check_failures(played, failed)
            self._assess(played)
            num_missing = config.groups_per_step - self.sampled.num_kept_tasks
            if num_missing == 0:
                break
            groups = self.task_sampler.refill(step, refill, num_missing)

    def _play(self, groups: Sequence[TaskGroup], step: int) -> tuple[list[Episode], list[Episode]]:
        """Return the episodes of these groups, or, sampling ahead, of as many that have been played meanwhile."""
        if self.ahead is None:
            return self.sample(groups)
        self.ahead.submit(groups, step)
        version = self.on_all_learners(lambda learner: learner.policy_version)[0]
        taken = self.ahead.take(len(groups), step, version, of_policies=lambda id_: id_ not in self._only_playing)
        self.sampled.ages += [group.age for group in taken]
        fresh = [group for group in taken if group.age <= self.config.staleness]
        return [e for group in fresh for e in group.episodes], [e for group in fresh for e in group.failed]

    def _assess(self, played: Sequence[Episode]) -> None:
        """Make the episodes' samples, give them advantages, and keep those that teach something."""
        samples = self._samples_of(played)
        self.sampled.samples += samples
        self._score_for_advantage(samples, played)
        for module_id in sorted({sample.module for sample in samples}):
            of_module = [sample for sample in samples if sample.module == module_id]
            rows = AdvantageRows(of_module)
            if "ref_logp" in self._scores_for_advantage:
                rows.reward_NK = self._kl_shaped_reward(module_id, rows)
            found = self.advantage(rows)
            if isinstance(found, torch.Tensor):
                found = Advantages(found)
            for name, column in {"advantage": found.advantage, **found.columns}.items():
                rows.set_column(name, column)
            self.metrics.log_dict(found.metrics, key=(LEARNER_RESULTS, module_id), window=1)
            dropped = self._groups_to_drop(rows, found.advantage)
            self.sampled.trained += [
                sample
                for sample in of_module
                if sample.group not in dropped and not (self.config.overlong_filter and sample.is_overlong)
            ]

    def _score_for_advantage(self, samples: Sequence[Sample], played: Sequence[Episode]) -> None:
        self.score(samples, self._scores_for_advantage)

    def _samples_of(self, played: Sequence[Episode]) -> list[Sample]:
        samples = []
        for episode in played:
            samples += samples_from_episode(
                episode,
                functools.partial(self.sampled.group_of, episode.group),
                invalid_action_penalty=self.config.invalid_action_penalty,
                max_tokens=self._max_tokens_to_bootstrap,
            )
        return [sample for sample in samples if sample.module not in self._only_playing]

    def _kl_shaped_reward(self, module_id: str, rows: AdvantageRows) -> torch.Tensor:
        config = self.config
        return kl_shaped_reward(
            rows.reward_NK,
            rows.column("trainer_logp" if config.old_logp == "recompute" else "old_logp"),
            rows.column("ref_logp"),
            rows.mask_NK,
            kl_coeff=self.kl_coeff.get(module_id, config.kl_coeff),
            kind=config.kl_kind,
        )

    def _groups_to_drop(self, rows: AdvantageRows, advantage: torch.Tensor) -> set[int]:
        group_N, filter_groups = rows.group_N, self.config.filter_groups
        if filter_groups == "off":
            return set()
        teaches_N = has_spread(rows.is_success_N.double(), group_N)
        if filter_groups == "advantage":
            teaches_N = advantage.reshape(len(advantage), -1).ne(0).any(1)
        return set(group_N.tolist()) - set(group_N[teaches_N].tolist())

    # --- after the update ---

    def _follow_kl_target(self, results: list[Any]) -> None:
        config = self.config
        for module_id, of_module in results[0].items():
            if "ref_kl" not in of_module:
                continue
            kl_coeff = self.kl_coeff.get(module_id, config.kl_coeff)
            self.metrics.log_value((LEARNER_RESULTS, module_id, "kl_coeff"), kl_coeff, window=1)
            if config.kl_target is not None and of_module["num_optimizer_steps"].peek() > 0:
                self.kl_coeff[module_id] = adaptive_kl_coeff(
                    kl_coeff, float(of_module["ref_kl"].peek()), target=config.kl_target, rate=config.kl_rate
                )

    def _count_empty_steps(self, is_empty: bool, step: int) -> None:
        self.num_empty_steps = self.num_empty_steps + 1 if is_empty else 0
        if not is_empty:
            return
        alike = "success" if self.config.filter_groups == "success" else "returns"
        logger.warning(
            "train step %d taught nothing: in every group all episodes had equal %s (%d such steps in a row).",
            step,
            alike,
            self.num_empty_steps,
        )
        if self.num_empty_steps >= self.config.max_empty_steps:
            raise RllmGymError(
                f"{type(self).__name__}: {self.num_empty_steps} train steps in a row had only groups of equal {alike}, "
                f"which teach nothing; max_empty_steps is {self.config.max_empty_steps}. Choose easier or "
                "harder tasks, a longer horizon or a larger group_size."
            )

    def _log(self, *, sampling_s: float, learning_s: float, sync_s: float) -> None:
        sampled = self.sampled
        statistics = self.log_episodes(sampled.played, sampled.failed)
        num_groups, num_kept = (len({s.group for s in samples}) for samples in (sampled.samples, sampled.trained))
        useful_share = len(sampled.useful_groups) / max(1, num_groups)
        self.metrics.log_value((ENV_RUNNER_RESULTS, "useful_group_share"), useful_share, window=1)
        if self.ahead is not None:
            num_stale = sum(age > self.config.staleness for age in sampled.ages)
            self.metrics.log_dict(
                {"group_age_mean": sum(sampled.ages) / max(1, len(sampled.ages)), "num_groups_stale": num_stale},
                window=1,
            )
        all_s = sampling_s + learning_s + sync_s
        turns = [turn for e in sampled.played for stream in e.streams.values() for turn in stream.turns]
        self.metrics.log_dict(
            {
                "max_episode_steps": self.max_episode_steps or 0,
                "policy_version": max((turn.policy_version for turn in turns), default=0),
                "num_groups": num_groups,
                "num_groups_dropped": num_groups - num_kept,
                "sampling_s": sampling_s,
                "learning_s": learning_s,
                "sync_s": sync_s,
                "num_tokens_sampled_per_s": statistics["num_sampled_tokens"] / (all_s if self.ahead else sampling_s),
                "num_tokens_trained_per_s": self.num_tokens_trained(sampled.trained) / learning_s,
            },
            window=1,
        )

    @override(LLMAlgorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        mine: dict[str, Any] = {"num_empty_steps": self.num_empty_steps, "kl_coeff": dict(self.kl_coeff)}
        if self.ahead is not None:
            mine["ahead"] = self.ahead.get_state()
        if self.task_difficulty is not None:
            mine["task_difficulty"] = self.task_difficulty.get_state()
        return super().get_state(*args, **kwargs) | mine

    @override(LLMAlgorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.num_empty_steps = state.get("num_empty_steps", 0)
        self.kl_coeff = dict(state.get("kl_coeff", {}))
        if self.ahead is not None:
            self.ahead.set_state(state.get("ahead", []))
        if self.task_difficulty is not None:
            self.task_difficulty.set_state(state.get("task_difficulty", {}))
