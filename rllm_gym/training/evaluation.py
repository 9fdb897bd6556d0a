"""Evaluation during training: how good the present policy is on the tasks of splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllm_gym.training.config import LLMConfig
from rllm_gym.training.metrics import episode_metrics, metrics_by_env, metrics_by_role
from rllm_gym.training.samplers import Samplers
from rllm_gym.training.task_sampler import evaluation_groups
from rllm_gym.types import Episode, SamplingParams


class Evaluation:
    """Plays the tasks of splits with the present policy.

    Args:
        samplers: play the episodes.
        record: (episodes, split): stores them as the run's others are, marked as those of an evaluation of the split.
    """

    def __init__(self, config: LLMConfig, samplers: Samplers, record: Callable[[Sequence[Episode], str], None]) -> None:
        self._config, self._samplers, self._record = config, samplers, record

    def all_splits(self) -> dict[str, Any]:
        """Return the metrics of every one of `evaluation_splits`, and pooled as `env_runners`."""
        config = self._config
        everything: list[Episode] = []
        results: dict[str, Any] = {}
        for split in config.evaluation_splits:
            results[split], episodes = self.split(
                split, config.evaluation_duration, horizon=config.evaluation_horizon, seed=config.evaluation_seed
            )
            everything += episodes
        return results | {ENV_RUNNER_RESULTS: episode_metrics(everything, [])}

    def split(
        self, split: str, num_episodes: int, *, horizon: int | None, seed: int, params: SamplingParams | None = None
    ) -> tuple[dict[str, Any], list[Episode]]:
        """Play `num_episodes` episodes over a split's tasks, as evenly as can be; all seeds come from `seed`.

        Of several environments each plays as many. They are those of training, or those of `evaluation_config`.

        Args:
            horizon: in turns; None is the last stage's horizon.
            params: how to sample; None is as `evaluation_config` says.

        Returns:
            (metrics, episodes); metrics are those of `env_runners/` and `horizon`, and `by_env` where the environments
            are several or others than those of training.
        """
        config, environments = self._config, self._config.evaluation_environments
        horizons = {name: last if horizon is None else horizon for name, last in config.last_horizons.items()}
        names = {config.all_environments.index(spec): spec.name for spec in environments}
        items = {env_index: self._samplers.item_ids(env_index, split) for env_index in names}
        groups = evaluation_groups(items, num_episodes, seed=seed)
        params = params or config.evaluation_params
        episodes, failed = self._samplers.sample(groups, horizons=horizons, params=params)
        _name_after(split, [*episodes, *failed])
        self._record([*episodes, *failed], split)
        self._samplers.check_failures(episodes, failed)
        metrics: dict[str, Any] = episode_metrics(episodes, failed)
        metrics["horizon"] = max(of_env or 0 for of_env in horizons.values())
        if len(environments) > 1 or environments != config.environments:
            metrics["by_env"] = metrics_by_env(episodes, failed, names)
        if by_role := metrics_by_role(episodes):
            metrics["by_role"] = by_role
        return metrics, episodes


def success_by_split(evaluation: dict[str, Any]) -> str:
    """Return an evaluation in words: "train 0.47  eval 0.41"."""
    rates = {split: of for split, of in evaluation.items() if isinstance(of, dict) and split != ENV_RUNNER_RESULTS}
    return "  ".join(f"{split} {of['success_rate']:.3f}" for split, of in rates.items() if "success_rate" in of)


def _name_after(split: str, episodes: Sequence[Episode]) -> None:
    """Give episodes ids of their own among a run's: every evaluation plays the same tasks, with the same seeds."""
    turns = (turn for episode in episodes for stream in episode.streams.values() for turn in stream.turns)
    version = max((turn.policy_version for turn in turns), default=0)
    for episode in episodes:
        episode.episode_id = f"{split}-{version}-{episode.episode_id}"
