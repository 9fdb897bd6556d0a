"""`rllib evaluate`: plays a policy on panels of tasks, with a running estimate, and prints a table in Markdown."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rllm_gym.cli.common import (
    RayAddress,
    Verbose,
    errors_in_one_line,
    parse_environments,
    parse_mapping,
    refuse_unused,
)
from rllm_gym.cli.ray_session import prepare_driver, ray_session
from rllm_gym.cli.scratch import temporary_folder
from rllm_gym.cli.train.summary import describe_game
from rllm_gym.errors import ConfigError

OF_A_PANEL = ("env", "env_config", "episodes", "samples", "split", "seed", "horizon", "greedy")
# Options of a run that an evaluation takes from an argument of its own.
ELSEWHERE = {
    "env": "--env",
    "env_config": "--env-config",
    "environments": "--env, several times",
    "evaluation_splits": "--split",
    "max_episode_steps": "--horizon",
    "scaling_inter": "--horizon",
}


def evaluate(
    context: typer.Context,
    policy: Annotated[
        str,
        typer.Argument(help="A checkpoint; a run or trial folder: its newest checkpoint; or a Hugging Face model."),
    ],
    env: Annotated[
        list[str] | None, typer.Option(help="Another environment than it was trained on; may be given several times.")
    ] = None,
    env_config: Annotated[
        list[str] | None,
        typer.Option(help="Keys of env_config to add or replace, as JSON; of several environments one for each."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of tasks, of each environment.")] = 100,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    split: Annotated[str, typer.Option(help="Split of the environment's tasks.")] = "eval",
    seed: Annotated[int, typer.Option(min=0, help="Of the tasks, environments and sampling.")] = 10_000,
    horizon: Annotated[int | None, typer.Option(min=1, help="In turns; default: the last stage's.")] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the likeliest token; default: sample as in training.")
    ] = False,
    panel: Annotated[
        list[Path] | None,
        typer.Option(help="Tasks as `rllm-gym panel` wrote them, in place of --env to --greedy; several times."),
    ] = None,
    trust_panel: Annotated[
        bool,
        typer.Option("--trust-panel", help="Let panels name modules, files and addresses: trust them as code."),
    ] = False,
    config: Annotated[
        str | None, typer.Option(help='Options of the sampler, as JSON: \'{"engine": "transformers"}\'.')
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the results; default: one below evaluations/.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Instead: play each other, in a game for two; several times. Prints a matrix of win rates."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the evaluation in that folder.")] = False,
    ray_address: RayAddress = None,
    verbose: Verbose = False,
) -> None:
    """Evaluate a policy: success rate with its interval, pass@k, by environment and category; keeps every episode."""
    with errors_in_one_line():
        if panel:
            refuse_unused(context, "--panel", OF_A_PANEL, "it says the environment, its tasks, horizon and sampling")
        envs = parse_environments(env or [], env_config or [])
        options = parse_mapping("--config", config)
        for name in sorted(ELSEWHERE.keys() & options.keys()):
            raise ConfigError(f"--config: holds options of the sampler; got {name!r}. Set {ELSEWHERE[name]}.")
        # The algorithm lives in this process here, and Ray's core would warn about restartable actors on the terminal.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        prepare_driver(ray_address)
        if against:
            refuse_unused(context, "--against", ("panel", "samples", "greedy", "resume"), "every task is played twice")
            _play_each_other(
                [policy, *against], envs, split=split, num_tasks=episodes, seed=seed, horizon=horizon or 100,
                config=options, out=out, ray_address=ray_address, verbose=verbose,
            )  # fmt: skip
            return
        from rllm_gym.evaluation.panel import read_panel
        from rllm_gym.evaluation.run import TABLE, plan_evaluation, play

        with temporary_folder(has_own_ray=ray_address is None):
            plan = plan_evaluation(
                policy,
                envs=envs,
                panels=[read_panel(path, is_trusted=trust_panel) for path in panel or []],
                split=split,
                num_tasks=episodes,
                samples=samples,
                seed=seed,
                horizon=horizon,
                greedy=greedy,
                config=options,
                out=out,
                joins_cluster=ray_address is not None,
            )
            bundles = plan.algorithm.default_resource_request(plan.config).bundles
            with (
                _Estimate(plan.num_episodes) as estimate,
                ray_session(ray_address, [bundles], verbose=verbose, on_sampling=estimate.on_sampling),
            ):
                report = play(plan, resume=resume, on_progress=estimate)
        typer.echo((plan.folder / TABLE).read_text(encoding="utf-8"))
        for line in game_lines(report):
            typer.echo(line)
        if report["num_tasks_trained_on"]:
            typer.echo(f"note: the policy was trained on {report['num_tasks_trained_on']} of these tasks")
        if usage := report.get("usage"):
            cost = f", {usage['cost']:.4f} dollars" if "cost" in usage else ""
            counts = "{requests:,} requests, {prompt_tokens:,} + {completion_tokens:,} tokens".format(**usage)
            typer.echo(f"the endpoint counted {counts}{cost}")
        typer.echo(f"{report['episodes']} episodes, {report['errors']} errors; results in {plan.folder}")


def _play_each_other(
    policies: list[str],
    envs: list[tuple[str | None, dict[str, Any]]],
    *,
    ray_address: str | None,
    verbose: bool,
    out: Path | None,
    **what: Any,
) -> None:
    """Play a matrix of policies and print it."""
    if len(envs) != 1 or envs[0][0] is None or out is None:
        raise ConfigError("--against: needs one --env, and --out DIR for the games; got none, or several. Give them.")
    from rllm_gym.evaluation.matches import MATRIX, matrix_table, win_rates

    [(env, env_config)] = envs
    with (
        temporary_folder(has_own_ray=ray_address is None),
        ray_session(ray_address, [[{"CPU": 1.0}, {"CPU": 1.0}]], verbose=verbose),
    ):
        report = win_rates(policies, str(env), env_config=env_config, out=out, **what)
    typer.echo(matrix_table(report))
    typer.echo(f"{report['num_games']} games of each pair, {report['errors']} errors; results in {out / MATRIX}")


def game_lines(report: dict[str, Any]) -> list[str]:
    """Return a line for each measure of a game."""
    found = [("", report)] if "nash_conv" in report else []
    for env, of_env in report.get("games", {}).items():
        found += [(f"{env}, {module}: ", measured) for module, measured in of_env.items()]
    return [
        f"{label}{describe_game(measured)}, exploitability {measured['exploitability']:.3f}, "
        f"{measured['num_information_sets']} information sets"
        for label, measured in found
    ]


class _Estimate:
    """Shows how far an evaluation is and what it has found: a bar on a terminal, else a line now and then."""

    def __init__(self, num_episodes: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from rllm_gym.cli.sampling_progress import SamplingProgress

        console = Console(stderr=True)
        self._is_shown = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._is_shown,
            transient=True,
        )
        self._num_episodes = num_episodes
        self._task = self._progress.add_task("evaluating", total=num_episodes)
        self.on_sampling = SamplingProgress(self._progress, console)

    def __enter__(self) -> _Estimate:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, report: dict[str, Any]) -> None:
        done = report["episodes"] + report["errors"]
        text = "no episode without an error so far"
        if report["episodes"]:
            low, high = report["success_interval"]
            text = f"success {report['success_rate']:.3f} ({low:.3f} - {high:.3f})"
        if report["errors"]:
            text += f"  errors {report['errors']}"
        self._progress.update(self._task, completed=done, description=text)
        if not self._is_shown:
            print(f"{done}/{self._num_episodes}  {text}", file=sys.stderr, flush=True)
