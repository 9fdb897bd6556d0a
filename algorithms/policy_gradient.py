"""The policy-gradient methods: the train step on the driver, and the loss on the learners."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core.learner.learner import Learner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS

from rllm_gym.algorithms.functional import (
    Counts,
    adaptive_kl_coeff,
    aggregate,
    clipped_surrogate,
    has_spread,
    importance_weight,
    kl_estimate,
    kl_shaped_reward,
    probability_ratio,
)
from rllm_gym.algorithms.policy_config import PolicyGradientConfig
from rllm_gym.errors import RllmGymError
from rllm_gym.learner.deepspeed import DeepSpeedLearner, Forward
from rllm_gym.learner.rl_module import load_language_model, logps_of, read
from rllm_gym.training.advantage_rows import Rollouts, Sampled, samples_of
from rllm_gym.training.algorithm import LLMAlgorithm
from rllm_gym.training.samples_ahead import SamplesAhead
from rllm_gym.training.task_difficulty import TaskDifficulty
from rllm_gym.training.task_sampler import DifficultySampler, TaskSampler
from rllm_gym.types import Episode, Sample, TaskGroup

logger = logging.getLogger(__name__)


class PolicyGradient(LLMAlgorithm):
    """Samples episodes and reinforces their tokens; a method gives `advantage`."""

    config: PolicyGradientConfig

    def advantage(self, rollouts: Rollouts) -> torch.Tensor:
        """Return how much better each row did than expected: one number per row [N], or one per token [N, K].

        Args:
            rollouts: the samples of one module in this train step, or in one of its rounds of refilling.
        """
        raise NotImplementedError

    @override(LLMAlgorithm)
    def setup(self, config: PolicyGradientConfig) -> None:
        self.num_empty_steps = 0
        self.kl_coeff: dict[str, float] = {}  # by module, once it has followed its target
        self._scores_for_advantage, self._scores_for_loss = config.scores_for_advantage, config.scores_for_loss
        self._max_tokens_to_bootstrap, self.screening_size = config.max_tokens_to_bootstrap, config.screening_size
        self._only_playing = {policy_id for policy_id in config.policies if not config.is_trained(policy_id)}
        self._only_playing |= {opponent.module_of(agent) for agent, opponent in config.opponent_specs.items()}
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
        self.sampled = Sampled()
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
        self._count_empty_steps(not trained, step)

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
            rollouts = Rollouts(of_module)
            if "ref_logp" in self._scores_for_advantage:
                rollouts.reward_NK = self._kl_shaped_reward(module_id, rollouts)
            advantage = self.advantage(rollouts)
            rollouts.set_column("advantage", advantage)
            self.metrics.log_dict(rollouts.metrics, key=(LEARNER_RESULTS, module_id), window=1)
            dropped = self._groups_to_drop(rollouts, advantage)
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
            samples += samples_of(
                episode,
                functools.partial(self.sampled.group_of, episode.group),
                invalid_action_penalty=self.config.invalid_action_penalty,
                max_tokens=self._max_tokens_to_bootstrap,
            )
        return [sample for sample in samples if sample.module not in self._only_playing]

    def _kl_shaped_reward(self, module_id: str, rollouts: Rollouts) -> torch.Tensor:
        config = self.config
        return kl_shaped_reward(
            rollouts.reward_NK,
            rollouts.column("trainer_logp" if config.old_logp == "recompute" else "old_logp"),
            rollouts.column("ref_logp"),
            rollouts.mask_NK,
            kl_coeff=self.kl_coeff.get(module_id, config.kl_coeff),
            kind=config.kl_kind,
        )

    def _groups_to_drop(self, rollouts: Rollouts, advantage: torch.Tensor) -> set[int]:
        group_N, filter_groups = rollouts.group_N, self.config.filter_groups
        if filter_groups == "off":
            return set()
        teaches_N = has_spread(rollouts.is_success_N.double(), group_N)
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
        self.metrics.log_value((ENV_RUNNER_RESULTS, "useful_group_share"), num_kept / max(1, num_groups), window=1)
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
                "num_tokens_trained_per_s": sum(map(len, sampled.trained)) / learning_s,
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


class PolicyLearner(DeepSpeedLearner):
    """A learner whose loss is `token_loss`, with the importance correction, plus the KL and entropy terms.

        L = average( w token_loss + kl_coeff KL - entropy_coeff H )

    A method whose loss is another overrides `token_loss`.

    Metrics under `learners/<module>/`: `policy_loss`; `kl` (k3 estimate of KL(sampling policy || policy)); `ref_kl` (KL
    to the reference, 0 without one); `kl_coeff`; `clip_fraction` (share of tokens whose ratio is outside the clip
    range); `first_clip_fraction` (of the first minibatch); `entropy` (nats per token); `importance_weight` (mean);
    `logp_difference_mean`, `logp_difference_max` (absolute, between sampler and trainer, in the first minibatch).
    """

    MEAN_STATS: tuple[str, ...] = (
        "policy_loss",
        "kl",
        "ref_kl",
        "clip_fraction",
        "first_clip_fraction",
        "entropy",
        "importance_weight",
        "logp_difference_mean",
    )
    MAX_STATS: tuple[str, ...] = ("logp_difference_max",)
    LOSS_STAT = "policy_loss"

    @override(DeepSpeedLearner)
    def build(self) -> None:
        self.kl_coeff: dict[str, float] = {}
        self._num_loss_tokens = self.config.num_loss_tokens
        super().build()
        # Outside the modules: neither trained nor sharded, synced or saved. Policies of one base model share one.
        self._reference_lms: dict[str, Any] = {}
        policies = [self.module[id_] for id_ in self.engines if not self.module[id_].learner_only]
        for policy in policies if self.config.kl_coeff > 0 else ():
            base_model = policy.model_config["base_model"]
            if policy.model_config["lora"] is None and base_model not in self._reference_lms:
                lm = load_language_model(base_model, self.config.weight_dtype).to(self._device)
                self._reference_lms[base_model] = lm.requires_grad_(False).eval()

    @override(DeepSpeedLearner)
    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        super().before_gradient_based_update(timesteps=timesteps)
        self.kl_coeff = timesteps.get("kl_coeff", {})

    def token_loss(
        self, batch: dict[str, torch.Tensor], logp_BT: torch.Tensor, old_logp_BT: torch.Tensor, ratio_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of every token, [B, T]; the default is the clipped surrogate.

        Args:
            batch: a micro-batch: `advantage` and `mask` [B, T], and the rest of `rllm_gym.learner.batch`.
            logp_BT, old_logp_BT: now, and under the weights before the update.
            ratio_BT: exp(logp - old_logp), of tokens or of sequences (`ratio_level`).
        """
        return clipped_surrogate(
            ratio_BT,
            batch["advantage"],
            batch["mask"],
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            dual_clip=self.config.dual_clip,
        )

    @override(Learner)
    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, torch.Tensor], fwd_out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        mask_BT, sampler_logp_BT, logp_BT = batch["mask"], batch["old_logp"], fwd_out["logp"]
        old_logp_BT = sampler_logp_BT
        if config.old_logp == "recompute":
            # In the first step the weights still are the old ones, and the ratio is 1 to the last bit.
            old_logp_BT = logp_BT.detach() if self.is_first_step else batch["trainer_logp"]
        ratio_BT = probability_ratio(logp_BT, old_logp_BT, mask_BT, level=config.ratio_level)
        loss_BT = self.token_loss(batch, logp_BT, old_logp_BT, ratio_BT)
        weight_BT = mask_BT.float()
        if config.importance_correction != "off":
            weight_BT = importance_weight(
                old_logp_BT,
                sampler_logp_BT,
                mask_BT,
                level=config.importance_correction,
                mode=config.importance_mode,
                cap=config.importance_cap,
                veto=config.importance_veto,
            )
            loss_BT = loss_BT * weight_BT
        counts = Counts(
            tokens=batch["num_tokens"],
            sequences=batch["num_sequences"],
            episodes=batch["num_episodes"],
            episode_tokens_B=batch["episode_tokens"],
            constant=self._num_loss_tokens,
        )
        statistics = {"entropy": fwd_out["entropy"], "importance_weight": weight_BT}
        self.add_step_means(policy_loss=aggregate(loss_BT.detach(), mask_BT, over=config.loss_average, counts=counts))
        if config.kl_coeff > 0:
            ref_kl_BT = kl_estimate(logp_BT, batch["ref_logp"], kind=config.kl_kind, mask_BT=mask_BT)
            statistics["ref_kl"] = ref_kl_BT
            if config.kl_in == "loss":
                loss_BT = loss_BT + self.kl_coeff.get(module_id, config.kl_coeff) * ref_kl_BT
        if config.entropy_coeff > 0:
            loss_BT = loss_BT - config.entropy_coeff * fwd_out["entropy"].masked_fill(~mask_BT, 0.0)
        ratio_BT, logp_BT = ratio_BT.detach(), logp_BT.detach()
        is_clipped_BT = ((ratio_BT < 1 - config.clip_low) | (ratio_BT > 1 + config.clip_high)).float()
        statistics |= {"kl": kl_estimate(old_logp_BT, logp_BT, kind="k3"), "clip_fraction": is_clipped_BT}
        if self.is_first_step:
            difference_BT = (logp_BT - sampler_logp_BT).abs()
            statistics |= {"first_clip_fraction": is_clipped_BT, "logp_difference_mean": difference_BT}
            self.add_maxima(mask_BT, logp_difference_max=difference_BT)
        self.add_means(mask_BT, **statistics)
        return aggregate(loss_BT, mask_BT, over=config.loss_average, counts=counts)

    @override(DeepSpeedLearner)
    def score_forward(self, name: str, module_id: str) -> Forward:
        if name != "ref_logp":
            return super().score_forward(name, module_id)
        settings, temperature = self.module[module_id].model_config, float(self.config.temperature)

        def forward(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
            if settings["lora"] is not None:  # the reference is the model without its adapter
                with self.module[module_id].lm.disable_adapter():
                    return {name: self.engines[module_id](inputs)["logp"]}
            lm = self._reference_lms[settings["base_model"]]
            return {name: logps_of(lm, read(lm, inputs), inputs, temperature=temperature)["logp"]}

        return forward
