"""What the policy-gradient methods share: their options, and the train step (sample, evaluate, update, sync)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Literal, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllm_gym.algorithms.algorithm import LLMAlgorithm
from rllm_gym.algorithms.config import LLMConfig
from rllm_gym.algorithms.functional import KL_KINDS
from rllm_gym.errors import ConfigError, RllmGymError
from rllm_gym.learner.connectors import ADVANTAGE, GROUP, EpisodeData, num_tokens, streams, trainable_streams
from rllm_gym.rollout.env_runner import RLlibEpisode
from rllm_gym.types import Episode

logger = logging.getLogger(__name__)


class PolicyGradientConfig(LLMConfig):
    """Options of every method that reinforces the tokens it sampled."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.clip_low: float = 0.2
        self.clip_high: float = 0.2
        self.kl_coeff: float = 0.0
        self.kl_kind: str = "k3"
        self.kl_in: str = "loss"
        self.kl_target: float | None = None
        self.kl_rate: float = 0.1
        self.entropy_coeff: float = 0.0
        self.old_logp: str = "rollout"
        self.importance_correction: str = "off"
        self.importance_cap: float = 2.0
        self.max_empty_steps: int = 10
        self.max_refill_rounds: int = 0

    def training(
        self,
        *,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        kl_coeff: float = NotProvided,
        kl_kind: Literal["k1", "k2", "k3", "low_variance"] = NotProvided,
        kl_in: Literal["loss", "reward"] = NotProvided,
        kl_target: float | None = NotProvided,
        kl_rate: float = NotProvided,
        entropy_coeff: float = NotProvided,
        old_logp: Literal["rollout", "recompute"] = NotProvided,
        importance_correction: Literal["off", "truncated"] = NotProvided,
        importance_cap: float = NotProvided,
        max_empty_steps: int = NotProvided,
        max_refill_rounds: int = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the options of policy-gradient methods.

        Args:
            clip_low, clip_high: how far the probability ratio may fall below and rise above 1.
            kl_coeff: weight of the KL to the frozen `base_model`; 0 keeps no reference model in memory.
            kl_kind: the estimator, see `rllm_gym.algorithms.functional.kl_estimate`.
            kl_in: where the KL stands: `loss`, or `reward`, as a penalty on every sampled token.
            kl_target: nats per token; makes `kl_coeff` follow after every train step, so that the KL stays there; None
                keeps it fixed. See `rllm_gym.algorithms.functional.adaptive_kl_coeff`.
            kl_rate: how fast it follows.
            entropy_coeff: weight of an entropy bonus.
            old_logp: log-probabilities of the sampling policy: as the sampler recorded them, or recomputed by the
                trainer.
            importance_correction: `truncated` weighs tokens by min(trainer / sampler probability, importance_cap).
            importance_cap: see above.
            max_empty_steps: train steps in a row that may teach nothing (all groups dropped) before the run stops.
            max_refill_rounds: how often a train step samples fresh tasks for the groups that it dropped (dynamic
                sampling, Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.2); 0 goes on with what is left.
        """
        self._set(
            clip_low=clip_low,
            clip_high=clip_high,
            kl_coeff=kl_coeff,
            kl_kind=kl_kind,
            kl_in=kl_in,
            kl_target=kl_target,
            kl_rate=kl_rate,
            entropy_coeff=entropy_coeff,
            old_logp=old_logp,
            importance_correction=importance_correction,
            importance_cap=importance_cap,
            max_empty_steps=max_empty_steps,
            max_refill_rounds=max_refill_rounds,
        )
        super().training(**kwargs)
        return self

    @property
    def has_learner_advantages(self) -> bool:
        """Whether the learners compute the advantages; those of the driver then only say what is trained on."""
        return True

    def validate(self) -> None:
        super().validate()
        if self.in_evaluation:
            return
        who = type(self).__name__
        self._check_at_least(
            clip_low=0, clip_high=0, kl_coeff=0, kl_rate=0, entropy_coeff=0, max_empty_steps=1, max_refill_rounds=0
        )
        self._check_one_of(
            kl_kind=KL_KINDS,
            kl_in=("loss", "reward"),
            old_logp=("rollout", "recompute"),
            importance_correction=("off", "truncated"),
        )
        if self.kl_target is not None:
            self._check_at_least(kl_target=0)
        if self.kl_target is not None and 0 in (self.kl_target, self.kl_coeff):
            raise ConfigError(
                f"{who}: kl_target and the kl_coeff to begin with must be above 0; got {self.kl_target} and "
                f"{self.kl_coeff}. Set both, or kl_target: null for a fixed coefficient."
            )
        if self.temperature == 0:
            raise ConfigError(
                f"{who}: training needs temperature above 0, or a group's episodes are all the same; got 0."
            )
        if self.importance_correction == "truncated" and self.old_logp != "recompute":
            raise ConfigError(
                f"{who}: importance_correction: truncated compares the trainer's old log-probabilities with the "
                "sampler's; got old_logp: rollout. Set old_logp: recompute."
            )


class PolicyGradient(LLMAlgorithm):
    """Samples episodes and reinforces their tokens; a method gives `compute_advantages`, or lets its learner do it."""

    config: PolicyGradientConfig

    def compute_advantages(
        self, streams: list[SingleAgentEpisode], group: list[int]
    ) -> Sequence[float | Sequence[float] | None]:
        """Return each stream's advantage, or one per turn, or None where it must not be trained on.

        The default is for methods whose learner computes the advantages from the rewards: all are trained on.

        Args:
            streams: one agent's episodes.
            group: the group index of each.
        """
        return [0.0] * len(streams)

    def setup(self, config: PolicyGradientConfig) -> None:
        self.num_empty_steps = 0
        super().setup(config)

    def training_step(self) -> None:
        self.evaluate_on_start()
        step = self.training_iteration
        start = time.perf_counter()
        episodes, failed, num_groups = self._sample_groups(step)
        sampled = time.perf_counter()
        played: list[Episode] = [episode.custom_data.pop("episode") for episode in episodes]
        self.store(step, played + failed, [] if self.config.has_learner_advantages else episodes)

        trained = [episode for episode in episodes if any(trainable_streams([episode]))]
        self.update(EpisodeData(episodes=trained))
        learned = time.perf_counter()
        if trained:
            self.sync_weights()
        self._count_empty_steps(not trained, step)

        now = time.perf_counter()
        statistics = self.log_episodes(played, failed)
        num_trained_tokens = sum(num_tokens(stream) for stream in trainable_streams(episodes))
        num_kept_groups = len({stream.custom_data[GROUP] for stream in trainable_streams(episodes)})
        self.metrics.log_dict(
            {
                "max_episode_steps": self.longest_horizon or 0,
                "policy_version": _policy_version(played),
                "num_groups": num_groups,
                "num_groups_dropped": num_groups - num_kept_groups,
                "sampling_s": sampled - start,
                "learning_s": learned - sampled,
                "sync_s": now - learned,
                "num_tokens_sampled_per_s": statistics["num_sampled_tokens"] / (sampled - start),
                "num_tokens_trained_per_s": num_trained_tokens / (learned - sampled),
            },
            window=1,
        )

    def _sample_groups(self, step: int) -> tuple[list[RLlibEpisode], list[Episode], int]:
        """Return a train step's episodes with their advantages, those that failed, and the number of groups."""
        config = self.config
        groups = self.task_sampler.groups(step, config.groups_per_step)
        episodes: list[RLlibEpisode] = []
        failed: list[Episode] = []
        num_groups = 0
        for refill in range(1 + config.max_refill_rounds):
            played, not_played = self.sample(groups, max_episode_steps=self.max_episode_steps)
            num_groups += self._set_advantages(played, first_group=num_groups)
            episodes += played
            failed += not_played
            kept = {e.custom_data["episode"].group.key for e in episodes if any(trainable_streams([e]))}
            num_missing = config.groups_per_step - len(kept)
            if num_missing == 0:
                break
            groups = self.task_sampler.refill(step, refill, num_missing)
        return episodes, failed, num_groups

    def _set_advantages(self, episodes: list[RLlibEpisode], *, first_group: int) -> int:
        """Write each stream's group (from `first_group` on) and advantage; returns the number of groups.

        A group is one agent's streams in the episodes of one task.
        """
        agents: dict[Any, list[tuple[SingleAgentEpisode, int]]] = {}
        index: dict[tuple[Any, int], int] = {}
        for episode in episodes:
            for stream in streams(episode):
                key = (stream.agent_id, episode.custom_data["group"])
                stream.custom_data[GROUP] = index.setdefault(key, first_group + len(index))
                agents.setdefault(stream.agent_id, []).append((stream, stream.custom_data[GROUP]))
        for members in agents.values():
            of_agent, group = map(list, zip(*members, strict=True))
            for stream, advantage in zip(of_agent, self.compute_advantages(of_agent, group), strict=True):
                stream.custom_data[ADVANTAGE] = advantage
        return len(index)

    def _count_empty_steps(self, is_empty: bool, step: int) -> None:
        self.num_empty_steps = self.num_empty_steps + 1 if is_empty else 0
        if not is_empty:
            return
        logger.warning(
            "train step %d taught nothing: in every group all returns were equal (%d such steps in a row).",
            step,
            self.num_empty_steps,
        )
        if self.num_empty_steps >= self.config.max_empty_steps:
            raise RllmGymError(
                f"{type(self).__name__}: {self.num_empty_steps} train steps in a row had only groups of equal "
                f"returns, which teach nothing; max_empty_steps is {self.config.max_empty_steps}. Choose easier or "
                "harder tasks, a longer horizon or a larger group_size."
            )

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().get_state(*args, **kwargs) | {"num_empty_steps": self.num_empty_steps}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.num_empty_steps = state.get("num_empty_steps", 0)


def _policy_version(played: list[Episode]) -> int:
    versions = [turn.policy_version for e in played for stream in e.streams.values() for turn in stream.turns]
    return max(versions, default=0)
