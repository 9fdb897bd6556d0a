"""`rllm-gym play`: plays an environment in the terminal, by hand or by its expert."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rllm_gym.cli.common import FAILED, errors_in_one_line, parse_mapping
from rllm_gym.errors import ConfigError

MAX_TURNS = 100


def play(
    env: Annotated[str, typer.Argument(help="Environment id, for example TextCraft-v0.")],
    item: Annotated[str | None, typer.Option(help="The task, for example textcraft_17; default: a random one.")] = None,
    split: Annotated[str | None, typer.Option(help="What a random task is drawn from.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the task and the environment.")] = None,
    env_config: Annotated[str | None, typer.Option(help="Keywords of the environment, as JSON.")] = None,
    expert: Annotated[bool, typer.Option("--expert", help="Let the expert act.")] = False,
    horizon: Annotated[int, typer.Option(min=1, help="In turns.")] = MAX_TURNS,
) -> None:
    """Play an environment: each line that is typed is an action; an empty line or the end of the input ends it."""
    from rllm_gym.registration import normalize_env_id
    from rllm_gym.rollout.environments import EnvironmentSpec, make_text_env

    with errors_in_one_line():
        env_id = normalize_env_id(env)
        keywords = parse_mapping("--env-config", env_config) | ({} if split is None else {"split": split})
        try:
            world = make_text_env(EnvironmentSpec(env_id, env_id, keywords))
        except TypeError as error:  # a keyword that the environment does not take
            raise ConfigError(" ".join(str(error).split())) from error
        try:
            is_over = _play(world, item=item, seed=seed, is_expert=expert, horizon=horizon)
        finally:
            world.close()
    if expert and not is_over:
        raise typer.Exit(FAILED)


def _play(env: Any, *, item: str | None, seed: int | None, is_expert: bool, horizon: int) -> bool:
    """Play an episode; returns whether it has come to its end."""
    text, info = env.reset(seed=seed, options=None if item is None else {"item_id": item})
    if not isinstance(text, str):
        raise ConfigError(f"play: is for environments with one agent that reads text; got {type(text).__name__}.")
    prompt = env.get_wrapper_attr("system_prompt") if env.has_wrapper_attr("system_prompt") else ""
    preamble = env.get_wrapper_attr("preamble") if env.has_wrapper_attr("preamble") else ()
    for said in filter(None, [prompt, *(said for turn in preamble for said in turn)]):
        _say(said, dim=True)
    typer.secho(f"[{info.get('item_id', '')} {info.get('category', '')}]".replace(" ]", "]"), bold=True)
    _say(text)
    total = 0.0
    for turn in range(1, horizon + 1):
        if is_expert:
            try:
                action = env.get_wrapper_attr("expert_action")()
            except (AttributeError, NotImplementedError) as error:
                raise ConfigError("play: --expert needs an environment with an expert; this one has none.") from error
            _say("> " + action.replace("\n", "\n> "), fg=typer.colors.CYAN)
        elif not (action := _ask()):
            typer.echo(f"left after {turn - 1} turns, return {total:g}")
            return False
        text, reward, terminated, truncated, info = env.step(action)
        total += reward
        _say(text)
        if reward or info.get("is_invalid_action"):
            notes = [f"reward {reward:g}"] if reward else []
            notes += ["invalid action"] if info.get("is_invalid_action") else []
            typer.secho(f"({', '.join(notes)})", fg=typer.colors.YELLOW)
        if terminated or truncated:
            outcome = "solved" if info.get("is_success") else "not solved"
            typer.secho(f"{outcome} in {turn} turns, return {total:g}", bold=True)
            return bool(info.get("is_success")) or not is_expert
    typer.echo(f"the horizon of {horizon} turns is reached, return {total:g}")
    return False


def _ask() -> str:
    """Return the next line that is typed; "" at the end of the input."""
    try:
        return input("> ").strip()
    except EOFError:
        typer.echo()
        return ""


def _say(text: str, **style: Any) -> None:
    from rllm_gym.cli.episode_text import printable

    typer.secho(printable(text), **style)
