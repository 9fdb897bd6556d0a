"""Evaluates a checkpoint on an environment's tasks: success rates with their uncertainty, as a table and as JSON."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllm_gym.errors import ConfigError
from rllm_gym.training.metrics import is_success
from rllm_gym.types import Episode

CONFIDENCE = 0.95


def read_config(checkpoint: Path) -> tuple[type, Any]:
    """Return a checkpoint's algorithm class and configuration. Checkpoints are pickled: load only your own.

    Raises:
        ConfigError: the folder holds no checkpoint of an algorithm.
    """
    try:
        content = pickle.loads((checkpoint / "class_and_ctor_args.pkl").read_bytes())
        algorithm, state = content["class"], content["ctor_args_and_kwargs"][0][0]
        return algorithm, algorithm.get_default_config().from_state(state)
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, IndexError) as error:
        raise ConfigError(
            f"checkpoint: {str(checkpoint)!r} cannot be read as an algorithm's checkpoint ({error})."
        ) from error


def evaluation_config(
    checkpoint: Path, *, env: str | None = None, env_config: dict[str, Any] | None = None, split: str = "train"
) -> tuple[type, Any]:
    """Return the algorithm class and the configuration to evaluate a checkpoint with.

    Args:
        env: another environment's id; the checkpoint's `env_config` then does not apply.
        env_config: keys to add to or replace in `env_config`.
        split: what will be evaluated; it is checked by making the environment once.

    Raises:
        ConfigError: the environment cannot be made, or the split holds what is trained on.
    """
    from rllm_gym.registration import normalize_env_id
    from rllm_gym.rollout.environments import check_evaluation, make_text_env

    algorithm, config = read_config(checkpoint)
    env_id = normalize_env_id(env) if env else config.env
    kept = config.env_config if env_id == config.env else {}
    # RLlib's environment() would merge the dictionaries.
    config.env, config.env_config = env_id, {**kept, **(env_config or {})}
    if config.env is None:
        raise ConfigError(
            f"evaluate: needs an environment; {str(checkpoint)!r} was trained without one. Name it with --env."
        )
    # Methods that learn from recorded episodes have EnvRunners only where they evaluate.
    config.evaluation_interval, config.num_env_runners = 1, max(1, config.num_env_runners)
    config.evaluation_splits = (split,)
    config.save_trajectories = False
    if hasattr(config, "without_data"):
        config.without_data()
    try:
        for spec in config.environments:
            make_text_env(spec).close()
        check_evaluation(config)
    except (ConfigError, TypeError) as error:
        raise ConfigError(" ".join(str(error).split())) from error
    return algorithm, config


def evaluate_checkpoint(
    checkpoint: Path,
    algorithm: Any,
    config: Any,
    *,
    split: str,
    num_episodes: int,
    seed: int,
    horizon: int | None = None,
    greedy: bool = False,
) -> dict[str, Any]:
    """Play `num_episodes` episodes with a checkpoint's weights; Ray must be running. Returns the report."""
    algo = algorithm.from_checkpoint(str(checkpoint), config=config)
    try:
        params = config.greedy_params if greedy else None
        metrics, episodes = algo.evaluate_split(split, num_episodes, horizon=horizon, seed=seed, params=params)
    finally:
        algo.stop()
    return {
        "checkpoint": str(checkpoint),
        "env": config.env,
        "env_config": config.env_config,
        "split": split,
        "seed": seed,
        "greedy": greedy,
        **report_of(metrics, episodes),
    }


def report_of(metrics: dict[str, float], episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the numbers of an evaluation, all together and by `info["category"]`."""
    played = Counter(_category(episode) for episode in episodes)
    solved = Counter(_category(episode) for episode in episodes if is_success(episode))
    return {
        **_rate(solved.total(), played.total()),
        "categories": {name: _rate(solved[name], played[name]) for name in sorted(played)},
        "metrics": dict(metrics),
    }


def _category(episode: Episode) -> str:
    infos = [episode.info, *(info for info in episode.info.values() if isinstance(info, dict))]
    return str(next((info["category"] for info in infos if "category" in info), "all"))


def _rate(num_solved: int, num_episodes: int) -> dict[str, Any]:
    """Return a success rate with its Wilson score interval at 95 %."""
    from scipy.stats import binomtest  # takes a second to import

    if not num_episodes:
        return {"episodes": 0, "successes": 0, "success_rate": None, "success_interval": None}
    interval = binomtest(num_solved, num_episodes).proportion_ci(CONFIDENCE, method="wilson")
    return {
        "episodes": num_episodes,
        "successes": num_solved,
        "success_rate": num_solved / num_episodes,
        "success_interval": [float(interval.low), float(interval.high)],
    }


def table_of(report: dict[str, Any]) -> Any:
    """Return the report as a rich table."""
    from rich.table import Table

    metrics = report["metrics"]
    title = f"{report['env']}  split {report['split']}  seed {report['seed']}{'  greedy' if report['greedy'] else ''}"
    table = Table(title=title)
    for column in ("", "episodes", "success rate", "95 % interval"):
        table.add_column(column, justify="left" if not column else "right")
    categories = report["categories"] if len(report["categories"]) > 1 else {}
    for name, rate in [*categories.items(), ("all", report)]:
        interval = rate["success_interval"]
        shown = "" if interval is None else f"{interval[0]:.3f} - {interval[1]:.3f}"
        table.add_row(name, f"{rate['episodes']}", _number(rate["success_rate"]), shown)
    table.add_section()
    for label, name in (
        ("mean return", "episode_return_mean"),
        ("mean turns", "num_turns_mean"),
        ("mean tokens", "num_tokens_mean"),
        ("sampled tokens", "num_sampled_tokens"),
        ("truncated", "truncated_fraction"),
        ("failed episodes", "num_failed_episodes"),
        ("horizon", "horizon"),
    ):
        if name in metrics:
            table.add_row(label, "", _number(metrics[name]), "")
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) > 1 else f"{value:.3f}"
