"""What `rllib evaluate` does: starts Ray, evaluates a checkpoint, prints a table and writes JSON."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from rllm_gym.cli.ray_session import ray_session
from rllm_gym.cli.source import ExperimentError, parse_yaml
from rllm_gym.evaluation.evaluate import evaluate_checkpoint, evaluation_config, table_of


def evaluate_and_print(
    checkpoint: Path,
    *,
    env: str | None,
    env_config: str | None,
    split: str,
    num_episodes: int,
    seed: int,
    horizon: int | None,
    greedy: bool,
    out: Path | None,
    address: str | None,
    verbose: bool,
) -> None:
    """See `rllib evaluate --help`.

    Raises:
        ConfigError: the environment cannot be made, or Ray has no room.
    """
    overrides = parse_yaml(env_config, "--env-config", with_lines=False)[0] if env_config else {}
    if not isinstance(overrides, dict):
        raise ExperimentError(f"--env-config: must be a mapping; got {overrides!r}.")
    algorithm, config = evaluation_config(checkpoint, env=env, env_config=overrides, split=split)
    bundles = algorithm.default_resource_request(config).bundles  # type: ignore[attr-defined]
    with ray_session(address, [bundles], verbose=verbose):
        report = evaluate_checkpoint(
            checkpoint,
            algorithm,
            config,
            split=split,
            num_episodes=num_episodes,
            seed=seed,
            horizon=horizon,
            greedy=greedy,
        )
    Console().print(table_of(report))
    if out:
        out.write_text(json.dumps(report, indent=2, default=str) + "\n", encoding="utf-8")
        print(f"report in {out}")
