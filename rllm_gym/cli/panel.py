"""`rllm-gym panel`: writes the tasks of an evaluation, so that others are evaluated on the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllm_gym.cli.common import errors_in_one_line, parse_mapping, refuse_unused
from rllm_gym.errors import ConfigError
from rllm_gym.types import SamplingParams

MAX_NEW_TOKENS = 64  # as the option of this name has it, whose module needs the trainer


def panel(
    context: typer.Context,
    env: Annotated[str, typer.Argument(help="Environment id, for example rllm_gym/TextCraft-v0.")],
    horizon: Annotated[int, typer.Option(min=1, help="In turns.")],
    split: Annotated[str, typer.Option(help="Split of the environment's tasks.")] = "eval",
    episodes: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 200,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the tasks and their environments.")] = 10_000,
    env_config: Annotated[str | None, typer.Option(help="Keywords of the environment, as JSON.")] = None,
    test_list: Annotated[
        Path | None,
        typer.Option("--from", help="A list of AgentGym-RL's, or its folder, in place of --split and --episodes."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Of sampling; 0 is greedy.")] = SamplingParams.temperature,
    top_p: Annotated[float, typer.Option(min=1e-9, max=1, help="Of sampling.")] = SamplingParams.top_p,
    top_k: Annotated[int, typer.Option(min=0, help="Of sampling; 0 is all.")] = SamplingParams.top_k,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one turn at most.")] = MAX_NEW_TOKENS,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="Variables of the policy's chat template, as JSON.")
    ] = None,
    template_date: Annotated[str | None, typer.Option(help="The date that a template writes, as 2026-01-31.")] = None,
) -> None:
    """Print a panel: tasks, seeds, horizon and sampling, with their hash; for `rllib evaluate --panel`."""
    from rllm_gym.evaluation.panel import make_panel
    from rllm_gym.evaluation.published_lists import PublishedList, read_published
    from rllm_gym.registration import normalize_env_id
    from rllm_gym.rollout.environments import read_environments

    with errors_in_one_line():
        if test_list:
            refuse_unused(context, "--from", ("split", "episodes"), "the list says which tasks are played")
        config = parse_mapping("--env-config", env_config)
        [spec] = read_environments(normalize_env_id(env), config)
        published = read_published(test_list, spec) if test_list else PublishedList(None, {})
        try:
            made = make_panel(
                spec,
                split="test" if test_list else split,
                num_tasks=episodes,
                samples=samples,
                seed=seed,
                horizon=horizon,
                sampling=SamplingParams(max_new_tokens, temperature, top_p, top_k),
                item_ids=published.item_ids,
                categories=published.categories,
                template={
                    "chat_template_kwargs": parse_mapping("--chat-template-kwargs", chat_template_kwargs),
                    "template_date": template_date,
                },
            )
        except TypeError as error:  # a keyword that the environment does not take
            raise ConfigError(" ".join(str(error).split())) from error
    typer.echo(made.to_json(), nl=False)
