"""`rllm-gym check-env`: checks an environment against the contract that training and evaluation count on."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from rllm_gym.cli.common import FAILED, errors_in_one_line, parse_mapping
from rllm_gym.library_noise import errors_alone

TURNS = 6  # of an episode in a run's threads, where each environment plays two
ENVS_PER_WORKER = 2


def check_env(
    env: Annotated[str, typer.Argument(help="module:Class, or an id like my_env:me/MyEnv-v0.")],
    env_config: Annotated[str | None, typer.Option(help="Keywords of the environment, as JSON.")] = None,
    num_env_workers: Annotated[int, typer.Option(min=0, help="Play it in so many threads, as a run does.")] = 4,
    env_process: Annotated[bool, typer.Option("--env-process", help="Give each a process, as a run may.")] = False,
    env_timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds that a call may take, as in a run.")] = 120.0,
) -> None:
    """Check that an environment keeps the rules of a text environment: one line a rule; fails if one is broken."""
    with errors_in_one_line(), errors_alone("rllm_gym.rollout"):  # what fails is said below
        keywords = parse_mapping("--env-config", env_config)
        options = {"num_env_workers": num_env_workers, "env_timeout_s": env_timeout_s}
        num_broken = num_rules = 0
        for found in _findings(env, keywords, in_process=env_process, **options):
            num_rules += 1
            if found.broken:
                num_broken += 1
                typer.echo(f"BROKEN       {found.rule}: {found.broken}")
            elif found.not_checked:
                typer.echo(f"not checked  {found.rule}: {found.not_checked}")
            else:
                typer.echo(f"ok           {found.rule}")
    if num_broken:
        typer.echo(f"check-env: {num_broken} of {num_rules} rules are broken", err=True)
        raise typer.Exit(FAILED)


def _findings(env: str, keywords: Mapping[str, Any], **options: Any) -> Iterator[Any]:
    """Yield the outcome of each rule, first that of a run's own way to play; no other follows where a call hangs."""
    from rllm_gym.envs.contract import findings
    from rllm_gym.envs.contract_findings import Finding

    make = functools.partial(find_maker(env), **keywords)
    make().close()  # what is missing is said in one line
    failed, hangs = _play_as_a_run(env, keywords, **options)
    if failed and not hangs and not options["in_process"]:
        again, _ = _play_as_a_run(env, keywords, **{**options, "in_process": True})
        failed += " With env_process: true it plays." if not again else ""
    yield Finding("it plays in the threads of a run", broken=failed)
    if not hangs:
        yield from findings(make)


def _play_as_a_run(
    env: str, keywords: Mapping[str, Any], *, num_env_workers: int, env_timeout_s: float, in_process: bool
) -> tuple[str, bool]:
    """Play nonsense in a rollout loop; return how an episode failed, "" if none did, and whether a call hung."""
    from rllm_gym.envs.contract_findings import NONSENSE
    from rllm_gym.rollout.engines.scripted import ScriptedEngine
    from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
    from rllm_gym.rollout.loop import RolloutLoop
    from rllm_gym.rollout.play_by_hand import NO_LIMIT
    from rllm_gym.tokens import chat_tokenizer
    from rllm_gym.types import DEFAULT_MODULE, SamplingParams, TaskGroup

    chat, spec = chat_tokenizer(None), EnvironmentSpec(env, functools.partial(_make, env), keywords)
    said = [chat.encode_action(text) for text in NONSENSE if text.isprintable()]
    num_envs = ENVS_PER_WORKER * max(1, num_env_workers)
    loop = RolloutLoop(
        lambda env_index: make_token_env(spec, chat, in_process=in_process),
        {DEFAULT_MODULE: ScriptedEngine(lambda prompt: said[len(prompt) % len(said)], max_context_tokens=NO_LIMIT)},
        module_of=lambda agent_id, episode: DEFAULT_MODULE,
        num_envs=num_envs,
        num_env_workers=num_env_workers,
        params=SamplingParams(max_new_tokens=1024),
        max_model_len=NO_LIMIT,
        env_timeout_s=env_timeout_s,
        max_retries=0,
    )
    try:
        loop.submit([TaskGroup((0, 0, k), None, 1) for k in range(2 * num_envs)], max_episode_steps=TURNS)
        failed = []
        for group in loop.finished_groups():
            failed += group.failed
            if any(episode.num_env_timeouts for episode in failed):
                break
    finally:
        loop.close()
    if not failed:
        return "", False
    error = " ".join((failed[0].error or "").split())
    return f"episodes fail: {error}", any(episode.num_env_timeouts for episode in failed)


def _make(env: str, keywords: Mapping[str, Any]) -> Any:
    return find_maker(env)(**keywords)


def find_maker(env: str) -> Callable[..., Any]:
    """Return a callable that makes the environment at the text level, with the keywords that it is called with."""
    if re.fullmatch(r"[\w.]+:\w+", env):
        from rllm_gym.importing import import_object
        from rllm_gym.registration import create_multi_agent, make_env

        create = import_object("check-env", env)
        if hasattr(create, "possible_agents"):
            return functools.partial(create_multi_agent, create)
        return functools.partial(make_env, create, obs_type="text")
    from rllm_gym.registration import normalize_env_id
    from rllm_gym.rollout.environments import EnvironmentSpec, make_text_env

    env_id = normalize_env_id(env)
    return lambda **kwargs: make_text_env(EnvironmentSpec(env_id, env_id, kwargs))
